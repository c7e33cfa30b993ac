"""Which parameters steps move, and by how much."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.inspection.seen import POST_LN, observe_function, seen
from tests.models import reference, tiny
from transformer_jax.inspection.observed import output_change
from transformer_jax.inspection.steps import (
    gradient_sign_step,
    random_sign_step,
    update,
)


def test_steps_move_the_kernels_of_sublayers_alone():
    config = tiny.config("admin", qk_norm=True)
    params = jax.device_get(tiny.random_parameters(config))
    gradient = jax.tree.map(lambda leaf: leaf - 0.5, params)
    roles = tiny.roles(config)
    stepped = {
        "random": random_sign_step(jax.random.key(0), params, 0.25, roles),
        "gradient": gradient_sign_step(gradient, params, 0.25, roles),
    }
    kernels = ("query", "key", "value", "output", "up", "down")
    for name, after in stepped.items():
        for path, before in tiny.flat(params).items():
            step = np.asarray(tiny.flat(after)[path] - before)
            if not (path.startswith(("encoder/", "decoder/")) and path.endswith(kernels)):
                assert not np.any(step), (name, path)
            elif name == "gradient":
                expected = -0.25 * np.sign(before - 0.5)
                np.testing.assert_allclose(step, expected, rtol=1e-5, err_msg=path)
            else:
                np.testing.assert_allclose(np.abs(step), 0.25, rtol=1e-5, err_msg=path)
                # The mean of n signs has a standard deviation of n^-0.5.
                assert abs(np.mean(step)) < 5 * 0.25 * step.size**-0.5, path


def test_two_schemes_get_the_same_random_step():
    def steps(residual, seed):
        config = tiny.config(residual)
        params = nn.unbox(tiny.abstract_parameters(config))
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
        step = random_sign_step(jax.random.key(seed), zeros, 1.0, tiny.roles(config))
        return tiny.flat(jax.device_get(step))

    ours, others = steps("post_ln", 0), steps("keel", 0)
    shared = [path for path in ours if path in others and np.any(ours[path])]
    assert {path.split("/")[1] for path in shared} == set(tiny.stacks(tiny.config())["decoder"])
    for path in shared:
        np.testing.assert_array_equal(ours[path], others[path])
    # Another seed and another kernel have steps of their own.
    path, other = "encoder/self_attention/query", "encoder/self_attention/key"
    assert np.any(ours[path] != steps("post_ln", 1)[path])
    assert np.any(ours[path] != ours[other])


def test_output_change_is_by_token_entry_and_square_of_the_step():
    params, _, before = seen(POST_LN)
    moved = random_sign_step(jax.random.key(0), params, 0.1, tiny.roles(POST_LN))
    _, after = observe_function(POST_LN)(moved, tiny.packed_batch())
    for stack, side in (("encoder", "inputs"), ("decoder", "targets")):
        change = np.asarray(after[stack].final) - np.asarray(before[stack].final)
        tokens = np.concatenate(reference.by_example(tiny.packed_batch(), side, change))
        expected = np.mean([token @ token for token in tokens]) / (POST_LN.d_model * 0.1**2)
        found = output_change(before[stack], after[stack], 0.1)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("size", [1.0, 1e-5])
def test_an_update_is_measured_over_the_kernels_of_a_layer(size):
    config = tiny.config("admin")
    before, after = (jax.device_get(tiny.random_parameters(config, seed)) for seed in (0, 1))
    after = jax.tree.map(lambda old, new: old + np.float32(size) * new, before, after)
    found = update(before, after, tiny.roles(config))
    assert set(found) == {"encoder", "decoder"}
    kernels = ("query", "key", "value", "output", "up", "down")
    for stack, measured in found.items():
        paths = [path for path in tiny.flat(before[stack]) if path.endswith(kernels)]
        for layer in range(2):
            old, new = (
                np.concatenate([np.ravel(tiny.flat(tree[stack])[path][layer]) for path in paths])
                for tree in (before, after)
            )
            old, new = old.astype(np.float64), new.astype(np.float64)
            expected = {
                "ratio": np.linalg.norm(new - old) / np.linalg.norm(old),
                "rms": np.mean((new - old) ** 2) ** 0.5,
                "angle": _angle(old, new),
            }
            for name, value in expected.items():
                own = getattr(measured, name)[layer]
                np.testing.assert_allclose(own, value, rtol=1e-2 if size < 1 else 1e-5)


def _angle(old, new):
    """By the part of one that is orthogonal to the other."""
    along = new @ old / np.linalg.norm(old)
    across = np.linalg.norm(new - along * old / np.linalg.norm(old))
    return np.arctan2(across, along)
