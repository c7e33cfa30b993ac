"""What preflight counts, against formulas; what it says of programs that do not fit."""

import dataclasses
import json
import math
import os
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from transformer_jax import commands, overrides
from transformer_jax.build import build
from transformer_jax.devices import mesh as sharding
from transformer_jax.preflight import hlo
from transformer_jax.preflight import report as preflight
from transformer_jax.preflight.chips import Peak
from transformer_jax.preflight.report import Program, Target, TooLarge

CONFIGS = Path(__file__).parents[2] / "configs"
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
    kept=2**30,
    temporaries=2**30,
    code=0.0,
    traffic=600.0,
    flops=4000.0,
    exchanges=[],
    seconds_to_compile=1.0,
)


def make(changes):
    return build(overrides.load(str(CONFIGS / "language_model.py"), TINY | changes))


def local(memory=math.inf, peak=None):
    return Target("here", jax.devices(), memory, peak)


def test_model_flops_are_6_n_d_and_those_of_attention():
    """N: all kernels, and the table, for the logits; attention: 12 T H K a layer and token."""
    run = make({})
    leaves = jax.tree_util.tree_leaves_with_path(run.abstract_state().params)
    kernels = ("query", "key", "value", "output", "up", "down", "table")
    sizes = [leaf.size for path, leaf in leaves if path[-1].key in kernels]
    assert len(sizes) == len(kernels)
    tokens, length, width = 4 * 16, 16, 32
    expected = 6 * sum(sizes) * tokens + 12 * 3 * length * width * tokens
    assert preflight.model_flops(run) == expected


def test_flops_of_a_step_count_every_layer_and_what_is_computed_again():
    def flops(**changes):
        run = make({f"model.{name}": value for name, value in changes.items()})
        with sharding.use(run.mesh):
            arguments = run.abstract_state(), run.abstract_batch()
            return preflight.product_flops(run.train_step(), *arguments)

    three, five = flops(num_layers=3), flops(num_layers=5)
    assert three == preflight.model_flops(make({}))
    a_layer = (five - three) / 2
    logits = three - 3 * a_layer
    assert logits == 6 * 64 * 32 * 4 * 16
    # The forward pass, a third of all, runs once more, but for each layer's last product.
    assert flops(num_layers=3, remat="full") == three + a_layer - 3 * (2 * 48 * 32 * 4 * 16)


def test_flops_of_branches_are_those_of_the_largest():
    def branches(x):
        return jax.lax.cond(jnp.sum(x) > 0, lambda: x @ x @ x, lambda: x @ x)

    assert preflight.product_flops(branches, jax.ShapeDtypeStruct((5, 5), "float32")) == 2 * 2 * 125


def test_times_are_work_over_speed_and_the_longest_decides():
    exchange = hlo.Collective("all-reduce", ("data",), group=4, across=2, calls=1, payload=8.0)
    program = dataclasses.replace(PROGRAM, exchanges=[exchange])
    # Sums over pairs within slices send what there is once, and then between slices half of it.
    assert program.times(PEAK) == {
        "products": 40.0,
        "memory": 60.0,
        "exchanges": 8.0 / 2.0,
        "exchanges between slices": 4.0 / 1.0,
    }
    (text,) = [
        text for text in preflight._texts("Step", program, local(peak=PEAK)) if "least" in text
    ]
    assert "at least 60 s, for memory" in text


def test_memory_is_all_but_what_results_take_over():
    assert PROGRAM.memory == 5 * 2**30


def test_the_report_of_this_machine():
    """Arguments are the state and the batch; both programs are there, and fit."""
    run, (step, decoding) = make({}), ("Training step: fits", "Decoding: ")
    texts = list(preflight.report(make, local()))
    assert [any(text.startswith(name) for text in texts) for name in (step, decoding)] == [True] * 2
    program = preflight.compile_step(run, math.inf)
    arguments = run.abstract_state(), run.abstract_batch()
    with pytest.raises(TooLarge) as error:
        preflight.compile_step(run, program.memory - 1)
    assert error.value.needed - error.value.available == 1
    arrays = [leaf for leaf in jax.tree.leaves(arguments) if leaf.dtype != jax.random.key(0).dtype]
    expected = sum(leaf.size * leaf.dtype.itemsize for leaf in arrays)
    # A key and a counter more, and what aligns them.
    assert expected <= program.arguments <= expected + 1000


