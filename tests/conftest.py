"""What every test runs under: the CPU, quick compilation, and no silent broadcasting."""

import contextlib
import os

import jax
import pytest

from transformer_jax import progress

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiling is what takes the time in most tests.
jax.config.update("jax_disable_most_optimizations", True)
# For the processes that tests start
os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@pytest.fixture
def phases(monkeypatch) -> list[str]:
    """The phases that progress is asked to show, as they begin."""
    shown = []

    @contextlib.contextmanager
    def phase(what):
        shown.append(what)
        yield

    monkeypatch.setattr(progress, "phase", phase)
    return shown


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
