"""The three shapes against slow forward passes in NumPy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny

# Float32 sums in another order.
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)

HEADS = ("masked_tokens", "mean_classes", "first_classes", "tags")
POSITIONS = ("sinusoidal", "learned", "rotary")
OTHER_CHOICES = (
    dict(),
    dict(norm="rms_norm", activation="gelu", tied_embeddings="decoder"),
    dict(activation="swiglu", tied_embeddings="none", embedding_norm=True),
    # 3 heads of 10 in a d_model of 16, and stacks of unequal depth.
    dict(
        norm="rms_norm", num_heads=3, head_dim=10, num_encoder_layers=1, num_decoder_layers=3,
        activation="swiglu", embedding_norm=True,
    ),
)  # fmt: skip


def cases():
    """Every architecture with every scheme and kind of positions; the other choices take turns."""
    heads, choices = itertools.cycle(HEADS), itertools.cycle(OTHER_CHOICES)
    for shape, residual, positions in itertools.product(
        ("encoder_decoder", "encoder_only", "decoder_only"), tiny.SCHEMES, POSITIONS
    ):
        shape = next(heads) if shape == "encoder_only" else shape
        changes = tiny.SHAPES[shape] | dict(residual=residual, positions=positions)
        name = f"{shape}-{residual}-{positions}"
        yield pytest.param(tiny.config(**changes, **next(choices)), id=name)


@pytest.mark.parametrize("config", list(cases()))
def test_logits_equal_those_of_a_slow_forward_pass(config):
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    logits = tiny.apply_function(config)(params, batch)
    assert logits.dtype == jnp.float32
    ours = reference.by_example(batch, tiny.side_of_logits(config), logits)
    for a, b in zip(ours, reference.forward(params, batch, config), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("shape", ["encoder_decoder", "decoder_only", "masked_tokens", "tags"])
def test_reference_sees_every_parameter(shape):
    """A reference that ignored a parameter could agree with a model that ignores it too."""
    config = tiny.config(
        **tiny.SHAPES[shape], residual="pre_ln", positions="learned", activation="swiglu",
        embedding_norm=True, tied_embeddings="none",
    )  # fmt: skip
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
