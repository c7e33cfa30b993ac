"""Devices that nobody has."""

import importlib.util

import pytest

from transformer_jax.tools import accelerators
from transformer_jax.tools.preflight import topology


def test_without_libtpu_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"launch.sh preflight.*\[preflight\]"):
        topology.devices(accelerators.parse("v5e-4"))
