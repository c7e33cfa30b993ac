"""The encoder-decoder against a slow NumPy forward pass, and the properties it keeps exactly."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.models import reference, tiny
from transformer_jax.models.transformer import EncoderDecoder

# Float32 sums in another order.
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)

VARIANTS = {
    "post_ln": dict(residual="post_ln"),
    "pre_ln": dict(residual="pre_ln"),
    "admin": dict(residual="admin"),
    "admin_rms_gelu": dict(
        residual="admin", norm="rms_norm", activation="gelu", tied_embeddings="decoder"
    ),
    "post_ln_learned_swiglu": dict(
        residual="post_ln", positions="learned", activation="swiglu", tied_embeddings="none"
    ),
    # 3 heads of 7 in a d_model of 16, and stacks of unequal depth.
    "pre_ln_odd_heads": dict(
        residual="pre_ln", norm="rms_norm", num_heads=3, head_dim=7, num_encoder_layers=1,
        num_decoder_layers=3, positions="learned", activation="swiglu",
    ),
}  # fmt: skip


def by_example(batch, logits):
    """The logits of every example of a batch, in the order of `reference.split`."""
    segments = batch["targets_segment_ids"]
    return [np.asarray(logits)[row, segments[row] == s] for row, s in reference.split(batch)]


# The forward pass


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_those_of_a_slow_forward_pass(name):
    config = tiny.config(**VARIANTS[name])
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    logits = tiny.apply_function(config)(params, batch)
    assert logits.dtype == jnp.float32
    for ours, theirs in zip(
        by_example(batch, logits), reference.forward(params, batch, config), strict=True
    ):
        assert_close(ours, theirs)


def test_reference_sees_every_parameter():
    """A reference that ignored a parameter could agree with a model that ignores it too."""
    config = tiny.config(**VARIANTS["pre_ln_odd_heads"])
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    before = np.concatenate(reference.forward(params, batch, config))
    for path in tiny.flat(params):
        changed = jax.tree_util.tree_map_with_path(
            lambda p, x, path=path: x + 0.1 * np.arange(x.size).reshape(x.shape) % 0.7
            if "/".join(key.key for key in p) == path else x,
            params,
        )  # fmt: skip
        after = np.concatenate(reference.forward(changed, batch, config))
        assert np.abs(after - before).max() > 1e-3, path


# Who sees whom


@pytest.mark.parametrize("residual", tiny.SCHEMES)
def test_gradients_are_zero_exactly_where_attention_may_not_look(residual):
    """d logits[t] / d input[s] through learned positions, a row of the table for every slot.

    A target slot reaches only the slots up to it of its own example; a source slot reaches the
    whole of its own example and nothing else, in the encoder and through cross-attention.
    """
    config = tiny.config(residual=residual, positions="learned")
    batch = tiny.packed_batch()
    batch["inputs_positions"] = np.tile(np.arange(tiny.SOURCE_LENGTH, dtype=np.int32), (3, 1))
    batch["targets_positions"] = np.tile(np.arange(tiny.TARGET_LENGTH, dtype=np.int32), (3, 1))
    params = tiny.random_parameters(config)
    projection = np.random.default_rng(1).normal(size=config.vocab_size).astype(np.float32)

    @tiny.jit
    def jacobians(tables):
        def readings(tables):
            changed = params | {k: {"table": v} for k, v in tables.items()}
            return tiny.logits(config, changed, batch) @ projection

        return jax.jacrev(readings)(tables)

    names = ("source_positions", "target_positions")
    jacobian = jacobians({name: params[name]["table"] for name in names})
    source_segments = batch["inputs_segment_ids"]
    target_segments = batch["targets_segment_ids"]
    for row, t in itertools.product(*map(range, target_segments.shape)):
        if target_segments[row, t] == 0:
            continue
        seen = np.abs(jacobian["source_positions"][row, t]).max(axis=-1) > 0
        own = source_segments[row] == target_segments[row, t]
        np.testing.assert_array_equal(seen[: tiny.SOURCE_LENGTH], own)
        seen = np.abs(jacobian["target_positions"][row, t]).max(axis=-1) > 0
        own = target_segments[row] == target_segments[row, t]
        past = np.arange(tiny.TARGET_LENGTH) <= t
        np.testing.assert_array_equal(seen[: tiny.TARGET_LENGTH], own & past)


@pytest.mark.parametrize("residual", tiny.SCHEMES)
def test_a_target_changes_only_later_logits(residual):
    config = tiny.config(residual=residual)
    params = tiny.random_parameters(config)
    ((source, target),) = tiny.sentences((5, tiny.TARGET_LENGTH))
    altered = [
        (source, np.where(np.arange(len(target)) == t, (target + 3) % 19 + 4, target))
        for t in range(len(target))
    ]
    apply = tiny.apply_function(config)
    for t, pair in enumerate(altered):
        rows = apply(params, tiny.pack([[(source, target)], [pair], []]))
        assert np.array_equal(rows[0, : t + 1], rows[1, : t + 1])
        if t + 1 < len(target):
            assert np.all(np.abs(rows[0, t + 1 :] - rows[1, t + 1 :]).max(axis=-1) > 0)


# Packing and padding


@pytest.mark.parametrize("residual", tiny.SCHEMES)
def test_packed_equals_unpacked(residual):
    config = tiny.config(residual=residual)
    params = tiny.random_parameters(config)
    apply = tiny.apply_function(config)
    pairs = tiny.sentences((4, 3), (3, 4), (2, 1), (5, 3), (2, 4), (2, 1))
    packed = tiny.pack([pairs[:3], pairs[3:], []])
    alone = [tiny.pack([[a], [b], []]) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    ours = by_example(packed, apply(params, packed))
    each = [logits for batch in alone for logits in by_example(batch, apply(params, batch))]
    for a, b in zip(ours, each, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("residual", tiny.SCHEMES)
def test_padding_does_not_exist(residual):
    """What stands in padded slots changes no bit, and more padding nothing but rounding."""
    config = tiny.config(residual=residual)
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    apply = tiny.apply_function(config)
    logits = by_example(batch, apply(params, batch))
    other = dict(batch)
    for name in ("inputs", "targets"):
        other[name] = np.where(batch[f"{name}_segment_ids"] > 0, batch[name], 7)
    for a, b in zip(logits, by_example(other, apply(params, other)), strict=True):
        np.testing.assert_array_equal(a, b)
    longer = {k: np.pad(v, ((0, 1), (0, 3))) for k, v in batch.items()}
    for a, b in zip(logits, by_example(longer, apply(params, longer)), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("residual", tiny.SCHEMES)
def test_gradients_reach_every_parameter_and_rows_of_padding_stay_finite(residual):
    config = tiny.config(residual=residual)
    params = tiny.random_parameters(config)
    a, b = tiny.sentences((5, 4), (9, 8))
    batch = tiny.pack([[a], [b], []])

    def total(params, batch):
        logits = tiny.logits(config, params, batch)
        return jnp.sum(jnp.square(logits)), logits

    gradient = tiny.jit(jax.grad(total, has_aux=True))
    gradients, logits = gradient(params, batch)
    assert np.all(np.isfinite(logits))
    for path, leaf in tiny.flat(gradients).items():
        assert np.all(np.isfinite(leaf)) and np.any(leaf), path
    gradients, logits = gradient(params, tiny.pack([[], [], []]))
    assert all(np.all(np.isfinite(leaf)) for leaf in (logits, *jax.tree.leaves(gradients)))


# Decoding with a cache


@pytest.mark.parametrize(
    ("beams", "variant"),
    [
        (1, dict(residual="post_ln")),
        *((2, dict(residual=residual)) for residual in tiny.SCHEMES),
        (2, dict(residual="pre_ln", positions="learned", norm="rms_norm", tied_embeddings="none")),
    ],
)
def test_cached_decoding_equals_uncached(beams, variant):
    config = tiny.config(**variant)
    params = tiny.random_parameters(config)
    model, length = EncoderDecoder(config), tiny.TARGET_LENGTH
    sources = [pair[0] for pair in tiny.sentences((9, 1), (4, 1), (6, 1))]
    targets = [pair[1] for pair in tiny.sentences(*[(1, length)] * (3 * beams), seed=1)]
    rows = [[(sources[n // beams], target)] for n, target in enumerate(targets)]
    expected = tiny.apply_function(config)(params, tiny.pack(rows))

    inputs = tiny.pack([[(source, targets[0])] for source in sources])
    inputs = {name: value for name, value in inputs.items() if name.startswith("inputs")}
    room = length + 2  # more than is used, so that unused slots are seen to stay unseen
    start = tiny.jit(lambda p, b: model.apply({"params": p}, b, room, method="start"))
    step = tiny.jit(lambda p, *state: model.apply({"params": p}, *state, method="step"))
    context, cache = start(params, inputs)
    assert all(leaf.shape[:2] == (config.num_decoder_layers, 3) for leaf in jax.tree.leaves(cache))
    cache = jax.tree.map(lambda leaf: jnp.repeat(leaf, beams, axis=1), cache)
    tokens = np.full(len(targets), config.bos_id, np.int32)
    for t in range(length):
        logits, cache = step(params, context, cache, tokens, jnp.int32(t))
        assert logits.dtype == jnp.float32
        assert_close(logits, expected[:, t], err_msg=f"position {t}")
        tokens = np.array([target[t] for target in targets])


# Parameters and precision


@pytest.mark.parametrize("residual", tiny.SCHEMES)
def test_bfloat16_is_close_to_float32(residual):
    """Operands of products are rounded to 8 bits (2^-9 relative each, at random), some dozens in a
    row; the residual stream, norms and logits are not."""
    exact, rounded = (
        tiny.config(residual=residual),
        tiny.config(residual=residual, dtype="bfloat16"),
    )
    params, batch = tiny.random_parameters(exact), tiny.packed_batch()
    real = batch["targets_segment_ids"] > 0
    expected = np.asarray(tiny.apply_function(exact)(params, batch))[real]
    logits = tiny.apply_function(rounded)(params, batch)
    assert logits.dtype == jnp.float32
    error = np.std(np.asarray(logits)[real] - expected) / np.std(expected)
    assert 2**-12 < error < 2**-6
    for path, leaf in tiny.flat(nn.unbox(tiny.abstract_parameters(rounded))).items():
        assert leaf.dtype == jnp.float32, path


def equations(jaxpr):
    """Every equation of a traced program, those of inner programs (scans) included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def test_bfloat16_is_for_products_alone():
    """At two layers no error would betray a residual stream or a softmax in bfloat16, so the
    traced program is read: what products, exponentials (softmax), square roots (norms) and
    the carries of the scans over layers (the stream) are computed in."""
    config = tiny.config(dtype="bfloat16", head_dim=5)  # no size equals a length
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    traced = jax.make_jaxpr(functools.partial(tiny.logits, config))(params, batch)
    operands, results, stream = set(), set(), []
    for equation in equations(traced.jaxpr):
        name, avals = equation.primitive.name, [v.aval for v in equation.invars]
        if name == "dot_general":
            operands |= {aval.dtype for aval in avals}
            out = equation.outvars[0].aval
            if out.ndim == 4 and config.head_dim not in out.shape:  # scores: B, H, T, S
                results.add(out.dtype)
        elif name in ("exp", "rsqrt"):
            results |= {aval.dtype for aval in avals}
        elif name == "scan":
            start = equation.params["num_consts"]
            carry = avals[start : start + equation.params["num_carry"]]
            stream += [aval.dtype for aval in carry if aval.shape]
    assert operands == {jnp.dtype(jnp.bfloat16)}
    assert results == {jnp.dtype(jnp.float32)}
    assert stream == [jnp.float32, jnp.float32]


