"""What moves the memory is listed whole, with the lines that made it."""

import inspect

import jax
import jax.numpy as jnp
import pytest

from tests.tools.preflight.small import make
from transformer_jax.devices.mesh import use
from transformer_jax.tools.preflight import explain, hlo


def test_tables_sum_up_to_the_traffic_of_a_training_step():
    run = make({"model.remat": "dots"})
    with use(run.mesh):
        step = run.train_step().lower(run.abstract_state, run.abstract_batch())
        module = hlo.parse(step.compile().as_text())
    moves = explain.moves(module)
    traffic = sum(runs * moved for _, runs, moved in hlo.moving(module))
    assert sum(move.moved for move in moves) == pytest.approx(traffic)
    for table in explain.tables_of(moves):
        rows = [line.split() for line in table.splitlines()[2:]]  # [bytes, share, times, ...]
        assert sum(float(row[0]) for row in rows) == pytest.approx(traffic, rel=1e-2)
        assert sum(float(row[1].rstrip("%")) for row in rows) == pytest.approx(100, abs=2)
    phases = {move.phase for move in moves if move.line.startswith("models/layers/")}
    assert {"forward", "backward"} <= phases


def test_a_product_in_a_loop_counts_as_often_as_it_runs_and_has_its_line():
    def body(x, _):
        return jnp.tanh(x @ x), None

    def loop(x):
        return jax.lax.scan(body, x, None, length=7)[0]

    x = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    moves = explain.moves(hlo.parse(jax.jit(loop).lower(x).compile().as_text() or ""))
    (product,) = [move for move in moves if move.what in ("dot", "product")]
    # It reads one array, as both operands, and writes another; tanh may be fused.
    assert product.runs == 7 and product.moved in (7 * 2 * 32 * 32 * 4, 7 * 3 * 32 * 32 * 4)
    _, line = inspect.getsourcelines(body)
    assert product.line.endswith(f"explain_test.py:{line + 1}")


# How libtpu writes a Pallas kernel: its own metadata take lines, and parents count from 2.
_KERNEL = """HloModule jit_step, is_scheduled=true

FileNames
1 "/anywhere/site-packages/jax/kernel.py"
2 "/home/me/transformer_jax/models/layers/kernels/splash.py"

FunctionNames
1 "attend"

FileLocations
1 {file_name_id=2 function_name_id=1 line=76 end_line=76 column=1 end_column=2}
2 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0:T(128)} parameter(0)
  ROOT %kernel = f32[4]{0:T(128)} custom-call(%x), frontend_attributes={kernel_metadata={
"name":"kernel"
}}, metadata={op_name="jit(step)/transpose(jvp(Model))/attend/pallas_call" stack_frame_id=2}
}
"""


def test_a_kernel_of_jax_belongs_to_the_line_that_calls_it():
    (move,) = explain.moves(hlo.parse(_KERNEL))
    assert (move.moved, move.phase) == (32, "backward")
    assert move.line == "models/layers/kernels/splash.py:76"
    assert move.path == "transpose(jvp(Model))/attend/pallas_call"
