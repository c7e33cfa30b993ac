"""Compute in bfloat16: what is rounded, and what stays float32."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.models import tiny

NEAR = [
    tiny.config(**(tiny.SHAPES[shape] | dict(residual=residual, positions="rotary") | choices))
    for shape, residual, choices in [
        ("encoder_decoder", "admin", {}),
        ("tags", "sub_ln", dict(qk_norm=True)),
        ("decoder_only", "residual_dual", {}),
        ("mean_classes", "post_ln", dict(attention_score="additive")),
    ]
]


@pytest.mark.parametrize("exact", [*NEAR, tiny.recurrent("rnnsearch"), tiny.recurrent("lstmn")])
def test_bfloat16_is_close_to_float32(exact):
    """Operands of products are rounded to 8 bits (2^-9 relative each, at random), some dozens in a
    row; what runs through the layers, norms and logits are not."""
    rounded = dataclasses.replace(exact, dtype="bfloat16")
    params, batch = tiny.random_parameters(exact), tiny.packed_batch()
    real = batch[f"{tiny.side_of_logits(exact)}_segment_ids"] > 0
    expected = np.asarray(tiny.apply_function(exact)(params, batch))[real]
    logits = tiny.apply_function(rounded)(params, batch)
    assert logits.dtype == jnp.float32
    error = np.std(np.asarray(logits)[real] - expected) / np.std(expected)
    assert 2**-12 < error < 2**-6


@pytest.mark.parametrize("config", [*NEAR, tiny.recurrent("rnnsearch"), tiny.recurrent("lstmn")])
def test_what_is_held_in_bfloat16_is_computed_with_in_float32(config):
    """The logits are those of the same numbers in float32, to the rounding of float32."""
    batch, half = tiny.packed_batch(), jax.tree.map(jnp.bfloat16, tiny.random_parameters(config))
    exact = jax.tree.map(jnp.float32, half)
    logits, expected = (tiny.apply_function(config)(params, batch) for params in (half, exact))
    tiny.assert_close(logits, expected)


def equations(jaxpr):
    """Every equation of a traced program, those of inner programs (scans) included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


SCORES = itertools.cycle(
    [
        {},
        dict(qk_norm=True),
        dict(attention_score="additive"),
        dict(qk_norm=True, attention_score="dot_product"),
    ]
)


@pytest.mark.parametrize(
    ("choices", "turn"), tiny.every_second_long(zip(SCORES, tiny.TURNS, strict=False))
)
def test_bfloat16_is_for_products_alone(choices, turn):
    """At two layers no error would betray a residual stream or a softmax in bfloat16, so the
    traced program is read: what products, exponentials (softmax), square roots (norms) and
    the carries of the scans over layers (the stream) are computed in."""
    # No size equals a length.
    shape, residual, _ = turn
    shape = shape.replace("mean_classes", "tags")  # a mean over a text is a product in float32
    config = tiny.config(residual, **tiny.SHAPES[shape], **choices, dtype="bfloat16", head_dim=5)
    params, batch = nn.unbox(tiny.abstract_parameters(config)), tiny.packed_batch()
    for path, leaf in tiny.flat(params).items():
        assert leaf.dtype == jnp.float32, path
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
            # Without a cache, nothing leaves it but the carry: the stream, what the scheme keeps
            # beside it, and omega, a number.
            stream += [v.aval.dtype for v in equation.outvars if v.aval.shape]
    assert operands == {jnp.dtype(jnp.bfloat16)}
    assert results == {jnp.dtype(jnp.float32)}
    assert set(stream) == {jnp.dtype(jnp.float32)} and len(stream) >= len(tiny.stacks(config))
