"""What is measured of a model, against slow NumPy and against what the numbers mean."""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny
from transformer_jax.inspection import diagnostics
from transformer_jax.models.layers import attention
from transformer_jax.models.transformer import residual
from transformer_jax.models.transformer import shapes as transformer
from transformer_jax.models.transformer.shapes import MODELS
from transformer_jax.training import losses as objectives

# Models that several tests look at, so that each is compiled once.
POST_LN = tiny.config("post_ln")
ADMIN = tiny.config("admin", architecture="decoder_only", norm="rms_norm")
PRE_LN = tiny.config("pre_ln", architecture="decoder_only")
LOSS = functools.partial(objectives.next_token, label_smoothing=0.1, z_loss=0.0)


def make(config):
    return MODELS[config.architecture](config)


@functools.cache
def observe_function(config):
    """(params, batch) -> what `observe` returns, and of each stack its dependencies."""

    def look(params, batch):
        logits, observed = diagnostics.observe(make(config), params, tiny.read_by(config, batch))
        measured = {
            stack: {
                measure.__name__: measure(config, params, stack, seen)
                for measure in (
                    *(diagnostics.dependency, diagnostics.components),
                    *(diagnostics.own_dependency, diagnostics.shortcut_variance),
                    diagnostics.sum_of_squared_dependencies,
                )
            }
            for stack, seen in observed.items()
        }
        return logits, observed, measured

    return jax.jit(look)


def seen(config):
    """Random parameters, none of them neutral, and what a packed batch shows of them."""
    params = tiny.random_parameters(config)
    return params, *observe_function(config)(params, tiny.packed_batch())


def sublayers(config, stack):
    kinds = tiny.stacks(config)[stack]
    return [(layer, kind) for layer in range(2) for kind in kinds]


def test_observing_changes_no_logits_and_numbers_sublayers_as_they_run():
    params, logits, observed, _ = seen(PRE_LN)
    expected = tiny.apply_function(PRE_LN)(params, tiny.packed_batch())
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    shown = jax.device_get(observed["decoder"])
    assert len(shown.outputs) == len(sublayers(PRE_LN, "decoder"))
    np.testing.assert_array_equal(shown.inputs[1:], shown.outputs[:-1])
    np.testing.assert_allclose(shown.inputs + shown.branches, shown.outputs, rtol=1e-5, atol=1e-5)
    final = shown.final[shown.real] @ np.asarray(params["embedding"]["table"]).T
    np.testing.assert_allclose(final, logits[shown.real], rtol=1e-4, atol=1e-5)


def test_what_is_not_asked_for_is_not_computed(monkeypatch):
    """A training pass costs what it costs of a model that shows nothing."""
    params, batch = tiny.random_parameters(ADMIN), tiny.packed_batch()

    def cost(**asked):
        def total(params) -> tuple:
            out: Any = make(ADMIN).apply({"params": params}, batch, deterministic=True, **asked)
            return jnp.sum(out[0] if asked else out), out

        found: Any = jax.jit(jax.grad(total, has_aux=True)).lower(params).cost_analysis()
        return {name: found[name] for name in ("flops", "transcendentals", "bytes accessed")}

    ours, all_shown = cost(), cost(mutable=["intermediates"])
    for module in (attention, residual, transformer):
        monkeypatch.setattr(module, "observe", lambda module, **values: None)
    monkeypatch.setattr(nn.Module, "perturb", lambda module, name, value: value)
    assert ours == cost()
    assert all_shown["transcendentals"] > ours["transcendentals"]


