"""Admin (Liu et al. 2020): omega as it is profiled while parameters are made, and as it is used."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from tests.models import reference, tiny

ORDER = tiny.stacks(tiny.config())


def chain(params, stack):
    """omega (L, D) of every sublayer of a stack, stacked to (L sublayers, D) in execution order."""
    omegas = [params[stack][f"{name}_residual"]["shortcut"]["omega"] for name in ORDER[stack]]
    return np.stack(omegas, axis=1).reshape(-1, omegas[0].shape[-1])


@pytest.mark.parametrize(
    "variant",
    [
        dict(num_encoder_layers=2, num_decoder_layers=3),
        dict(norm="rms_norm", activation="swiglu", positions="learned", tied_embeddings="none"),
        dict(architecture="decoder_only", positions="rotary"),
        dict(architecture="encoder_only", embedding_norm=True),
    ],
)
def test_omega_follows_its_recursion(variant):
    """omega_{i+1}^2 = Var[omega_i x] + Var[f_i] on the initial parameters, over real tokens alone,
    one chain for each stack, against the slow forward pass that measures as it goes, example by
    example: so packing and padding do not count."""
    config = tiny.config(residual="admin", **variant)
    params = tiny.initial_parameters(config)
    expected = reference.admin_omegas(params, tiny.packed_batch(), config)
    for stack, sublayers in tiny.stacks(config).items():
        for name in sublayers:
            omega = params[stack][f"{name}_residual"]["shortcut"]["omega"]
            assert omega.shape == (getattr(config, f"num_{stack}_layers"), config.d_model)
            assert np.all(omega == omega[:, :1]), "one value fills the vector"
            np.testing.assert_allclose(omega[:, 0], expected[stack][name], rtol=1e-5, err_msg=name)


def test_omega_starts_at_one_in_both_stacks_and_grows():
    params = tiny.initial_parameters(tiny.config(residual="admin"))
    for stack in ORDER:
        omega = chain(params, stack)[:, 0]
        assert omega[0] == 1.0
        assert np.all(np.diff(omega) > 0)


def test_omega_does_not_see_padding():
    config = tiny.config(residual="admin")
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    batch = tiny.packed_batch()
    for name in ("inputs", "targets"):
        batch[name] = np.where(batch[f"{name}_segment_ids"] > 0, batch[name], 7)
    params = nn.unbox(tiny.init_function(config)(keys, batch))
    for stack in ORDER:
        expected = chain(tiny.initial_parameters(config), stack)
        np.testing.assert_array_equal(chain(params, stack), expected)


def test_feed_forward_increments_of_omega_have_their_closed_form():
    """A unit-variance input gives the ReLU branch the variance 2 r / (1 + r)^2, r = d_ff / d_model,
    under Xavier uniform kernels, and dropout of rate p in the middle and at the end divides it by
    (1 - p)^2; hence profiling runs in training mode. omega_{i+1}^2 - omega_i^2 is that variance,
    as the norm before makes Var[x] = 1.

    A branch's mean square is a mean over D outputs, each near a normal variable that the tokens
    share in the worst case: relative variance 2 / D; and of F squared ReLUs of normal variables,
    E[h^4] / E[h^2]^2 - 1 = 5 at most: 5 / F. The mean of the layers' increments must lie within
    four such standard errors, and these tell the result from the one without dropout.
    """
    p, D, r, L = 0.1, 256, 4, 16
    config = tiny.config(
        residual="admin", d_model=D, d_ff=r * D, num_heads=4, num_encoder_layers=L,
        num_decoder_layers=1, dropout_rate=p, feed_forward_dropout_rate=p,
    )  # fmt: skip
    omega = chain(tiny.initial_parameters(config), "encoder")[:, 0].reshape(L, 2)
    increments = omega[1:, 0] ** 2 - omega[:-1, 1] ** 2  # what feed-forward 1 .. L - 1 add
    expected = 2 * r / (1 + r) ** 2 / (1 - p) ** 2
    standard_error = ((2 / D + 5 / (r * D)) / len(increments)) ** 0.5
    assert 4 * standard_error < 1 - (1 - p) ** 2
    assert abs(np.mean(increments) / expected - 1) < 4 * standard_error


def test_omega_of_one_is_post_ln_bit_for_bit():
    config = tiny.config(residual="admin")
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    ones = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * 0 + 1 if path[-1].key == "omega" else leaf, params
    )
    post_ln = jax.tree_util.tree_map_with_path(lambda path, leaf: leaf, params)
    for stack, sublayers in ORDER.items():
        post_ln[stack] = dict(post_ln[stack])
        for name in sublayers:
            residual = post_ln[stack][f"{name}_residual"]
            post_ln[stack][f"{name}_residual"] = {"post_norm": residual["post_norm"]}
    expected = tiny.apply_function(tiny.config(residual="post_ln"))(post_ln, batch)
    actual = tiny.apply_function(config)(ones, batch)
    np.testing.assert_array_equal(actual, expected)
    assert not np.array_equal(tiny.apply_function(config)(params, batch), expected)