def expected_shapes(config):
    """The parameter tree as the design states it, path to shape."""
    V, D, F = config.vocab_size, config.d_model, config.d_ff
    H, K = config.num_heads, config.head_dim
    gated = config.activation == "swiglu"
    norm = {"scale": (D,)} | ({"bias": (D,)} if config.norm == "layer_norm" else {})
    attention = {
        "query": (D, H, K), "query_bias": (H, K), "key": (D, H, K), "value": (D, H, K),
        "value_bias": (H, K), "output": (H, K, D), "output_bias": (D,),
    }  # fmt: skip
    feed_forward = {"up": (D, F), "up_bias": (F,), "down": (F, D), "down_bias": (D,)}
    feed_forward |= {"gate": (D, F), "gate_bias": (F,)} if gated else {}
    kinds = {"encoder": ("self_attention",), "decoder": ("self_attention", "cross_attention")}
    norm_name = "pre_norm" if config.residual == "pre_ln" else "post_norm"
    shapes = {}
    for stack, attentions in kinds.items():
        L = getattr(config, f"num_{stack}_layers")
        for sublayer in (*attentions, "feed_forward"):
            leaves = feed_forward if sublayer == "feed_forward" else attention
            shapes |= {f"{stack}/{sublayer}/{k}": (L, *v) for k, v in leaves.items()}
            shapes |= {
                f"{stack}/{sublayer}_residual/{norm_name}/{k}": (L, *v) for k, v in norm.items()
            }
            if config.residual == "admin":
                shapes[f"{stack}/{sublayer}_residual/shortcut/omega"] = (L, D)
        if config.residual == "pre_ln":
            shapes |= {f"{stack}_norm/{k}": v for k, v in norm.items()}
    if config.tied_embeddings == "all":
        shapes["embedding/table"] = (V, D)
    else:
        shapes |= {"source_embedding/table": (V, D), "target_embedding/table": (V, D)}
    if config.tied_embeddings == "none":
        shapes["logits/kernel"] = (D, V)
    if config.positions == "learned":
        table = (config.max_length, D)
        shapes |= {"source_positions/table": table, "target_positions/table": table}
    return shapes


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_have_their_shapes_and_logical_axes(name):
    config = tiny.config(**VARIANTS[name])
    boxed = tiny.abstract_parameters(config)
    shapes = {path: leaf.shape for path, leaf in tiny.flat(nn.unbox(boxed)).items()}
    assert shapes == expected_shapes(config)
    boxes = tiny.flat(boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
    axes = {"layers", "length", "embed", "heads", "head_dim", "mlp", "vocab"}
    for path, box in boxes.items():
        assert isinstance(box, nn.LogicallyPartitioned), path
        assert len(box.names) == len(shapes[path]) and set(box.names) <= axes, path
        assert len(set(box.names)) == len(box.names), f"{path}: one mesh axis cannot serve two"
        assert (box.names[0] == "layers") == path.startswith(("encoder/", "decoder/")), path


def test_too_long_a_row_for_learned_positions():
    config = tiny.config(positions="learned", max_length=5)
    short = tiny.pack([tiny.sentences((5, 5))], 5, 5)
    abstract = nn.unbox(jax.eval_shape(
        functools.partial(EncoderDecoder(config).init, deterministic=True),
        jax.random.key(0), short)["params"])  # fmt: skip
    for lengths in ((6, 5), (5, 6)):
        batch = tiny.pack([tiny.sentences((5, 5))], *lengths)
        with pytest.raises(ValueError, match=r"6 tokens.*5.*max_length"):
            jax.eval_shape(tiny.apply_function(config), abstract, batch)


# Initial values


def test_kernels_are_xavier_uniform_over_their_true_matrices():
    """Bound sqrt(6 / (fan_in + fan_out)); with n draws the largest lies within 1 % of it but for a
    chance of 0.99^n, below 1e-8 for the smallest kernel here."""
    config = tiny.config(
        d_model=32, num_heads=4, head_dim=12, d_ff=80, activation="swiglu", vocab_size=70,
        tied_embeddings="none", num_encoder_layers=3, num_decoder_layers=4,
    )  # fmt: skip
    D, heads, F, V = config.d_model, 48, config.d_ff, config.vocab_size
    fans = {
        "query": D + heads, "key": D + heads, "value": D + heads, "output": heads + D,
        "up": D + F, "gate": D + F, "down": F + D, "kernel": D + V,
    }  # fmt: skip
    checked = 0
    for path, kernel in tiny.flat(tiny.initial_parameters(config)).items():
        leaf = path.split("/")[-1]
        if leaf.endswith("bias"):
            assert not np.any(kernel), path
        elif leaf == "scale":
            assert np.all(kernel == 1), path
        elif leaf == "table":
            deviations = np.array([np.mean(kernel), np.std(kernel) * D**0.5 - 1])
            # Standard errors of a normal sample's mean and standard deviation, five of them.
            assert np.all(np.abs(deviations) < 5 * np.array([D**-0.5, 0.5**0.5]) / kernel.size**0.5)
        else:
            bound = (6 / fans[leaf]) ** 0.5
            assert 0.99 * bound < np.max(np.abs(kernel)) <= bound, path
            # The variance of n uniform draws has a relative standard error of sqrt(0.8 / n).
            ratio = np.var(kernel) / (bound**2 / 3)
            assert abs(ratio - 1) < 5 * (0.8 / kernel.size) ** 0.5, path
            checked += 1
    assert checked == 7 + 11 + 1


def test_no_two_kernels_share_a_draw():
    kernels = []
    for path, leaf in tiny.flat(tiny.initial_parameters(tiny.config())).items():
        if path.split("/")[-1] in ("query", "key", "value", "output", "up", "down"):
            kernels += [np.sort(layer.ravel())[:4].tobytes() for layer in np.asarray(leaf)]
    assert len(kernels) == 2 * (6 + 10)
    assert len(set(kernels)) == len(kernels)


def test_schemes_share_the_draw_of_every_common_parameter():
    trees = [
        tiny.flat(tiny.initial_parameters(tiny.config(residual=residual)))
        for residual in tiny.SCHEMES
    ]
    for a, b in itertools.combinations(trees, 2):
        common = a.keys() & b.keys()
        assert {path for path in a if "norm" not in path and "shortcut" not in path} <= common
        for path in common:
            assert np.array_equal(a[path], b[path]), path
    other = tiny.flat(tiny.initial_parameters(tiny.config(), seed=4))
    assert not np.array_equal(other["embedding/table"], trees[0]["embedding/table"])
