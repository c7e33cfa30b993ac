"""Accelerators of this machine by the names that they give themselves."""

import types

import pytest

from transformer_jax.devices import chips


@pytest.mark.parametrize(
    ("kind", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("cpu", None),
    ],
)
def test_gpus_are_known_by_their_whole_names(kind, flops):
    peak = chips.local_peak(types.SimpleNamespace(device_kind=kind))
    assert (peak and peak.flops) == flops
