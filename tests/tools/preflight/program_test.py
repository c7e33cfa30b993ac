"""What preflight counts of programs, against formulas."""

import dataclasses
import json
import math
import os

import pytest

from tests.processes import printed
from tests.tools.preflight.small import CONFIGS, PEAK, PROGRAM, TINY, make
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.tools.preflight import hlo
from transformer_jax.tools.preflight.program import compile_decoding


def test_times_are_work_over_speed():
    exchange = hlo.Collective("all-reduce", ("data",), group=4, across=2, calls=1, payload=8.0)
    program = dataclasses.replace(PROGRAM, exchanges=[exchange])
    # Sums over pairs within slices send what there is once, and then between slices half of it.
    assert program.times(PEAK) == {
        "products": 40.0,
        "memory": 60.0,
        "exchanges": 8.0 / 2.0,
        "exchanges between slices": 4.0 / 1.0,
    }


def test_a_model_that_generates_nothing_has_no_decoding():
    config = load(str(CONFIGS / "masked_lm.py"), {"model.vocab_size": 64})
    assert compile_decoding(build(config), math.inf) is None


def test_splash_is_refused_where_there_is_no_tpu():
    with pytest.raises(ValueError, match="'splash' is for TPUs.*'cpu': set it to 'xla'"):
        make({"model.attention_kernel": "splash"})


# Compiles one step and tells what it exchanges, and the bytes of its arguments and parameters.
SCRIPT = """
import json, sys, jax
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.tools.preflight.program import compile_step
from transformer_jax.tools.preflight.report import target

of = target("v5e-4")
run = build(load(sys.argv[1], json.loads(sys.argv[2])), None, of.devices)
program = compile_step(run, of.memory)
exchanges = [[exchange.kind, exchange.axes] for exchange in program.exchanges]
parameters = sum(leaf.size * 4 for leaf in jax.tree.leaves(run.abstract_state.params))
print(json.dumps([exchanges, program.arguments, parameters]))
"""


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["xla", "splash"])
def test_a_step_compiles_for_a_tpu_slice_that_is_not_there(kernel):
    """By libtpu in its own environment; parameters are sharded over fsdp, and gathered over it."""
    python = CONFIGS.parent / ".venv-preflight/bin/python"
    if not python.exists():
        pytest.skip("needs .venv-preflight, which `./launch.sh preflight` makes")
    changes = {"mesh.fsdp": 2, "mesh.tensor": 2, "model.attention_kernel": kernel}
    changes |= {"data.row_target_length": 128, "model.d_model": 256}
    command = [str(python), "-c", SCRIPT, str(CONFIGS / "language_model.py")]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    text = printed(*command, json.dumps(TINY | changes), env=environment)
    exchanges, arguments, parameters = json.loads(text)
    assert ["all-gather", ["fsdp"]] in exchanges
    assert arguments < 3 * parameters / 2  # parameters and two moments, most sharded over four