def slow_dependency(config, params, stack, shown):
    """beta (n, n + 1), and the components, token by token, as the papers' equations say."""
    name = config.encoder_residual if stack == "encoder" else config.decoder_residual
    real = np.asarray(shown.real)
    inputs, branches, outputs = (
        np.asarray(x, np.float64)[:, real] for x in (shown.inputs, shown.branches, shown.outputs)
    )
    n = len(branches)
    parts, bias, rows = [inputs[0]], np.zeros_like(inputs[0]), np.zeros((n, n + 1))
    for number, (layer, kind) in enumerate(sublayers(config, stack)):
        if kind == "self_attention":
            below = [*parts, bias]
        weights = {
            module: {name: np.asarray(values[layer]) for name, values in own.items()}
            for module, own in params[stack][f"{kind}_residual"].items()
        }
        skip = 1.0
        if name == "admin":
            skip = weights["shortcut"]["omega"]
        if name == "deepnorm":
            skip = (2 * config.num_decoder_layers) ** 0.25
        if name == "keel" and layer > 0:
            skip = n
        parts, bias = [skip * part for part in parts], skip * bias
        if name == "b2t" and kind == "feed_forward":
            parts = [a + b for a, b in zip(parts, [*below[:-1], 0.0], strict=True)]
            bias = bias + below[-1]
        parts.append(branches[number])
        if "post_norm" in weights and not (name == "keel" and number == 0):
            norm = weights["post_norm"]
            for token in range(len(bias)):
                whole = sum(part[token] for part in parts) + bias[token]
                centre = config.norm == "layer_norm"
                if centre:
                    whole = whole - np.mean(whole)
                sigma = math.sqrt(np.mean(whole**2) + reference.EPSILON)
                for part in (*parts, bias):
                    part[token] -= np.mean(part[token]) if centre else 0.0
                    part[token] *= norm["scale"] / sigma
            bias = bias + norm.get("bias", 0.0)
        np.testing.assert_allclose(sum(parts) + bias, outputs[number], rtol=1e-4, atol=1e-4)
        rows[number, : len(parts)] = [np.std(part) / np.std(outputs[number]) for part in parts]
    return rows, np.stack([*parts, bias])


@pytest.mark.parametrize(
    "config",
    [
        *(POST_LN, ADMIN, PRE_LN),
        *(
            tiny.config(name, architecture="decoder_only")
            for name in ("deepnorm", "rezero", "keel", "b2t", "residual_dual")
        ),
    ],
    ids=lambda config: f"{config.decoder_residual}-{config.architecture}",
)
def test_dependencies_follow_the_components_through_skips_and_norms(config):
    params, _, observed, measured = seen(config)
    for stack, shown in observed.items():
        found = measured[stack]
        beta, parts = slow_dependency(config, params, stack, shown)
        own = np.diagonal(beta, 1)
        real = np.asarray(shown.real)
        assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        assert_close(found["dependency"], beta)
        assert_close(found["components"][:, real], parts)
        whole = np.sum(found["components"], axis=0)
        assert_close(whole, shown.outputs[-1])
        assert_close(found["own_dependency"], own)
        total = found["sum_of_squared_dependencies"]
        assert_close(total, np.sum(own**2))


def test_variances_are_those_of_entries_of_real_tokens():
    params, _, observed, measured = seen(ADMIN)
    shown = jax.device_get(observed["decoder"])
    found = diagnostics.branch_variance(shown), measured["decoder"]["shortcut_variance"]
    for number, (layer, kind) in enumerate(sublayers(ADMIN, "decoder")):
        omega = np.asarray(params["decoder"][f"{kind}_residual"]["shortcut"]["omega"][layer])
        branch, below = (x[number][shown.real] for x in (shown.branches, shown.inputs))
        expected = np.var(branch), np.var(omega * below)
        np.testing.assert_allclose([values[number] for values in found], expected, rtol=1e-5)


def test_attention_is_measured_at_every_real_query():
    params, _, observed, _ = jax.device_get(seen(POST_LN))
    expected = slow_attention(POST_LN, params, observed, tiny.packed_batch())
    for (stack, kind), (entropy, largest) in expected.items():
        shown = observed[stack]
        np.testing.assert_allclose(diagnostics.attention_entropy(shown, kind), entropy, rtol=1e-4)
        np.testing.assert_allclose(diagnostics.largest_logit(shown, kind), largest, rtol=1e-4)


