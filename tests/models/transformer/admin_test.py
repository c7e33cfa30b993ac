"""Admin (Liu et al. 2020): omega as it is profiled.

How it is used is compared with NumPy in shapes_test.
"""

import functools

import jax
import numpy as np
import pytest

from tests.models import reference, tiny
from tests.models.remat_test import gradient, shapes
from transformer_jax.models.transformer import initialisation


@pytest.mark.parametrize(
    "variant",
    [
        dict(num_encoder_layers=2, num_decoder_layers=3),
        dict(architecture="decoder_only", positions="rotary", norm="rms_norm", activation="swiglu"),
        dict(architecture="encoder_only", positions="learned", embedding_norm=True),
        # Its decoder starts from zeros, to which the first self-attention adds nothing.
        dict(architecture="encoder_set", num_encoder_layers=1, positions_in="attention"),
    ],
)
def test_omega_follows_its_recursion(variant):
    """omega_{i+1}^2 = Var[omega_i x] + Var[f_i] on the initial parameters, over real tokens alone,
    one chain for each stack from 1 on, against the slow forward pass that measures as it goes,
    example by example: so packing and padding do not count."""
    config = tiny.config(residual="admin", **variant)
    draw = functools.partial(initialisation.initialise, tiny.model(config))
    batch = tiny.packed_batch()
    if config.architecture == "encoder_set":  # each image has a row of its own
        batch = tiny.pack([[pair] for pair in tiny.sentences((4, 1), (9, 3), (6, 2))])
    params = tiny.nn.unbox(jax.jit(draw)(jax.random.key(0), tiny.read_by(config, batch)))
    expected = reference.admin_omegas(params, batch, config)
    for stack, sublayers in tiny.stacks(config).items():
        for name in sublayers:
            omega = params[stack][f"{name}_residual"]["shortcut"]["omega"]
            assert omega.shape == (getattr(config, f"num_{stack}_layers"), config.d_model)
            assert np.all(omega == omega[:, :1]), "one value fills the vector"
            np.testing.assert_allclose(omega[:, 0], expected[stack][name], rtol=1e-5, err_msg=name)


def test_feed_forward_increments_of_omega_are_those_of_the_published_profile():
    """The authors' profile of 100 layers with dropout 0.1 grows by 0.395 in omega^2 with every
    feed-forward sublayer of its encoder, 2 r / (1 + r)^2 / (1 - p)^2 with r = d_ff / d_model = 4.

    That needs inputs of unit variance (the norm's), Xavier uniform kernels, and profiling in
    training mode: dropout of rate p in the middle and at the end divides by (1 - p)^2. The mean of
    the layers' increments must lie within four standard errors, which their spread gives; these
    tell it from the one without dropout, 0.32.
    """
    p, layers = 0.1, 100
    config = tiny.config(
        residual="admin", architecture="encoder_only", d_model=64, d_ff=256, num_heads=4,
        num_encoder_layers=layers, dropout_rate=p, feed_forward_dropout_rate=p,
    )  # fmt: skip
    params = tiny.initial_parameters(config)
    attention, feed_forward = (
        np.asarray(params["encoder"][f"{kind}_residual"]["shortcut"]["omega"][:, 0], np.float64)
        for kind in ("self_attention", "feed_forward")
    )
    increments = attention[1:] ** 2 - feed_forward[:-1] ** 2
    standard_error = np.std(increments, ddof=1) / len(increments) ** 0.5
    expected = 2 * 4 / 5**2 / (1 - p) ** 2
    assert abs(expected - 0.395) < 5e-4
    assert 4 * standard_error < (expected - 0.32) / 2
    assert abs(np.mean(increments) - expected) < 4 * standard_error


def test_omega_of_one_is_post_ln_bit_for_bit():
    """The gradients of all that both have, and so the logits, whose squares they are of."""
    shape = tiny.SHAPES["decoder_only"]
    config, plain = (tiny.config(name, **shape) for name in ("admin", "post_ln"))
    params, (_, *arguments) = tiny.random_parameters(config), shapes(config)
    ones = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * 0 + 1 if path[-1].key == "omega" else leaf, params
    )
    slopes = jax.jit(gradient(config))
    without = initialisation._without_omegas(params)
    expected = tiny.flat(jax.jit(gradient(plain))(without, *arguments))
    leaves, others = (tiny.flat(slopes(tree, *arguments)) for tree in (ones, params))
    assert expected.keys() == {path for path in leaves if "omega" not in path}
    for path, value in expected.items():
        np.testing.assert_array_equal(leaves[path], value, err_msg=path)
    assert any(np.any(others[path] != value) for path, value in expected.items())
    assert all(np.any(value) for path, value in leaves.items() if "omega" in path)
