"""Admin's omega folded away: what the model computes stays the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from experiments.admin_initialization.fold import fold
from tests.models import reference, tiny


def trained(config):
    """Random parameters, with omegas of the size and spread that training leaves."""
    generator = np.random.default_rng(7)

    def omega(path, leaf):
        if path[-1].key != "omega":
            return leaf
        return jnp.asarray(generator.uniform(0.5, 6.0, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(omega, tiny.random_parameters(config))


FOLDED = {
    "all_tied": dict(residual="admin"),
    "tables_apart": dict(
        residual="admin", tied_embeddings="decoder", positions="learned", activation="swiglu",
        qk_norm=True, attention_gate="head", attention_weights="sink",
    ),
    "tied_and_rotary": dict(
        residual="admin", positions="rotary", attention_score="additive",
        architecture="decoder_only",
    ),
    "encoder_alone": dict(
        encoder_residual="admin_constant", decoder_residual="post_ln",
        tied_embeddings="none", positions="rotary",
    ),
    "beside_a_norm": dict(
        encoder_residual="peri_ln", decoder_residual="admin", embedding_norm=True,
        norm="rms_norm", positions="learned", num_encoder_layers=1, num_decoder_layers=3,
    ),
    "decoder_only": dict(
        residual="admin", architecture="decoder_only", embedding_norm=True, activation="gelu"
    ),
    "no_norms": dict(
        residual="admin", architecture="decoder_only", embedding_norm=True, norm="derf"
    ),
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
    expected = reference.forward(params, batch, config)
    outputs = reference.forward(folded, batch, folded_config)
    for a, b in zip(expected, outputs, strict=True):
        assert np.abs(np.asarray(a) - np.asarray(b)).max() < 1e-5 * np.abs(a).max()
    for stack in tiny.stacks(config):
        before, after = (getattr(each, f"{stack}_residual") for each in (config, folded_config))
        assert after == ("post_ln" if before.startswith("admin") else before)
    abstract = tiny.flat(nn.unbox(tiny.abstract_parameters(folded_config)))
    assert jax.tree.map(np.shape, tiny.flat(folded)) == jax.tree.map(np.shape, abstract)


def test_there_must_be_an_omega_to_fold():
    config = tiny.config(residual="post_ln")
    with pytest.raises(ValueError, match="encoder_.*='post_ln' and model.dec.*nothing to fold"):
        fold(config, {})
    # The other stack's scheme is of no account where there is no such stack.
    config = tiny.config(
        encoder_residual="admin", decoder_residual="pre_ln", architecture="decoder_only"
    )
    with pytest.raises(ValueError, match="^model.decoder_residual='pre_ln': nothing to fold"):
        fold(config, {})


def test_an_omega_of_0_cannot_be_folded():
    config = tiny.config(**FOLDED["decoder_only"])
    params = tiny.random_parameters(config)
    shortcut = params["decoder"]["feed_forward_residual"]["shortcut"]
    shortcut["omega"] = shortcut["omega"].at[1, 5].set(0.0)
    where = "decoder/feed_forward_residual/shortcut/omega is 0 in layer 1, channel 5"
    with pytest.raises(ValueError, match=where):
        fold(config, params)
