"""What is refused for its size before anything is made, and what the compiled step adds."""

import functools
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
from transformer_jax.tools.preflight.program import TooLarge, compile_decoding, compile_step


@functools.cache
def translation(**changes):
    """The default model, whose vocabulary is given, so that no data is read."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return build(load(str(CONFIGS / "default.py"), {"model.vocab_size": 8000} | named))


small = functools.cache(lambda: make({}))


@pytest.mark.parametrize(
    ("mode", "key", "value", "others"),
    [
        (memory.train, "model.d_ff", 2**31 - 1, {}),
        *(
            (memory.train, "model.num_layers", 2**31 - 1, {"model.residual": scheme})
            for scheme in ("post_ln", "keel", "ds_init")
        ),
        (memory.generate, "model.num_layers", 10**9, {"decode.beam_size": 10**4}),
        (memory.evaluate, "model.vocab_size", 2**31 - 1, {}),
        (memory.replay, "model.d_model", 10**7, {"model.positions": "rotary"}),
        (memory.train, "model.d_model", 10**8, {}),
        (memory.train, "data.batch_size", 8 * 10**8, {}),
        (memory.train, "data.row_source_length", 10**8, {}),
        (memory.train, "data.max_source_length", 10**8, {"data.packing": False}),
        (memory.train, "evaluate.batch_size", 10**8, {}),
        (memory.evaluate, "evaluate.batch_size", 10**8, {}),
        (memory.embed, "evaluate.batch_size", 10**8, {}),
        (memory.generate, "evaluate.batch_size", 10**8, {}),
        (memory.train, "decode.beam_size", 10**4, {}),
        (memory.generate, "decode.extra_length", 10**9, {}),
    ],
)
def test_what_cannot_fit_is_refused_by_the_setting_that_decides_it(limit, mode, key, value, others):
    """At once: nothing of that size is made or looped over."""
    run = translation(**{key: value}, **others)
    with pytest.raises(ValueError) as error:
        memory.check(run, mode(run))
    assert f"{key}={value}" in str(error.value) and "this machine has 24.0 GiB" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "others"),
    [
        ("model.memory_length", 5, {"model.positions": "relative"}),
        ("model.stateful", True, {"model.family": "recurrent", "model.recurrence": "lstm"}),
    ],
)
def test_what_rows_remember_is_counted_under_the_key_that_gives_it(key, value, others):
    run = translation(**{"model.architecture": "decoder_only", key: value}, **others)
    (need,) = [need for need in memory._state(run) if need.name == "memory"]
    leaves = jax.tree.leaves(run.memory(run.data.settings.batch_size))
    assert need.size == sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert f"{key}={value}" in need.settings


def test_a_table_of_positions_that_cannot_be_traced_is_refused(limit):
    """Where the batch itself would fit."""
    changes = {"data.row_source_length": 10**8, "data.batch_size": 1, "data.streams": 1}
    with pytest.raises(ValueError, match="the table of positions.*model.d_model=512.*100000000"):
        jax.tree.leaves(translation(**changes).abstract_state)


def test_a_batch_of_lines_that_is_not_decoded_is_not_refused(limit):
    """Streamed results are those of one line at a time, and scores have a length of their own."""
    run = make({"evaluate.batch_size": 10**8, "decode.method": "sample"})
    memory.check(run, memory.generate(run, rows=1))
    with pytest.raises(ValueError, match="evaluate.batch_size=100000000"):
        memory.check(run, memory.generate(run))
    run = make({"decode.extra_length": 10**9})
    memory.check(run, memory.train(run))


@pytest.mark.parametrize("mode", ["train", "evaluate", "generate", "embed", "replay"])
def test_a_run_that_fits_is_not_refused(limit, mode):
    limit(2**22)
    memory.check(small(), getattr(memory, mode)(small()))


@pytest.fixture(scope="module")
def training_step():
    """A run, and its training step."""
    run = make({"train.ema_decay": 0.9, "data.batch_size": 32, "evaluate.batch_size": 32})
    return run, compile_step(run, math.inf)


def test_the_state_is_exactly_what_the_compiled_step_takes(training_step):
    """But for the key, counters and the recent losses."""
    run, program = training_step
    state = sum(need.size for need in memory._state(run))
    batch = sum(4 * leaf.size for leaf in jax.tree.leaves(run.abstract_batch()))
    assert state + batch <= program.arguments <= state + batch + 1000
    with pytest.raises(TooLarge) as error:  # it fits into no less than it needs
        compile_step(run, program.memory - 1)
    assert error.value.needed - error.value.available == 1


def test_what_decoding_takes_at_least_is_less_than_what_is_compiled(training_step, monkeypatch):
    run, _ = training_step
    monkeypatch.setattr(memory, "_WORTH_TRACING", 0)
    sizes = {need.name: need.size for need in memory.generate(run)["decoding"]}
    assert set(sizes) == {"decoded tokens", "logits", "parameters", "decoding cache"}
    program = compile_decoding(run, math.inf)
    assert program is not None and sum(sizes.values()) <= program.memory


@pytest.mark.long
def test_the_compiled_step_is_refused_or_told_of_before_it_runs(limit, caplog, phases):
    """Attention weights of one row: only the compiled step holds them all."""
    run = make({"data.row_target_length": 3 * 10**5, "data.batch_size": 1, "data.streams": 1})
    memory.check(run, memory.train(run))
    with use(run.mesh), pytest.raises(ValueError, match="data.row_target_length=300000"):
        memory.compiled_step(run)
    run = small()
    limit(2**30, free=2**10)
    with use(run.mesh), caplog.at_level(logging.WARNING):
        phases.clear()
        memory.compiled_step(run)
    assert phases == ["Compiling the training step"]
    (record,) = caplog.records
    message = record.getMessage()
    assert "\n" not in message and "1.0 KiB free" in message and "data.batch_size=4" in message


def test_the_table_has_every_part_of_every_phase(limit):
    run = make({"train.ema_decay": 0.9})
    lines = list(memory.table(run))
    assert lines[0].split() == ["training", "scoring", "decoding"]
    names = [line[:16].strip() for line in lines[1:-1]]
    state = ["parameters", "optimizer state", "moving average"]
    assert names == ["batches", *state, "vectors", "decoded tokens", "logits", "sum"]
    assert lines[-1] == "this machine has 24.0 GiB, of which 24.0 GiB are free"
    limit(2**10)
    assert "training needs at least" in list(memory.table(run))[-1]


def test_devices_that_share_memory_need_all_of_their_copies():
    """Eight that divide the batch hold eight copies of the parameters, eight of fsdp nearly one."""

    def parameters(**mesh):
        changes = {f"mesh.{axis}": size for axis, size in mesh.items()} | {"data.batch_size": 8}
        config = load(str(CONFIGS / "language_model.py"), TINY | changes)
        return next(memory._state(build(config, devices=devices(8)))).size

    one = next(memory._state(small())).size
    assert parameters(data=8) == 8 * one
    assert one <= parameters(data=1, fsdp=8) < 1.2 * one
