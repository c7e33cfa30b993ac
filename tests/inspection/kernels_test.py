"""How far a step moves the kernels of each layer together; see `heads_test` for single ones."""

import jax
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.inspection.kernels import update


@pytest.mark.parametrize("size", [1.0, 1e-5])
def test_an_update_is_measured_over_the_kernels_of_a_layer(size):
    config = tiny.config("admin")
    before, after = (jax.device_get(tiny.random_parameters(config, seed)) for seed in (0, 1))
    after = jax.tree.map(lambda old, new: old + np.float32(size) * new, before, after)
    updates = update(before, after, tiny.roles(config))
    assert set(updates) == {"encoder", "decoder"}
    kernels = ("query", "key", "value", "output", "up", "down")
    for stack, measured in updates.items():
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
                reading = getattr(measured, name)[layer]
                np.testing.assert_allclose(reading, value, rtol=1e-2 if size < 1 else 1e-5)


def _angle(old, new):
    """By the part of one that is orthogonal to the other."""
    along = new @ old / np.linalg.norm(old)
    across = np.linalg.norm(new - along * old / np.linalg.norm(old))
    return np.arctan2(across, along)
