"""Admin (Liu et al. 2020): omega as it is profiled, as it is used, and as it is folded away."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from tests.defaults import make_optimizer
from tests.models import reference, tiny
from transformer_jax.models.transformer.fold import fold

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
    batch = tiny.packed_batch()
    for name in ("inputs", "targets"):
        batch[name] = np.where(batch[f"{name}_segment_ids"] > 0, batch[name], 7)
    params = nn.unbox(tiny.init_function(config)(jax.random.key(0), batch))
    for stack in ORDER:
        expected = chain(tiny.initial_parameters(config), stack)
        np.testing.assert_array_equal(chain(params, stack), expected)


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


def without_omega(tree):
    """A tree of Admin's as Post-LN has it."""
    return {
        key: without_omega(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if key != "shortcut"
    }


def test_omega_of_one_is_post_ln_bit_for_bit():
    """Logits and the gradients of all that both have."""
    config, batch = tiny.config(residual="admin"), tiny.packed_batch()
    params = tiny.random_parameters(config)
    ones = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * 0 + 1 if path[-1].key == "omega" else leaf, params
    )

    def readings(config, params):
        def total(params):
            logits = tiny.logits(config, params, batch)
            return jnp.sum(jnp.square(logits)), logits

        gradients, logits = tiny.exact_jit(jax.grad(total, has_aux=True))(params)
        return tiny.flat({"logits": logits, "gradients": gradients})

    expected = readings(tiny.config(residual="post_ln"), without_omega(params))
    found = readings(config, ones)
    assert expected.keys() == {path for path in found if "omega" not in path}
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
    assert all(np.any(value) for path, value in found.items() if "omega" in path)
    other = tiny.apply_function(config)(params, batch)
    assert not np.array_equal(other, expected["logits"])


@pytest.mark.parametrize("residual", ["admin", "admin_constant"])
def test_a_group_of_the_optimizer_fixes_omega(residual):
    config = tiny.config(residual=residual, architecture="encoder_only")
    groups = (("*/omega", 0.0, 0.0),)
    optimizer = make_optimizer("adam", 0.1, lambda: tiny.roles(config), groups=groups)
    params = tiny.random_parameters(config)
    gradients = jax.tree.map(jnp.ones_like, params)

    @jax.jit
    def step(params, gradients):
        updates, _ = optimizer.update(gradients, optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    after, omegas = tiny.flat(step(params, gradients)), 0
    for path, before in tiny.flat(params).items():
        if path.endswith("/omega"):
            np.testing.assert_array_equal(after[path], before)
            omegas += 1
        else:
            assert np.all(np.asarray(after[path]) != np.asarray(before)), path
    assert omegas == 2


# Folding


def trained(config):
    """Random parameters, with omegas of the size and spread that training leaves."""
    generator = np.random.default_rng(7)

    def omega(path, leaf):
        if path[-1].key != "omega":
            return leaf
        return jnp.asarray(generator.uniform(0.5, 6.0, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(omega, tiny.random_parameters(config))


def same(expected, found):
    """Whether logits are equal to 1e-5 of their scale."""
    for a, b in zip(expected, found, strict=True):
        assert np.abs(np.asarray(a) - np.asarray(b)).max() < 1e-5 * np.abs(a).max()


FOLDED = {
    "all_tied": dict(residual="admin"),
    "tables_apart": dict(
        residual="admin", tied_embeddings="decoder", positions="learned", activation="swiglu",
        qk_norm=True,
    ),
    "nothing_tied": dict(residual="admin_constant", tied_embeddings="none", positions="rotary"),
    "tied_and_rotary": dict(residual="admin", positions="rotary", attention_score="additive"),
    "embedding_norm": dict(residual="admin", embedding_norm=True, activation="gelu"),
    "embedding_rms_norm": dict(
        residual="admin", embedding_norm=True, norm="rms_norm", positions="learned",
        num_encoder_layers=1, num_decoder_layers=3,
    ),
    "encoder_alone": dict(encoder_residual="admin", decoder_residual="post_ln"),
    "decoder_alone": dict(encoder_residual="post_ln", decoder_residual="admin_constant"),
    "beside_a_norm": dict(encoder_residual="peri_ln", decoder_residual="admin"),
    "decoder_only": dict(residual="admin", architecture="decoder_only"),
    "masked_tokens": dict(residual="admin", architecture="encoder_only"),
    "classes": dict(tiny.SHAPES["mean_classes"], residual="admin", positions="learned"),
    "tags": dict(tiny.SHAPES["tags"], residual="admin", positions="rotary"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_folding_changes_no_output(name):
    """By the slow forward pass, which tells what the float32 of the folded parameters costs."""
    config, batch = tiny.config(**FOLDED[name]), tiny.packed_batch()
    params = trained(config)
    folded_config, folded = fold(config, params)
    same(reference.forward(params, batch, config), reference.forward(folded, batch, folded_config))
    for stack in ("encoder", "decoder"):
        before = getattr(config, f"{stack}_residual")
        after = getattr(folded_config, f"{stack}_residual")
        if stack in tiny.stacks(config):
            assert after == ("post_ln" if before.startswith("admin") else before)
    shapes = {path: leaf.shape for path, leaf in tiny.flat(folded).items()}
    abstract = tiny.flat(nn.unbox(tiny.abstract_parameters(folded_config)))
    assert shapes == {path: leaf.shape for path, leaf in abstract.items()}
    assert not any("omega" in path for path in shapes)


@pytest.mark.parametrize("name", ["all_tied", "decoder_only"])
def test_a_folded_model_computes_what_it_did(name):
    config, batch = tiny.config(**FOLDED[name]), tiny.packed_batch()
    params = trained(config)
    folded_config, folded = fold(config, params)
    side = tiny.side_of_logits(config)
    expected, found = (
        reference.by_example(batch, side, tiny.apply_function(c)(p, batch))
        for c, p in ((config, params), (folded_config, folded))
    )
    same(expected, found)


def test_folding_leaves_what_it_was_given():
    config = tiny.config(residual="admin", architecture="decoder_only")
    params = tiny.random_parameters(config)
    before = dict(tiny.flat(params))
    fold(config, params)
    after = tiny.flat(params)
    assert before.keys() == after.keys() and all(before[path] is after[path] for path in before)


def test_there_must_be_an_omega_to_fold():
    config = tiny.config(residual="post_ln")
    with pytest.raises(
        ValueError, match="encoder_residual='post_ln' and model.dec.*nothing to fold"
    ):
        fold(config, tiny.random_parameters(config))
    # The other stack's scheme is of no account where there is no such stack.
    config = tiny.config(
        encoder_residual="admin", decoder_residual="pre_ln", architecture="decoder_only"
    )
    with pytest.raises(ValueError, match="^model.decoder_residual='pre_ln': nothing to fold"):
        fold(config, tiny.random_parameters(config))


def test_an_omega_of_0_cannot_be_folded():
    config = tiny.config(residual="admin", architecture="decoder_only")
    params = tiny.random_parameters(config)
    shortcut = params["decoder"]["feed_forward_residual"]["shortcut"]
    shortcut["omega"] = shortcut["omega"].at[1, 5].set(0.0)
    where = "decoder/feed_forward_residual/shortcut/omega is 0 in layer 1, channel 5"
    with pytest.raises(ValueError, match=where):
        fold(config, params)
