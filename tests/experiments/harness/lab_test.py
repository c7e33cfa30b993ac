"""What measures share: draws, losses, and the parameters of a run that may have failed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness import lab
from experiments.harness.sweep import ROOT
from transformer_jax.config import build
from transformer_jax.config.load import load

TINY = {
    "model.num_layers": 1,
    "model.d_model": 8,
    "model.num_heads": 1,
    "model.d_ff": 8,
    "model.dropout_rate": 0.5,
    "model.vocab_size": 20,
}


@pytest.fixture(scope="module")
def run():
    return build.build(load(str(ROOT / "configs/masked_lm.py"), TINY))


@pytest.fixture(scope="module")
def drawn(run):
    """Parameters and a batch."""
    batch = lab.random_batch(jax.random.key(1), 20, rows=4, length=6)
    return jax.jit(functools.partial(lab.draw, run))(jax.random.key(2), batch), batch


def test_a_random_batch_has_a_target_at_each_of_its_tokens(drawn):
    _, batch = drawn
    for side in ("inputs", "targets"):
        assert batch[side].shape == (4, 6)
        assert batch[side].min() >= 1 and batch[side].max() < 20
        np.testing.assert_array_equal(batch[f"{side}_positions"], [range(6)] * 4)
        assert (batch[f"{side}_segment_ids"] == 1).all()
    assert (batch["inputs"] != batch["targets"]).any()


def test_the_loss_is_the_mean_over_targets_without_dropout(run, drawn):
    params, batch = drawn
    apply = jax.jit(functools.partial(run.model.apply, deterministic=True))
    logits = apply({"params": params}, batch)
    log_p = jax.nn.log_softmax(logits)
    expected = -jnp.mean(jnp.take_along_axis(log_p, batch["targets"][..., None], axis=-1))
    found = jax.jit(functools.partial(lab.mean_loss, run, run.model))(params, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_only_queries_keys_and_values_are_scaled(drawn):
    params, _ = drawn
    before = jax.tree_util.tree_flatten_with_path(params)[0]
    after = jax.tree.leaves(lab.scale_attention(params, lab.FUSED))
    scaled = set()
    for (path, old), new in zip(before, after, strict=True):
        if (old != new).any():
            np.testing.assert_allclose(new, old * 0.5**0.5, rtol=1e-6)
            scaled.add(path[-1].key)
    assert scaled == {"query", "key", "value"}


def test_a_run_that_became_non_finite_has_no_trained_parameters(run, tmp_path):
    assert lab.trained(run, tmp_path) is None