def test_what_does_not_fit_says_by_how_much_and_what_would_fit(monkeypatch):
    def compile_step(run, memory):
        lightest = run.model.config.remat == "full" and run.train.accumulation_steps == 2
        if not lightest:
            raise TooLarge(needed=7 * 2**30, available=memory)
        return PROGRAM

    monkeypatch.setattr(preflight, "compile_step", compile_step)
    texts = []
    with pytest.raises(RuntimeError) as error:
        texts.extend(preflight.report(make, local(memory=5.5 * 2**30)))
    assert "7.00 of 5.50 GiB of each device, 1.50 GiB too much" in str(error.value)
    expected = "--config.model.remat=full --config.train.accumulation_steps=2"
    assert str(error.value).endswith(f"it fits with {expected}")


def test_where_nothing_makes_it_fit_larger_devices_are_asked_for(monkeypatch):
    def compile_step(run, memory):
        raise TooLarge(needed=7 * 2**30, available=memory)

    monkeypatch.setattr(preflight, "compile_step", compile_step)
    with pytest.raises(RuntimeError, match="take more or larger devices"):
        list(preflight.report(make, local(memory=5.5 * 2**30)))


def test_search_lists_what_fits_fastest_first(monkeypatch):
    """One device has one mesh, and so three candidates: here the first does not fit."""

    def compile_step(run, memory):
        flops = {"dots": 9000.0, "full": 8000.0}.get(run.model.config.remat)
        if flops is None:
            raise TooLarge(needed=2 * memory, available=memory)
        return dataclasses.replace(PROGRAM, flops=flops)

    monkeypatch.setattr(preflight, "compile_step", compile_step)
    texts = list(preflight.search(make, local(memory=2**33, peak=PEAK)))
    assert "--config.model.remat=none: too large, 16.00 of 8.00 GiB" in texts[0]
    ranking = texts[texts.index("\n2 fit, fastest first:") + 1 :]
    assert [text.split("remat=")[1] for text in ranking] == ["full", "dots"]
    assert "80 s (products), 5.00 GiB" in ranking[0]


def test_the_command_prints_what_is_found_of_the_run_and_of_its_changes(monkeypatch, capsys):
    def report(make, of):
        yield of.name
        yield f"{make({}).train.steps} and {make({'train.steps': 7}).train.steps} steps"

    monkeypatch.setattr(preflight, "report", report)
    config = overrides.load(str(CONFIGS / "language_model.py"), TINY | {"train.steps": 5})
    assert commands.preflight(config, None, False) == 0
    name, steps = capsys.readouterr().out.splitlines()
    assert name.startswith("this machine: 1 device") and steps == "5 and 7 steps"


def test_a_model_that_generates_nothing_has_no_decoding():
    config = overrides.load(str(CONFIGS / "masked_lm.py"), {"model.vocab_size": 64})
    assert preflight.compile_decoding(build(config), math.inf) is None


def test_splash_is_refused_where_there_is_no_tpu():
    with pytest.raises(ValueError, match="'splash' is for TPUs.*'cpu': set it to 'xla'"):
        make({"model.attention_kernel": "splash"})


# Compiles one step and tells what it exchanges, and the bytes of its arguments and parameters.
SCRIPT = """
import json, sys, jax
from transformer_jax import overrides
from transformer_jax.preflight import report as preflight
from transformer_jax.build import build

of = preflight.target("v5e-4")
run = build(overrides.load(sys.argv[1], json.loads(sys.argv[2])), None, of.devices)
program = preflight.compile_step(run, of.memory)
exchanges = [[found.kind, found.axes] for found in program.exchanges]
parameters = sum(leaf.size * 4 for leaf in jax.tree.leaves(run.abstract_state().params))
print(json.dumps([exchanges, program.arguments, parameters]))
"""


@pytest.mark.parametrize("kernel", ["xla", "splash"])
def test_a_step_compiles_for_a_tpu_slice_that_is_not_there(kernel):
    """By libtpu in its own environment; parameters are cut over fsdp, and gathered over it."""
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
    assert arguments < 3 * parameters / 2  # parameters and two moments, most cut in four
