"""A small run and a made-up program, which the tests of preflight share."""

import math
from pathlib import Path

import jax

from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.devices.chips import Peak
from transformer_jax.tools.preflight.explain import Move
from transformer_jax.tools.preflight.program import Program
from transformer_jax.tools.preflight.report import Target

CONFIGS = Path(__file__).parents[3] / "configs"
TINY = {
    "model.vocab_size": 64,
    "model.d_model": 32,
    "model.num_heads": 4,
    "model.num_layers": 3,
    "model.d_ff": 48,
    "data.batch_size": 4,
    "data.streams": 2,
    "data.max_target_length": 16,
    "data.row_target_length": 16,
    "evaluate.batch_size": 4,
    "decode.method": "greedy",
    "decode.extra_length": 4,
}
PEAK = Peak(flops=100.0, memory_bytes=10.0, ici_bytes=2.0, dcn_bytes=1.0)
PROGRAM = Program(
    arguments=3 * 2**30,
    results=2 * 2**30,
    aliased=2**30,
    temporaries=2**30,
    code=0.0,
    moves=[Move(600.0, 1, "product", "f32[5,10]", "models/layers/norm.py:5", "forward", "norm")],
    flops=4000.0,
    exchanges=[],
    seconds_to_compile=1.0,
)


def make(changes):
    return build(load(str(CONFIGS / "language_model.py"), TINY | changes))


def local(memory=math.inf, peak=None):
    return Target("here", jax.devices(), memory, peak)
