"""Tests that need eight devices: `sharded_test.py` runs them in processes that see as many."""

import os

import jax

if "device_count=8" in os.environ.get("XLA_FLAGS", ""):
    # Compiling is what takes the time here.
    jax.config.update("jax_disable_most_optimizations", True)
else:
    collect_ignore_glob = ["*_test.py"]
