"""The three shapes against slow forward passes in NumPy."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny
from transformer_jax.models.layers.feed_forward import ACTIVATIONS
from transformer_jax.models.transformer.schemes import SCHEMES

OTHER_CHOICES = (
    dict(attention_score="dot_product", attention_weights="sigmoid"),
    dict(
        norm="rms_norm", activation="gelu", tied_embeddings="decoder", qk_norm=True,
        attention_weights="sink", attention_gate="head",
    ),
    dict(
        activation="swiglu", tied_embeddings="none", embedding_norm=True, qk_norm=True,
        norm_epsilon=0.1, rotary_base=50.0, logits_bias=True, attention_bias="all",
        attention_gate="entry",
    ),
    dict(
        attention_score="additive", qk_norm=True, depth_exponent=0.5,
        attention_weights="off_by_one", num_heads=4, num_kv_heads=2,
    ),
    dict(
        positions="rotary", rotary_fraction=0.5, rotary_scaling=("linear", "factor=3"),
        attention_bias="inward", rotary_base=20.0, qk_norm=True, qk_norm_over="heads",
        norm="layer_norm_unbiased", attention_softcap=0.7, logits_softcap=1.5,
        attention_weights="relu",
    ),
    # 3 heads of 10 in a d_model of 16, and stacks of unequal depth.
    dict(
        norm="rms_norm", num_heads=3, head_dim=10, num_encoder_layers=1, num_decoder_layers=3,
        activation="swiglu", embedding_norm=True,
    ),
    dict(norm="dyt", qk_norm=True, num_heads=4, num_kv_heads=2),
    dict(norm="derf", embedding_norm=True, tied_embeddings="none"),
)  # fmt: skip


# Windows of two and three tokens, and patterns that do not divide the depth, as 3 and 4 layers are.
PATTERNS = {
    "decoder_only": dict(
        positions="rotary", layer_pattern=("window", "unturned", "full"), window=3,
        window_rotary_base=7.0,
    ),
    "encoder_decoder": dict(positions="relative", layer_pattern=("full", "window"), window=2),
    "tags": dict(
        positions="rotary", layer_pattern=("window_unturned", "window"), window=2,
        attention_weights="sigmoid",
    ),
    "mean_classes": dict(positions="learned", layer_pattern=("window",), window=3),
}  # fmt: skip
# A stack of each its own scheme.
MIXTURES = (
    dict(encoder_residual="admin", decoder_residual="pre_ln"),
    dict(encoder_residual="residual_dual", decoder_residual="sub_ln"),
    dict(encoder_residual="peri_ln", decoder_residual="deepnorm"),
)


SIZES = dict(num_encoder_layers=3, num_decoder_layers=4)


def cases():
    """Every scheme in both stacks, and once in an encoder or a decoder alone, of those that are one
    equation (they draw apart) one in the short tests; positions and the other choices take turns.
    """
    heads = itertools.cycle(tiny.HEADS)
    choices = tiny.with_positions(itertools.cycle(OTHER_CHOICES))
    alone = itertools.cycle(("encoder_only", "decoder_only"))
    residuals = [dict(residual=residual) for residual in tiny.SCHEMES]
    every = [("encoder_decoder", residual) for residual in (*residuals, *MIXTURES)]
    every += [(next(alone), residual) for residual in residuals]
    equal = tiny.repeated_long(
        (SCHEMES[name].equation, reference.SUBLAYERS[name]) for name in tiny.SCHEMES
    )
    for (shape, residual), marks in zip(every, [*equal, (), (), (), *equal], strict=True):
        shape = next(heads) if shape == "encoder_only" else shape
        config = tiny.config(**(tiny.SHAPES[shape] | residual | SIZES | next(choices)))
        name = "-".join([shape, *residual.values(), config.positions])
        yield pytest.param(config, id=name, marks=marks)
    for biases, norm in (("outward", "layer_norm"), ("none", "layer_norm_plain")):
        changes = dict(attention_bias=biases, norm=norm, qk_norm=True, residual="pre_ln")
        yield pytest.param(tiny.config(**changes, positions="rotary"), id=norm)
    for shape, changes in PATTERNS.items():
        config = tiny.config("pre_ln", **(tiny.SHAPES[shape] | SIZES | changes))
        yield pytest.param(config, id="-".join(changes["layer_pattern"]))
    kinds = itertools.cycle(("decoder_only", "masked_tokens"))
    for activation in ACTIVATIONS:
        config = tiny.config(**tiny.SHAPES[next(kinds)], activation=activation)
        yield pytest.param(config, id=activation, marks=pytest.mark.long)
    for pooling in ("pooler", "relu_pooler", "gelu_pooler"):
        pooler = tiny.SHAPES["first_classes"] | dict(pooling=pooling)
        yield pytest.param(tiny.config(**pooler), id=pooling)


@pytest.mark.parametrize("config", list(cases()))
def test_logits_equal_those_of_a_slow_forward_pass(config):
    """With parameters small enough for the stream of a model without norms not to explode."""
    params, batch = tiny.random_parameters(config, deviation=0.2), tiny.packed_batch()
    logits = tiny.apply_function(config)(params, batch)
    assert logits.dtype == jnp.float32
    ours = reference.by_example(batch, tiny.side_of_logits(config), logits)
    for a, b in zip(ours, reference.forward(params, batch, config), strict=True):
        # Float32 sums in another order.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(b).max()))