def slow_attention(config, params, observed, batch):
    """{(stack, kind): ([mean entropy of each layer], [largest logit of each layer])}."""
    found = {}
    for stack, kinds in tiny.stacks(config).items():
        side = "inputs" if stack == "encoder" else "targets"
        for index, kind in enumerate(kinds[:-1]):
            entropies, largest = [], []
            for layer in range(2):
                weights = {name: w[layer] for name, w in params[stack][kind].items()}
                stream = observed[stack].inputs[layer * len(kinds) + index]
                xs = reference.by_example(batch, side, stream)
                encoded = reference.by_example(batch, "inputs", observed["encoder"].final)
                others = encoded if kind == "cross_attention" else xs
                causal = stack == "decoder" and kind == "self_attention"
                logits = [
                    row[: t + 1] if causal else row
                    for x, other in zip(xs, others, strict=True)
                    for head in range(config.num_heads)
                    for t, row in enumerate(slow_logits(weights, x, other, head))
                ]
                shares = [np.exp(row) / np.sum(np.exp(row)) for row in logits]
                entropies.append(np.mean([-np.sum(p * np.log(p)) for p in shares]))
                largest.append(max(np.max(row) for row in logits))
            found[stack, kind] = entropies, largest
    return found


def slow_logits(weights, x, other, head):
    queries = x @ weights["query"][:, head] + weights["query_bias"][head]
    keys = other @ weights["key"][:, head]
    return queries @ keys.T / math.sqrt(queries.shape[-1])


def test_token_similarity_is_the_mean_cosine_of_pairs_of_a_text():
    _, _, observed, _ = seen(POST_LN)
    for stack, side in (("encoder", "inputs"), ("decoder", "targets")):
        found = diagnostics.token_similarity(observed[stack])
        for number, stream in enumerate(observed[stack].outputs):
            cosines = [
                a @ b / np.linalg.norm(a) / np.linalg.norm(b)
                for text in reference.by_example(tiny.packed_batch(), side, stream)
                for i, a in enumerate(text)
                for j, b in enumerate(text)
                if i != j
            ]
            np.testing.assert_allclose(found[number], np.mean(cosines), rtol=1e-4, atol=1e-6)


random_sign_step = jax.jit(diagnostics.random_sign_step)


def test_steps_move_the_kernels_of_sublayers_alone():
    config = tiny.config("admin", qk_norm=True)
    params = jax.device_get(tiny.random_parameters(config))
    gradient = jax.tree.map(lambda leaf: leaf - 0.5, params)
    stepped = {
        "random": random_sign_step(jax.random.key(0), params, 0.25),
        "gradient": jax.jit(diagnostics.gradient_sign_step)(gradient, params, 0.25),
    }
    kernels = ("query", "key", "value", "output", "up", "down")
    for name, after in stepped.items():
        for path, before in tiny.flat(params).items():
            step = np.asarray(tiny.flat(after)[path] - before)
            if not (path.startswith(("encoder/", "decoder/")) and path.endswith(kernels)):
                assert not np.any(step), (name, path)
            elif name == "gradient":
                expected = -0.25 * np.sign(before - 0.5)
                np.testing.assert_allclose(step, expected, rtol=1e-5, err_msg=path)
            else:
                np.testing.assert_allclose(np.abs(step), 0.25, rtol=1e-5, err_msg=path)
                # The mean of n signs has a standard deviation of n^-0.5.
                assert abs(np.mean(step)) < 5 * 0.25 * step.size**-0.5, path


def test_two_schemes_get_the_same_random_step():
    def steps(residual, seed):
        params = nn.unbox(tiny.abstract_parameters(tiny.config(residual)))
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
        return tiny.flat(jax.device_get(random_sign_step(jax.random.key(seed), zeros, 1.0)))

    ours, others = steps("post_ln", 0), steps("keel", 0)
    shared = [path for path in ours if path in others and np.any(ours[path])]
    assert {path.split("/")[1] for path in shared} == set(tiny.stacks(tiny.config())["decoder"])
    for path in shared:
        np.testing.assert_array_equal(ours[path], others[path])
    # Another seed and another kernel have steps of their own.
    path, other = "encoder/self_attention/query", "encoder/self_attention/key"
    assert np.any(ours[path] != steps("post_ln", 1)[path])
    assert np.any(ours[path] != ours[other])


