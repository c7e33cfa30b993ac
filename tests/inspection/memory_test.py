"""What is estimated of memory, what is refused and what is only told."""

import logging
import math

import jax
import pytest

from tests.devices.fakes import devices
from tests.tools.preflight.small import CONFIGS, TINY, make
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.devices.mesh import use
from transformer_jax.inspection import memory
from transformer_jax.process import machine
from transformer_jax.process.machine import Memory
from transformer_jax.tools.preflight.program import compile_decoding, compile_step

MODES = (memory.train, memory.evaluate, memory.generate, memory.stream, memory.replay)


@pytest.fixture
def limit(monkeypatch):
    """A function that gives this machine so many bytes of memory, all or some of them free."""

    def set_limit(whole, free=None):
        found = Memory(whole, whole if free is None else free)
        monkeypatch.setattr(machine, "memory", lambda: found)

    set_limit(24 * 2**30)
    return set_limit


def translation(**changes):
    """The default model, whose vocabulary is given, so that no data is read."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return build(load(str(CONFIGS / "default.py"), {"model.vocab_size": 8000} | named))


@pytest.mark.parametrize(
    ("mode", "key", "value", "others"),
    [
        (memory.train, "model.d_ff", 2**31 - 1, {}),
        (memory.train, "model.num_layers", 10**6, {}),
        (memory.train, "model.num_layers", 2**31 - 1, {}),
        (memory.evaluate, "model.vocab_size", 2**31 - 1, {}),
        (memory.replay, "model.d_model", 10**7, {"model.positions": "rotary"}),
        (memory.train, "data.batch_size", 8 * 10**8, {}),
        (memory.train, "data.row_source_length", 10**6, {}),
        (memory.train, "data.max_source_length", 10**6, {"data.packing": False}),
        (memory.train, "evaluate.batch_size", 10**8, {}),
        (memory.evaluate, "evaluate.batch_size", 10**8, {}),
        (memory.generate, "evaluate.batch_size", 10**8, {}),
        (memory.train, "decode.beam_size", 10**4, {}),
        (memory.generate, "decode.extra_length", 10**9, {}),
    ],
)
def test_what_cannot_fit_is_refused_by_the_setting_that_decides_it(limit, mode, key, value, others):
    """At once: nothing of that size is made, traced or looped over."""
    run = translation(**{key: value}, **others)
    with pytest.raises(ValueError) as error:
        memory.check(run, mode)
    assert f"{key}={value}" in str(error.value) and "this machine has 24.0 GiB" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_of_positions_that_cannot_be_traced_is_refused_by_build(limit):
    with pytest.raises(
        ValueError, match="24.0 GiB.*the table of positions.*model.d_model=100000000"
    ):
        translation(model__d_model=10**8)


def test_a_batch_of_lines_that_is_not_decoded_is_not_refused(limit):
    """Streamed results are those of one line at a time, and scores have a length of their own."""
    large = {"evaluate.batch_size": 10**7, "decode.method": "sample"}
    run = make(large)
    memory.check(run, memory.stream)
    with pytest.raises(ValueError, match="evaluate.batch_size=10000000"):
        memory.check(run, memory.generate)
    memory.check(make({"decode.extra_length": 10**9}), memory.train)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_fits_is_told_nothing(limit, caplog, mode):
    limit(2**26)
    memory.check(make({}), mode)
    assert not caplog.records


def test_what_probably_does_not_fit_is_told_in_one_line(limit, caplog):
    limit(2**34, free=2**20)
    with caplog.at_level(logging.WARNING):
        memory.check(make({"data.batch_size": 1024}), memory.train)
    (record,) = caplog.records
    message = record.getMessage()
    assert "\n" not in message and "1.0 MiB free" in message and "data.batch_size=1024" in message


@pytest.fixture(scope="module")
def compiled():
    """A run, and its training step."""
    run = make({"train.ema_decay": 0.9, "data.batch_size": 32, "evaluate.batch_size": 32})
    return run, compile_step(run, math.inf)


def test_the_state_is_exactly_what_the_compiled_step_takes(compiled):
    """But for the key, counters and the recent losses."""
    run, program = compiled
    state = sum(need.least for need in memory._state(run))
    batch = sum(4 * leaf.size for leaf in jax.tree.leaves(run.abstract_batch()))
    assert state + batch <= program.arguments <= state + batch + 1000


def test_estimates_are_between_what_is_certain_and_twice_what_is_compiled(compiled):
    run, step = compiled
    state = memory._state(run)
    (decoding,) = memory.generate(run, state)
    program = compile_decoding(run, math.inf)
    assert program is not None
    for phase, needed in ((memory.train(run, state)[0], step.memory), (decoding, program.memory)):
        least = sum(need.least for need in phase.held) + max(need.least for need in phase.used)
        assert least <= needed, phase.name
        assert needed / 2 < phase.likely < 2 * needed, phase.name


def test_the_table_has_every_part_of_every_phase(limit):
    run = make({"train.ema_decay": 0.9})
    with use(run.mesh):
        lines = list(memory.table(run))
    assert lines[0].split() == ["training", "scoring", "decoding"]
    names = "parameters optimizer moving gradients batches activations attention logits decoding"
    found = [line.split()[0] for line in lines[1:-2]]
    assert set(names.split()) <= set(found)
    assert lines[-2].split()[0] == "sum"
    assert lines[-1] == "this machine has 24.0 GiB, of which 24.0 GiB are free"
    limit(2**10)
    assert any("training needs at least" in line for line in memory.table(run))


def test_devices_that_share_memory_need_all_of_their_copies():
    """Eight that divide the batch hold eight copies of the parameters, eight of fsdp nearly one."""

    def parameters(**mesh):
        changes = {f"mesh.{axis}": size for axis, size in mesh.items()} | {"data.batch_size": 8}
        config = load(str(CONFIGS / "language_model.py"), TINY | changes)
        run = build(config, devices=devices(8))
        (least, *_), (exact, *_) = memory._least(run), memory._state(run)
        assert least.least <= exact.least
        return exact.least

    one = memory._state(make({}))[0].least
    assert parameters(data=8) == 8 * one
    assert one <= parameters(data=1, fsdp=8) < 1.2 * one


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "vocab_size"), [("quickstart", 486), ("multi30k", 6000), ("rnnsearch", 503)]
)
def test_the_estimate_of_a_config_is_near_what_is_compiled(name, vocab_size):
    config = load(str(CONFIGS / f"{name}.py"), {"model.vocab_size": vocab_size})
    run = build(config)
    needed = compile_step(run, math.inf).memory
    estimated = memory.train(run, memory._state(run))[0].likely
    assert needed / 2 < estimated < 2 * needed
