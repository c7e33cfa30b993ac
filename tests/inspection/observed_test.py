"""What a pass shows and what it tells, against slow NumPy."""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.inspection.models import (
    ADMIN,
    POST_LN,
    PRE_LN,
    forward_pass,
    gradient_function,
    make,
    mean_loss,
    observe_function,
    sublayers,
)
from tests.models import reference, tiny
from tests.stepwise import stepwise
from transformer_jax.inspection.observed import (
    branch_variance,
    largest_logit,
    mean_over_queries,
    observe,
    output_change,
    token_similarity,
)
from transformer_jax.models import shapes as transformer
from transformer_jax.models.layers import attention
from transformer_jax.models.transformer import residual


def test_observing_changes_no_logits_and_numbers_sublayers_as_they_run():
    params, outputs, observed = forward_pass(PRE_LN)
    logits = outputs.arrays()
    expected = tiny.apply_function(PRE_LN)(params, tiny.packed_batch())
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    view = jax.device_get(observed["decoder"])
    assert len(view.outputs) == len(sublayers(PRE_LN, "decoder"))
    np.testing.assert_array_equal(view.inputs[1:], view.outputs[:-1])
    np.testing.assert_allclose(view.inputs + view.branches, view.outputs, rtol=1e-5, atol=1e-5)
    final = view.final[view.real] @ np.asarray(params["embedding"]["table"]).T
    np.testing.assert_allclose(final, logits[view.real], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_kernel_that_holds_no_weights_shows_the_same():
    config = dataclasses.replace(PRE_LN, attention_kernel="splash")
    params, batch = tiny.random_parameters(PRE_LN), tiny.packed_batch()
    outputs, expected = (stepwise(observe)(make(c), params, batch) for c in (config, PRE_LN))
    jax.tree.map(np.testing.assert_array_equal, outputs, expected)


def test_what_is_not_asked_for_is_not_computed(monkeypatch):
    """A training pass costs what it costs of a model that shows nothing."""
    params, batch = tiny.random_parameters(ADMIN), tiny.packed_batch()

    def cost(**options):
        def total(params) -> tuple:
            out: Any = make(ADMIN).apply({"params": params}, batch, deterministic=True, **options)
            return jnp.sum(out[0] if options else out), out

        costs: Any = jax.jit(jax.grad(total, has_aux=True)).lower(params).cost_analysis()
        return {name: costs[name] for name in ("flops", "transcendentals", "bytes accessed")}

    ours, all_shown = cost(), cost(mutable=["intermediates"])
    for module in (attention, residual, transformer):
        monkeypatch.setattr(module, "observe", lambda module, **values: None)
    monkeypatch.setattr(nn.Module, "perturb", lambda module, name, value: value)
    assert ours == cost()
    assert all_shown["transcendentals"] > ours["transcendentals"]


def test_branch_variance_is_over_the_entries_of_real_tokens():
    _, _, observed = forward_pass(ADMIN)
    view = jax.device_get(observed["decoder"])
    expected = [np.var(branch[view.real]) for branch in view.branches]
    np.testing.assert_allclose(jax.jit(branch_variance)(view), expected, rtol=1e-5)


def test_attention_is_measured_at_every_real_query():
    params, _, observed = jax.device_get(forward_pass(POST_LN))
    expected = slow_attention(POST_LN, params, observed, tiny.packed_batch())
    for (stack, kind), slow in expected.items():
        view = observed[stack]
        largest = jax.jit(largest_logit, static_argnums=1)(view, kind)
        np.testing.assert_allclose(largest, slow.pop("largest"), rtol=1e-4)
        for name, values in slow.items():
            mean = jax.jit(mean_over_queries)(view, getattr(view, name)[kind])
            np.testing.assert_allclose(mean, values, rtol=1e-4, err_msg=name)


def test_values_are_measured_at_every_key():
    """In the first layer of each kind of attention, padding included."""
    params, _, observed = jax.device_get(forward_pass(POST_LN))
    decoder, encoded = observed["decoder"], observed["encoder"].final
    for kind, keys in (("self_attention", decoder.inputs[0]), ("cross_attention", encoded)):
        w = params["decoder"][kind]
        values = np.einsum("BSD,DHK->BHSK", keys, w["value"][0]) + w["value_bias"][0][:, None]
        expected = np.linalg.norm(values, axis=-1)
        np.testing.assert_allclose(decoder.value_norm[kind][0], expected, rtol=1e-4, atol=1e-5)


def test_the_largest_logit_is_shown_as_it_is_before_it_is_capped():
    """In the first layer, whose queries and keys no cap has changed; capped it is at most 0.1."""
    config = dataclasses.replace(PRE_LN, attention_softcap=0.1)
    params, batch = tiny.random_parameters(PRE_LN), tiny.packed_batch()
    (_, with_cap), (_, plain) = (observe_function(c)(params, batch) for c in (config, PRE_LN))
    capped, largest = (x["decoder"].largest_logit["self_attention"][0] for x in (with_cap, plain))
    np.testing.assert_allclose(capped, largest, rtol=1e-5)
    assert np.max(largest) > 0.1
    first, second = (np.asarray(observed["decoder"].outputs) for observed in (with_cap, plain))
    assert not np.allclose(first, second)


def slow_attention(config, params, observed, batch):
    """{(stack, kind): {reading: its value in each layer}}."""
    readings = {}
    for stack, kinds in tiny.stacks(config).items():
        side = "inputs" if stack == "encoder" else "targets"
        for index, kind in enumerate(kinds[:-1]):
            rows = []
            for layer in range(2):
                weights = {name: w[layer] for name, w in params[stack][kind].items()}
                stream = observed[stack].inputs[layer * len(kinds) + index]
                xs = reference.by_example(batch, side, stream)
                encoded = reference.by_example(batch, "inputs", observed["encoder"].final)
                others = encoded if kind == "cross_attention" else xs
                causal = stack == "decoder" and kind == "self_attention"
                pairs = [
                    (query, keys[: t + 1] if causal else keys)
                    for x, other in zip(xs, others, strict=True)
                    for queries, keys in slow_heads(weights, x, other)
                    for t, query in enumerate(queries)
                ]
                logits = [keys @ query for query, keys in pairs]
                shares = [np.exp(row) / np.sum(np.exp(row)) for row in logits]
                rows.append(
                    {
                        "entropy": np.mean([-np.sum(p * np.log(p)) for p in shares]),
                        "largest": max(np.max(row) for row in logits),
                        "query_norm": np.mean([np.linalg.norm(query) for query, _ in pairs]),
                        "key_norm": np.mean(
                            [np.mean(np.linalg.norm(keys, axis=-1)) for _, keys in pairs]
                        ),
                    }
                )
            readings[stack, kind] = {name: [row[name] for row in rows] for name in rows[0]}
    return readings


def slow_heads(weights, x, other):
    """Queries, scaled as their products are, and keys of each head."""
    for head in range(weights["query"].shape[1]):
        queries = x @ weights["query"][:, head] + weights["query_bias"][head]
        yield queries / math.sqrt(queries.shape[-1]), other @ weights["key"][:, head]


def test_output_change_is_by_token_entry_and_square_of_the_step():
    params, _, before = forward_pass(POST_LN)
    moved = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.sign(jnp.sin(99 * leaf)), params)
    _, after = observe_function(POST_LN)(moved, tiny.packed_batch())
    for stack, side in (("encoder", "inputs"), ("decoder", "targets")):
        change = np.asarray(after[stack].final) - np.asarray(before[stack].final)
        tokens = np.concatenate(reference.by_example(tiny.packed_batch(), side, change))
        expected = np.mean([token @ token for token in tokens]) / (POST_LN.d_model * 0.1**2)
        mean_change = jax.jit(output_change)(before[stack], after[stack], 0.1)
        np.testing.assert_allclose(mean_change, expected, rtol=1e-5)


