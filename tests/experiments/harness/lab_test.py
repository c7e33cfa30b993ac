"""What measures share: draws, losses, steps, and parameters of a run that may have failed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness import lab
from experiments.harness.sweep import ROOT
from tests.defaults import SMALL
from tests.models import tiny as models
from transformer_jax.config import build
from transformer_jax.config.load import load


@pytest.fixture(scope="module")
def run():
    changes = SMALL | {"model.dropout_rate": 0.5, "model.vocab_size": 20}
    return build.build(load(str(ROOT / "configs/masked_lm.py"), changes))


@pytest.fixture(scope="module")
def sample(run):
    """Parameters and a batch."""
    batch = lab.random_batch(jax.random.key(1), 20, rows=4, length=6)
    return jax.jit(functools.partial(lab.draw, run))(jax.random.key(2), batch), batch


def test_the_loss_is_the_mean_over_targets_without_dropout(run, sample):
    @jax.jit
    def mean_loss(params, batch):
        log_p = jax.nn.log_softmax(run.model.apply({"params": params}, batch, deterministic=True))
        return -jnp.mean(jnp.take_along_axis(log_p, batch["targets"][..., None], axis=-1))

    loss = jax.jit(functools.partial(lab.mean_loss, run, run.model))(*sample)
    np.testing.assert_allclose(loss, mean_loss(*sample), rtol=1e-5)


def test_only_queries_keys_and_values_are_scaled(sample):
    params = jax.device_get(sample[0])
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


def test_steps_move_the_kernels_of_sublayers_alone():
    config = models.config("admin", qk_norm=True)
    params = jax.device_get(models.random_parameters(config))
    gradient = jax.tree.map(lambda leaf: leaf - 0.5, params)
    roles = models.roles(config)
    random = models.flat(lab.random_sign_step(jax.random.key(0), params, 0.25, roles))
    downhill = models.flat(lab.gradient_sign_step(gradient, params, 0.25, roles))
    kernels = ("query", "key", "value", "output", "up", "down")
    for path, before in models.flat(params).items():
        steps = np.stack([random[path] - before, downhill[path] - before])
        if not (path.startswith(("encoder/", "decoder/")) and path.endswith(kernels)):
            assert not np.any(steps), path
            continue
        expected = -0.25 * np.sign(before - 0.5)
        np.testing.assert_allclose(steps[1], expected, rtol=1e-5, err_msg=path)
        np.testing.assert_allclose(np.abs(steps[0]), 0.25, rtol=1e-5, err_msg=path)
        # The mean of n signs has a standard deviation of n^-0.5.
        assert abs(np.mean(steps[0])) < 5 * 0.25 * before.size**-0.5, path


def test_two_schemes_get_the_same_random_step():
    def steps(residual, seed):
        config = models.config(residual)
        zeros = jax.tree.map(np.zeros_like, models.random_parameters(config))
        step = lab.random_sign_step(jax.random.key(seed), zeros, 1.0, models.roles(config))
        return models.flat(jax.device_get(step))

    ours, others = steps("post_ln", 0), steps("keel", 0)
    shared = [path for path in ours if path in others and np.any(ours[path])]
    assert {path.split("/")[1] for path in shared} == set(models.stacks(models.config())["decoder"])
    for path in shared:
        np.testing.assert_array_equal(ours[path], others[path])
    # Another seed and another kernel have steps of their own.
    path, other = "encoder/self_attention/query", "encoder/self_attention/key"
    assert np.any(ours[path] != steps("post_ln", 1)[path])
    assert np.any(ours[path] != ours[other])
