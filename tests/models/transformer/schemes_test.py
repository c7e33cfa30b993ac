"""The constants of the residual schemes against the published ones, and what they do at the start.

What a scheme computes from its parameters is compared with NumPy in shapes_test.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.transformer.config import depth
from transformer_jax.models.transformer.initialisation import draw_gain
from transformer_jax.models.transformer.schemes import SCHEMES, ResidualScheme

# Values that are given to three places, and values in float32.
assert_to_three_places = functools.partial(np.testing.assert_allclose, rtol=0, atol=5.01e-4)
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-6)


DRAWING = "profiled", "gain", "gained", "embedding_gain", "reads"  # fields of a scheme


def sized(architecture, encoder, decoder, **changes):
    """A config of so many layers; of the stack that an architecture lacks it holds none."""
    return tiny.config(
        architecture=architecture,
        num_encoder_layers=encoder or 1,
        num_decoder_layers=decoder or 1,
        **changes,
    )


def by_sublayer(name: str, config, stack, scale: str = "skip"):
    """The skip scale of each sublayer, or the branch scale, (L, kinds)."""
    at = depth(config, stack)
    return np.broadcast_to(np.asarray(getattr(SCHEMES[name], scale)(at), np.float32), at.shape)


def gain_at(config, *path):
    gain = draw_gain(config, path)
    assert gain is not None
    return gain


def test_every_field_shows_in_the_equation_but_those_that_draw():
    plain = ResidualScheme()
    formulas = ("skip", "branch", "read", "pre_where", "post_where", "stream", "input")
    set_to = dict.fromkeys(formulas, lambda depth: 2.0) | {"trained_branch": "scalar"}
    for name in {field.name for field in dataclasses.fields(plain)} - {*DRAWING}:
        value = set_to.get(name, not getattr(plain, name))
        assert dataclasses.replace(plain, **{name: value}).equation != plain.equation, name


# Constants of the equation


@pytest.mark.parametrize(
    ("sublayers", "omega"), [(12, 2.017), (36, 3.041), (120, 4.922), (300, 7.193)]
)
def test_admin_constant_has_the_published_values(sublayers, omega):
    """By the number of residual sublayers of a stack: 2 a layer, 3 in a decoder that looks at an
    encoder. It is what lets the dependencies on the branches, 1 / (omega^2 + 1) each, add up to
    ln(n + 1) n / (n + 1); so it lies between those of Post-LN, 1, and of equal shares, sqrt(n)."""
    two = sized("encoder_only", sublayers // 2, 0)
    assert_to_three_places(by_sublayer("admin_constant", two, "encoder"), omega)
    alone = sized("decoder_only", 0, sublayers // 2)
    assert_to_three_places(by_sublayer("admin_constant", alone, "decoder"), omega)
    if sublayers % 3 == 0:
        three = sized("encoder_decoder", 5, sublayers // 3)
        assert_to_three_places(by_sublayer("admin_constant", three, "decoder"), omega)
    shares = 1 / (by_sublayer("admin_constant", two, "encoder").astype(np.float64) ** 2 + 1)
    total = math.log(sublayers + 1) * sublayers / (sublayers + 1)
    assert_close(shares.sum(), total)
    assert 1 < omega < math.sqrt(sublayers)


@pytest.mark.parametrize(
    ("architecture", "layers", "stack", "alpha", "beta"),
    [
        ("encoder_decoder", (6, 6), "encoder", 1.418, 0.497),
        ("encoder_decoder", (6, 6), "decoder", 2.060, 0.343),
        ("encoder_decoder", (60, 12), "encoder", 2.633, 0.268),
        ("encoder_decoder", (60, 12), "decoder", 2.449, 0.289),
        ("encoder_only", (6, 0), "encoder", 1.861, 0.380),
        ("encoder_only", (60, 0), "encoder", 3.310, 0.214),
        ("decoder_only", (0, 6), "decoder", 1.861, 0.380),
        ("decoder_only", (0, 60), "decoder", 3.310, 0.214),
    ],
)
def test_deepnorm_has_the_published_constants(architecture, layers, stack, alpha, beta):
    """Wang et al. 2022, table 2, worked out. beta is of values, outputs and both feed-forward
    matrices; queries and keys are drawn as ever."""
    config = sized(architecture, *layers, residual="deepnorm")
    assert_to_three_places(by_sublayer("deepnorm", config, stack), alpha)
    attention = [kind for kind in depth(config, stack).kinds if kind != "feed_forward"]
    scaled = [(kind, name) for kind in attention for name in ("value", "output")]
    for kind, name in [*scaled, ("feed_forward", "up"), ("feed_forward", "down")]:
        gain = np.broadcast_to(gain_at(config, stack, kind, name), max(layers))
        assert_to_three_places(gain, np.full(max(layers), beta)[: len(gain)])
    for kind in attention:
        assert all(draw_gain(config, (stack, kind, name)) is None for name in ("query", "key"))


@pytest.mark.parametrize(
    ("layers", "scale"), [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (36, 1e-6)]
)
def test_layer_scale_starts_from_what_its_depth_says(layers, scale):
    for stack, config in (
        ("encoder", sized("encoder_only", layers, 0)),
        ("decoder", sized("encoder_decoder", 2, layers)),
    ):
        assert_close(by_sublayer("layer_scale", config, stack, "branch"), scale)


# Draws


def gains(residual, stack, kind, name):
    """What a draw is to be multiplied by in 2 layers of an encoder and 3 of a decoder."""
    N, M = 2, 3
    layers, encoder = (N, True) if stack == "encoder" else (M, False)
    values = ("value", "output", "up", "down")
    match residual:
        case "deepnorm" if name in values:
            return 0.87 * (N**4 * M) ** (-1 / 16) if encoder else (12 * M) ** -0.25
        case "t_fixup" if name in values:
            return 0.67 * N**-0.25 if encoder else (9 * M) ** -0.25
        case "sub_ln" if name in values and kind != "cross_attention":
            both = math.log(3 * M) * math.log(2 * N) / 3
            return math.sqrt(both if encoder else math.log(3 * M))
        case "gpt2" if name in ("output", "down"):
            return (2 * N if encoder else 3 * M) ** -0.5
        case "ds_init":
            return np.arange(1, layers + 1) ** -0.5
    return 1.0


def parameters_of(residual):
    """Initial parameters, path to values, of an encoder-decoder of 2 and 3 layers."""
    config = sized("encoder_decoder", 2, 3, residual=residual)
    return tiny.flat(tiny.initial_parameters(config))


def schemes():
    """Of those that draw alike one, and the others in the long tests."""
    ways = [[getattr(row, field) for field in DRAWING] for row in SCHEMES.values()]
    marked = zip(SCHEMES, tiny.repeated_long(ways), strict=True)
    return [pytest.param(name, marks=marks) for name, marks in marked]


@pytest.mark.parametrize("residual", schemes())
def test_gains_multiply_the_draw_that_all_schemes_share(residual):
    """Of all parameters but those of norms, and trained scales, which are no draws."""
    plain, scaled = parameters_of("post_ln"), parameters_of(residual)
    for path, draw in plain.items():
        if "_norm" in path:
            continue
        gain = 1.0
        if path.endswith(("query", "key", "value", "output", "up", "down")):
            gain = np.broadcast_to(gains(residual, *path.split("/")), len(draw))
            gain = gain.reshape(-1, *[1] * (draw.ndim - 1))
        elif path.endswith("table") and residual == "t_fixup":
            gain = (9 * 2) ** -0.25  # of the encoder, whose table is the decoder's too
        close = np.testing.assert_array_equal if np.all(gain == 1) else assert_close
        close(np.asarray(scaled[path]), gain * np.asarray(draw), err_msg=path)


def test_t_fixup_scales_each_table_by_the_depth_of_its_reader():
    config = sized("encoder_decoder", 2, 3, residual="t_fixup", tied_embeddings="none")
    for name, layers in (("source_embedding", 2), ("target_embedding", 3)):
        gain = gain_at(config, name, "table")
        assert_close(gain, (9 * layers) ** -0.25)
    assert draw_gain(config, ("source_positions", "table")) is None
    assert draw_gain(config, ("logits", "kernel")) is None


def test_sub_ln_has_another_gain_in_a_stack_alone():
    encoder = sized("encoder_only", 6, 0, residual="sub_ln")
    decoder = sized("decoder_only", 0, 9, residual="sub_ln")
    gain = gain_at(encoder, "encoder", "feed_forward", "up")
    assert_close(gain, math.sqrt(math.log(12)))
    gain = gain_at(decoder, "decoder", "self_attention", "value")
    assert_close(gain, math.sqrt(math.log(18)))


@pytest.mark.parametrize(
    ("residual", "path", "size", "encoder", "decoder"),
    [
        ("rezero", "branch_scale/scale", (), 0.0, 0.0),
        ("layer_scale", "branch_scale/scale", (16,), 0.1, 0.1),
        # Four and nine sublayers.
        ("admin_constant", "shortcut/omega", (16,), 1.4514, 1.8284),
    ],
)
def test_trained_scales_start_from_their_constant(residual, path, size, encoder, decoder):
    params, config = parameters_of(residual), tiny.config()
    for stack, layers, value in (("encoder", 2, encoder), ("decoder", 3, decoder)):
        for kind in tiny.stacks(config)[stack]:
            scale = params[f"{stack}/{kind}_residual/{path}"]
            assert scale.shape == (layers, *size)
            np.testing.assert_allclose(scale, value, rtol=1e-4)


def test_each_layer_reads_the_stacks_input_by_shares_that_fall():
    """As of nanochat: 1.15 - 0.1 i / (n - 1) and 0.2 - 0.15 i / (n - 1) in layer i of n, from 0."""
    params = parameters_of("x0")
    for stack, layers in (("encoder", 2), ("decoder", 3)):
        depths = np.arange(layers) / (layers - 1)
        for name, shares in (("stream", 1.15 - 0.1 * depths), ("input", 0.2 - 0.15 * depths)):
            scales = params[f"{stack}/self_attention_residual/{name}_scale/scale"]
            np.testing.assert_allclose(scales, shares, rtol=1e-6)
