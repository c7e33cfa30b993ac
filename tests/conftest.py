"""What every test runs under: the CPU, quick compilation, and no silent broadcasting."""

import os

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiling is what takes the time in most tests.
jax.config.update("jax_disable_most_optimizations", True)
# For the processes that tests start
os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
