"""Measured rows hold plain numbers and texts."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness import measure


def test_numbers_become_pythons_and_what_is_not_finite_null():
    row = {"a": np.float32(0.5), "b": jnp.int32(3), "c": np.nan, "d": "text", "e": None, "f": True}
    plain = measure._plain(row)
    assert plain == {"a": 0.5, "b": 3, "c": None, "d": "text", "e": None, "f": True}
    assert [type(value) for value in plain.values()][:2] == [float, int]


@pytest.mark.parametrize("value", [np.zeros(1), jnp.zeros((2, 2)), [1.0], {"a": 1}])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(ValueError, match="measure returned y"):
        measure._plain({"x": 1, "y": value})
