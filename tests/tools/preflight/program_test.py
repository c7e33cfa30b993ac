"""What preflight counts of programs, against formulas."""

import dataclasses
import json
import math
import os
import subprocess

import jax
import jax.numpy as jnp
import pytest

from tests.tools.preflight.small import CONFIGS, PEAK, PROGRAM, TINY, make
from transformer_jax.config import load as overrides
from transformer_jax.config.build import build
from transformer_jax.devices.mesh import use
from transformer_jax.tools.preflight import hlo, program
from transformer_jax.tools.preflight.program import (
    TooLarge,
    compile_decoding,
    compile_step,
    model_flops,
    product_flops,
)


def test_model_flops_are_6_n_d_and_those_of_attention():
    """N: all kernels and, for the logits, the table; attention: 12 T H K a layer and token."""
    run = make({})
    leaves = jax.tree_util.tree_leaves_with_path(run.abstract_state().params)
    kernels = ("query", "key", "value", "output", "up", "down", "table")
    sizes = [leaf.size for path, leaf in leaves if path[-1].key in kernels]
    assert len(sizes) == len(kernels)
    tokens, length, width = 4 * 16, 16, 32
    expected = 6 * sum(sizes) * tokens + 12 * 3 * length * width * tokens
    assert model_flops(run) == expected


def test_seconds_at_peak_are_the_model_flops_over_what_all_devices_can_do(monkeypatch):
    run = make({})
    assert program.seconds_at_peak(run) is None  # a CPU's peak is not known
    monkeypatch.setattr(program, "local_peak", lambda device: PEAK)
    assert program.seconds_at_peak(run) == model_flops(run) / (PEAK.flops * run.mesh.size)


def test_flops_of_a_step_count_every_layer_and_what_is_computed_again():
    def flops(**changes):
        run = make({f"model.{name}": value for name, value in changes.items()})
        with use(run.mesh):
            arguments = run.abstract_state(), run.abstract_batch()
            return product_flops(run.train_step().trace(*arguments))

    three, five = flops(num_layers=3), flops(num_layers=5)
    assert three == model_flops(make({}))
    a_layer = (five - three) / 2
    logits = three - 3 * a_layer
    assert logits == 6 * 64 * 32 * 4 * 16
    # The forward pass, a third of all, runs once more, but for each layer's last product.
    assert flops(num_layers=3, remat="full") == three + a_layer - 3 * (2 * 48 * 32 * 4 * 16)


def test_flops_of_branches_are_those_of_the_largest():
    def branches(x):
        return jax.lax.cond(jnp.sum(x) > 0, lambda: x @ x @ x, lambda: x @ x)

    traced = jax.jit(branches).trace(jax.ShapeDtypeStruct((5, 5), "float32"))
    assert product_flops(traced) == 2 * 2 * 125


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


def test_a_step_takes_the_state_and_the_batch_and_fits_into_no_less_than_it_needs():
    run = make({})
    program = compile_step(run, math.inf)
    with pytest.raises(TooLarge) as error:
        compile_step(run, program.memory - 1)
    assert error.value.needed - error.value.available == 1
    arguments = run.abstract_state(), run.abstract_batch()
    arrays = [leaf for leaf in jax.tree.leaves(arguments) if leaf.dtype != jax.random.key(0).dtype]
    expected = sum(leaf.size * leaf.dtype.itemsize for leaf in arrays)
    # A key and a counter more, and what aligns them.
    assert expected <= program.arguments <= expected + 1000


def test_memory_is_all_but_what_results_take_over():
    assert PROGRAM.memory == 5 * 2**30


def test_a_model_that_generates_nothing_has_no_decoding():
    config = overrides.load(str(CONFIGS / "masked_lm.py"), {"model.vocab_size": 64})
    assert compile_decoding(build(config), math.inf) is None


def test_splash_is_refused_where_there_is_no_tpu():
    with pytest.raises(ValueError, match="'splash' is for TPUs.*'cpu': set it to 'xla'"):
        make({"model.attention_kernel": "splash"})


# Compiles one step and tells what it exchanges, and the bytes of its arguments and parameters.
SCRIPT = """
import json, sys, jax
from transformer_jax import overrides
from transformer_jax.build import build
from transformer_jax.preflight.program import compile_step
from transformer_jax.preflight.report import target

of = target("v5e-4")
run = build(overrides.load(sys.argv[1], json.loads(sys.argv[2])), None, of.devices)
program = compile_step(run, of.memory)
exchanges = [[found.kind, found.axes] for found in program.exchanges]
parameters = sum(leaf.size * 4 for leaf in jax.tree.leaves(run.abstract_state().params))
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
    done = subprocess.run(
        [python, "-c", SCRIPT, CONFIGS / "language_model.py", json.dumps(TINY | changes)],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    exchanges, arguments, parameters = json.loads(done.stdout)
    assert ["all-gather", ["fsdp"]] in exchanges
    assert arguments < 3 * parameters / 2  # parameters and two moments, most sharded over four