def test_output_change_is_by_token_entry_and_square_of_the_step():
    params, _, before, _ = seen(POST_LN)
    moved = random_sign_step(jax.random.key(0), params, 0.1)
    _, after, _ = observe_function(POST_LN)(moved, tiny.packed_batch())
    for stack, side in (("encoder", "inputs"), ("decoder", "targets")):
        change = np.asarray(after[stack].final) - np.asarray(before[stack].final)
        tokens = np.concatenate(reference.by_example(tiny.packed_batch(), side, change))
        expected = np.mean([token @ token for token in tokens]) / (POST_LN.d_model * 0.1**2)
        found = diagnostics.output_change(before[stack], after[stack], 0.1)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def mean_loss(logits, batch):
    total, weight, _ = LOSS(logits, batch)
    return total / weight


@functools.cache
def gradient_function():
    """(params, batch) -> the norms of the outputs' gradients, and the gradient of the mean loss."""
    model = make(POST_LN)

    def loss(params, batch):
        return mean_loss(model.apply({"params": params}, batch, deterministic=True), batch)

    def gradients(params, batch):
        norms = diagnostics.output_gradient_norms(model, LOSS, params, batch)
        return norms, jax.grad(loss)(params, batch)

    return jax.jit(gradients)


def test_a_single_tokens_output_gradient_is_that_of_the_bias_that_is_added_to_it():
    """Post-LN adds a bias to every sublayer's output: where there is but one token, the gradients
    of both are the same. The rest of the batch is padding, which has none."""
    params = tiny.random_parameters(POST_LN)
    batch = tiny.pack([tiny.sentences((1, 1)), [], []])
    norms, gradient = jax.device_get(gradient_function()(params, batch))
    for stack, found in norms.items():
        assert np.all(found > 0)
        for norm, (layer, kind) in zip(found, sublayers(POST_LN, stack), strict=True):
            bias = gradient[stack][f"{kind}_residual"]["post_norm"]["bias"][layer]
            np.testing.assert_allclose(norm, np.linalg.norm(bias), rtol=1e-4, err_msg=kind)


def test_an_output_gradient_is_of_the_mean_loss_and_over_all_tokens():
    params, _, observed, _ = seen(POST_LN)
    batch, table = tiny.packed_batch(), params["embedding"]["table"]
    norms, _ = gradient_function()(params, batch)

    def loss(final):
        return mean_loss(final @ table.T, batch)

    expected = np.linalg.norm(jax.grad(loss)(observed["decoder"].outputs[-1]))
    np.testing.assert_allclose(norms["decoder"][-1], expected, rtol=1e-4)


def test_update_ratio_is_of_the_kernels_of_a_layer():
    config = tiny.config("admin")
    before, after = (jax.device_get(tiny.random_parameters(config, seed)) for seed in (0, 1))
    found = jax.jit(diagnostics.update_ratio)(before, after)
    assert set(found) == {"encoder", "decoder"}
    kernels = ("query", "key", "value", "output", "up", "down")
    for stack, ratios in found.items():
        paths = [path for path in tiny.flat(before[stack]) if path.endswith(kernels)]
        for layer, ratio in enumerate(ratios):
            old, new = (
                np.concatenate([np.ravel(tiny.flat(tree[stack])[path][layer]) for path in paths])
                for tree in (before, after)
            )
            expected = np.linalg.norm(new - old) / np.linalg.norm(old)
            np.testing.assert_allclose(ratio, expected, rtol=1e-5)


