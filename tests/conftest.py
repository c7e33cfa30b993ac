"""What every test runs under: the CPU, and no silent broadcasting of unequal ranks."""

import os

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ["JAX_PLATFORMS"] = "cpu"  # for the processes that tests start


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
