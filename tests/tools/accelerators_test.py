"""Accelerators by the names that Google gives them."""

import math
import types

import pytest

from transformer_jax.devices.chips import local_peak
from transformer_jax.tools import accelerators


@pytest.mark.parametrize(
    ("name", "count", "shape", "host"),
    [
        ("v4-8", 4, "2x2x1", (2, 2, 1)),
        ("v4-4096", 2048, "8x16x16", (2, 2, 1)),
        ("v5e-1", 1, "1x1", (1, 1, 1)),
        ("v5litepod-4", 4, "2x2", (2, 2, 1)),
        ("v5e-128", 128, "8x16", (2, 2, 1)),
        ("v5p-32", 16, "2x2x4", (2, 2, 1)),
        ("v5p-384", 192, "4x4x12", (2, 2, 1)),
        ("v5p-17920", 8960, "16x20x28", (2, 2, 1)),
        ("v6e-8", 8, "2x4", (2, 4, 1)),
        ("v6e-256", 256, "16x16", (2, 2, 1)),
        ("tpu7x-8", 4, "2x2x1", (2, 2, 1)),
    ],
)
def test_accelerator_types_are_those_of_googles_tables(name, count, shape, host):
    """Hosts have four chips, but a plane of at most eight is one host."""
    tpu = accelerators.parse(name)
    assert (tpu.chips, tpu.shape, tpu.slices, tpu.host) == (count, shape, 1, host)
    assert tpu.hosts * math.prod(host) == count
    assert f"{count} " in str(tpu) and shape in str(tpu)


def test_several_slices_have_their_chips_together():
    tpu = accelerators.parse("2xv5e-256")
    assert (tpu.chips, tpu.slices) == (256, 2) and "512 v5e chips" in str(tpu)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("v3-8", "v5p-32"),
        ("v5e", "v5e-16"),
        ("H100", "v5e-16"),
        ("v5e-17", "v5e-8, v5e-16"),
        ("v5e-512", "v5e-256"),
        ("v5p-31", "TensorCores, two a chip"),
        ("v5p-24", "v5p-16, v5p-32"),
        ("0xv5e-4", "v5e-4"),
    ],
)
def test_other_names_are_refused_with_the_names_that_exist(name, hint):
    with pytest.raises(ValueError, match=hint) as error:
        accelerators.parse(name)
    assert repr(name) in str(error.value)


def test_a_chip_with_two_devices_shares_its_speed_and_memory_between_them():
    one, half = accelerators.parse("v5p-8"), accelerators.parse("tpu7x-8")
    assert one.peak.flops == 459e12
    assert half.peak.flops == pytest.approx(2307e12 / 2) and half.memory < 96 * 2**30


@pytest.mark.parametrize(
    ("kind", "accelerator"),
    [
        ("TPU v4", "v4-8"),
        ("TPU v5 lite", "v5e-4"),
        ("TPU v5", "v5p-8"),
        ("TPU v6 lite", "v6e-4"),
        ("TPU7x", "tpu7x-8"),
        ("TPU v3", None),
    ],
)
def test_a_tpu_of_this_machine_has_the_peak_of_its_slice(kind, accelerator):
    peak = local_peak(types.SimpleNamespace(device_kind=kind))
    assert peak == (accelerators.parse(accelerator).peak if accelerator else None)