@pytest.mark.parametrize("shape", tiny.SHAPES)
def test_training_can_log_the_diagnostics_of_every_shape(shape):
    config = tiny.config("admin", **tiny.SHAPES[shape])
    params = tiny.abstract_parameters(config)
    batch = tiny.read_by(config, tiny.packed_batch())
    if shape != "encoder_decoder" and "targets" not in batch:
        batch |= {"targets": batch["inputs"], "labels": batch["inputs"] % 5}
    losses = {
        **dict.fromkeys(("encoder_decoder", "decoder_only"), objectives.next_token),
        "masked_tokens": objectives.masked_tokens,
    }
    loss = losses.get(shape, objectives.labels)
    loss = functools.partial(loss, label_smoothing=0.0, z_loss=0.0)
    diagnose = diagnostics.make_diagnose(make(config), loss)
    found = jax.eval_shape(diagnose, *(nn.unbox(params),) * 2, batch)
    expected = {}
    for stack, kinds in tiny.stacks(config).items():
        of_sublayers = ("branch_variance", "dependency", "output_gradient_norm", "token_similarity")
        expected |= {f"{stack}/{name}": (2 * len(kinds),) for name in of_sublayers}
        expected |= {f"{stack}/update_ratio": (2,), f"{stack}/output_change": ()}
        names = ("entropy", "largest_logit")
        expected |= {f"{stack}/{kind}/{name}": (2,) for kind in kinds[:-1] for name in names}
    assert {name: values.shape for name, values in found.items()} == expected


def test_training_logs_the_parameters_before_a_step_and_the_change_that_it_made(monkeypatch):
    """Of the first rows of a batch: those beyond change nothing."""
    packed, more = tiny.packed_batch(), tiny.pack([tiny.sentences((5, 5), seed=1)])
    monkeypatch.setattr(diagnostics, "ROWS", len(packed["inputs"]))
    batch = jax.tree.map(lambda *rows: np.concatenate(rows), packed, more)
    before, after = (tiny.random_parameters(POST_LN, seed) for seed in (0, 1))
    found = jax.jit(diagnostics.make_diagnose(make(POST_LN), LOSS))(before, after, batch)

    look = observe_function(POST_LN)
    (_, olds, measured), (_, news, _) = look(before, packed), look(after, packed)
    norms, _ = gradient_function()(before, packed)
    ratios = diagnostics.update_ratio(before, after)
    expected = {}
    for stack, old in olds.items():
        expected |= {
            f"{stack}/branch_variance": diagnostics.branch_variance(old),
            f"{stack}/dependency": measured[stack]["own_dependency"],
            f"{stack}/output_gradient_norm": norms[stack],
            f"{stack}/token_similarity": diagnostics.token_similarity(old),
            f"{stack}/update_ratio": ratios[stack],
            f"{stack}/output_change": diagnostics.output_change(old, news[stack]),
        }
        for kind in old.entropy:
            entropy = diagnostics.attention_entropy(old, kind)
            largest = diagnostics.largest_logit(old, kind)
            expected |= {
                f"{stack}/{kind}/entropy": entropy,
                f"{stack}/{kind}/largest_logit": largest,
            }
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_profile_is_what_admins_profiling_measured():
    """With the very dropout of the draw: so each omega squared is the sum of what stands before."""
    config = tiny.config("admin", dropout_rate=0.2, embedding_dropout_rate=0.2)
    key, batch = jax.random.key(3), tiny.packed_batch()
    params = nn.unbox(tiny.init_function(config)(key, batch))
    found = diagnostics.profile(make(config), params, batch, key)
    assert set(found) == {"encoder", "decoder"}
    for stack, rows in found.items():
        expected = [(layer + 1, kind) for layer, kind in sublayers(config, stack)]
        assert [(row["layer"], row["kind"]) for row in rows] == expected
        assert [row["sublayer"] for row in rows] == list(range(1, len(rows) + 1))
        for row, (layer, kind) in zip(rows, sublayers(config, stack), strict=True):
            omega = params[stack][f"{kind}_residual"]["shortcut"]["omega"][layer, 0]
            np.testing.assert_allclose(row["omega"], omega, rtol=1e-6)
        sums = [row["shortcut_variance"] + row["branch_variance"] for row in rows]
        squares = [row["omega"] ** 2 for row in rows]
        np.testing.assert_allclose(squares[1:], sums[:-1], rtol=1e-5)


def test_only_stacks_that_are_profiled_have_a_profile():
    params = tiny.random_parameters(PRE_LN)
    key = jax.random.key(0)
    assert diagnostics.profile(make(PRE_LN), params, tiny.packed_batch(), key) == {}