def test_token_similarity_is_the_mean_cosine_of_pairs_of_a_text():
    _, _, observed = forward_pass(POST_LN)
    for stack, side in (("encoder", "inputs"), ("decoder", "targets")):
        means = jax.jit(token_similarity)(observed[stack])
        for number, stream in enumerate(observed[stack].outputs):
            cosines = [
                a @ b / np.linalg.norm(a) / np.linalg.norm(b)
                for text in reference.by_example(tiny.packed_batch(), side, stream)
                for i, a in enumerate(text)
                for j, b in enumerate(text)
                if i != j
            ]
            np.testing.assert_allclose(means[number], np.mean(cosines), rtol=1e-4, atol=1e-6)


def test_a_single_tokens_output_gradient_is_that_of_the_bias_that_is_added_to_it():
    """Post-LN adds a bias to every sublayer's output: where there is but one token, both have the
    same gradient. The rest of the batch is padding, which has none."""
    params = tiny.random_parameters(POST_LN)
    batch = tiny.pack([tiny.sentences((1, 1)), [], []])
    norms, gradient = jax.device_get(gradient_function()(params, batch))
    for stack, stack_norms in norms.items():
        assert np.all(stack_norms > 0)
        for norm, (layer, kind) in zip(stack_norms, sublayers(POST_LN, stack), strict=True):
            bias = gradient[stack][f"{kind}_residual"]["post_norm"]["bias"][layer]
            np.testing.assert_allclose(norm, np.linalg.norm(bias), rtol=1e-4, err_msg=kind)


def test_an_output_gradient_is_of_the_mean_loss_and_over_all_tokens():
    params, _, observed = forward_pass(POST_LN)
    batch, table = tiny.packed_batch(), params["embedding"]["table"]
    norms, _ = gradient_function()(params, batch)

    def loss(final):
        return mean_loss(final @ table.T, batch)

    expected = np.linalg.norm(jax.jit(jax.grad(loss))(observed["decoder"].outputs[-1]))
    np.testing.assert_allclose(norms["decoder"][-1], expected, rtol=1e-4)
