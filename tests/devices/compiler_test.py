"""Compiler options reach the program that they are meant for, and no other."""

import types

import jax

from tests.tools.preflight.small import make
from transformer_jax.devices import compiler


def test_options_are_those_of_the_platform():
    tpu = types.SimpleNamespace(platform="tpu")
    mesh = types.SimpleNamespace(devices=types.SimpleNamespace(flat=[tpu]))
    assert compiler.options(mesh) == compiler.OPTIONS["tpu"]  # pyright: ignore[reportArgumentType]
    assert jax.devices()[0].platform not in compiler.OPTIONS
    assert compiler.options(make({}).mesh) == {}
