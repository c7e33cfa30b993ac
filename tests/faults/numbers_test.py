"""NaN and infinity in training: what stop, skip and restore make of them, bit for bit.

Every run is compared with a plain loop of the same compiled step over the batches that count.
"""

import hashlib
import importlib
import os
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.processes import on_eight_devices
from tests.training.tiny import spoilt
from tests.whole.command_line import call, records, results
from tests.whole.multi_host_test import TINY
from transformer_jax.checkpoint.checkpoints import restore
from transformer_jax.commands.start import begin
from transformer_jax.config.build import build, built
from transformer_jax.config.load import load, to_json
from transformer_jax.configs import default
from transformer_jax.devices.mesh import place
from transformer_jax.inspection import memory
from transformer_jax.training.optimizer import adam_state

TRIALS = int(os.environ.get("FAULT_TRIALS", "200"))  # of the long form
STEPS, EVERY = 16, 4
CHANGES = {
    "model.dropout_rate": 0.0,  # dropout goes by steps, so that a step left out would show
    "model.embedding_dropout_rate": 0.0,
    "train.steps": STEPS,
    "train.log_every": 3,
    "checkpoint.every": EVERY,
}
# Where a fault strikes: in the forward pass, the backward pass, or the state before the step.
PLACES = ("batch", "gradient", "params", "mu", "nu")
COMPILED: dict[bool, Any] = {}  # the step that skips what is bad, and the one that does not


class Killed(BaseException):
    """Ends a run without anything being saved or told, as a kill does."""


@jax.custom_vjp
def bent(x, fault):
    """x, whose gradient is multiplied by 1 + fault."""
    return x


bent.defvjp(lambda x, fault: (x, fault), lambda fault, g: (g * (1 + fault), jnp.zeros_like(fault)))


def digest(batch):
    arrays = [np.asarray(batch[name]).tobytes() for name in sorted(batch)]
    return hashlib.sha256(b"".join(arrays)).digest()


class Step:
    """The step of one process: it strikes at its faults, number of the batch -> place and value."""

    def __init__(self, run, numbers, faults=(), die_at=0, once=False):
        self.numbers, self.faults, self.mesh = numbers, dict(faults), run.mesh
        self.die_at, self.once, self.count = die_at, once, 0

        def outputs(params, batch, rng, memory):
            faults = [jnp.max(batch[name]) for name in ("forward", "backward")]
            (first, *others), structure = jax.tree.flatten(params)
            first = bent(first * (1 + faults[0]), faults[1])
            return run.outputs(jax.tree.unflatten(structure, [first, *others]), batch, rng, memory)

        self.step = COMPILED.setdefault(run.train.bad_step == "skip", run.train_step(outputs))

    def __call__(self, state, batch):
        self.count += 1
        if self.count == self.die_at:
            raise Killed
        number = self.numbers[digest(batch)]
        where, value = self.faults.get(number, ("", 0.0))
        if self.once:
            self.faults.pop(number, None)
        if where in ("params", "mu", "nu"):
            state = spoilt(state, where, value)
        rows = np.ones((len(batch["inputs"]), 1), np.float32)
        passes = {"forward": "batch", "backward": "gradient"}
        terms = {name: rows * (value if where == struck else 0) for name, struck in passes.items()}
        return self.step(state, batch | place(self.mesh, terms))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, compiled_once):
    """A folder with a config, the batches of its runs, and their numbers, from 1, by digest."""
    folder = tmp_path_factory.mktemp("numbers")
    words = np.random.default_rng(0).integers(97, 123, (300, 6), np.uint8)
    (folder / "text").write_text("\n".join(word.tobytes().decode() for word in words))
    folders = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}
    config = load(default.__file__, TINY | CHANGES | folders)
    (folder / "config.json").write_text(to_json(config))
    streams = build(config).train_streams()
    batches = [next(streams) for _ in range(4 * STEPS)]
    numbers = {digest(batch): n for n, batch in enumerate(batches, start=1)}
    assert len(numbers) == len(batches)
    with built(config, None) as run:
        first = begin(run, run.train_streams(), folder)
    return SimpleNamespace(folder=folder, batches=batches, numbers=numbers, first=first)


@pytest.fixture
def train(corpus, monkeypatch):
    """A function that trains in this process; it returns the results, or None after a kill."""

    def train(workdir, bad_step, faults=(), **kind):
        def compiled(run, *, begins):
            return Step(run, corpus.numbers, faults, **kind)

        monkeypatch.setattr(memory, "compiled_step", compiled)
        arguments = [f"--config={corpus.folder}/config.json", f"--workdir={workdir}"]
        try:
            call(*arguments, f"--config.train.bad_step={bad_step}")
        except Killed:
            return None
        return results(workdir)

    return train


def trained(state):
    """The bytes of all that a step has trained."""
    leaves = jax.tree.leaves((state.params, adam_state(state.opt_state)))
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def assert_saved(corpus, workdir, batches):
    """The newest checkpoint is what a plain loop makes of the batches of these numbers."""
    with built(load(str(workdir / "config.json")), workdir) as run:
        step, state = Step(run, corpus.numbers), jax.tree.map(jnp.copy, corpus.first)
        for number in batches:
            state, _ = step(state, place(run.mesh, corpus.batches[number - 1]))
        newest = run.checkpoints(workdir).find("last")
        assert bool(newest) == bool(batches)
        if newest:
            assert trained(restore(newest, run.abstract_state).state) == trained(state)


def fate(bad_step, number, place, value):
    """What becomes of a run with one fault: the batches that are trained on, and how it ends.

    That is the step that is bad, and whether the run ends there.
    """
    save = min(-(-number // EVERY) * EVERY, STEPS)  # the first one after the fault
    # The parameter of an infinite second moment no longer moves, until something is to be saved. A
    # moment that is not finite makes all steps after it bad, of which none helps.
    late = (place, value) == ("nu", np.inf) or (bad_step == "skip" and place in ("mu", "nu"))
    step = save if late else number
    back = (step - 1) // EVERY * EVERY
    if bad_step == "restore" and back:
        return [*range(1, back + 1), *range(step + 1, step + 1 + STEPS - back)], step, False
    if bad_step == "skip" and place in ("batch", "gradient"):
        return [n for n in range(1, STEPS + 1) if n != number], number, False
    return list(range(1, back + 1)), step, True


@pytest.mark.parametrize(
    "trial",
    [
        ("skip", 7, "gradient", np.inf, 9),
        *(pytest.param(number, marks=pytest.mark.faults) for number in range(TRIALS)),
    ],
)
def test_any_fault_at_any_step_with_a_kill_at_any_other(corpus, tmp_path, train, trial):
    if isinstance(trial, int):
        rng = np.random.default_rng(trial)
        bad_step, where = rng.choice(["stop", "skip", "restore"]), str(rng.choice(PLACES))
        number, die_at = rng.integers(1, STEPS + 1, 2).tolist()
        trial = bad_step, number, where, float(rng.choice([np.nan, np.inf])), die_at
    bad_step, number, where, value, die_at = trial
    batches, step, ends = fate(bad_step, number, where, value)
    faults = {number: (where, value)}
    unbroken = train(tmp_path / "unbroken", bad_step, faults)
    if ends:
        assert (unbroken["status"], unbroken["first_bad_step"]) == ("diverged", step)
    else:
        assert unbroken["status"] in ("finished", "plateaued")
        assert (unbroken["first_bad_step"], unbroken["bad_steps"]) == (None, [step])
    assert_saved(corpus, tmp_path / "unbroken", batches)
    train(tmp_path / "broken", bad_step, faults, die_at=die_at)
    train(tmp_path / "broken", bad_step, faults)
    assert records(tmp_path / "broken") == records(tmp_path / "unbroken")
    assert_saved(corpus, tmp_path / "broken", batches)


@pytest.mark.faults
def test_a_kill_after_restores_changes_nothing_though_the_faults_do_not_come_again(
    corpus, tmp_path, train
):
    """Two faults, back to the same checkpoint: batches up to the last one stay left out."""
    faults = {6: ("params", np.nan), 8: ("mu", np.inf)}
    assert train(tmp_path, "restore", faults, once=True, die_at=13) is None
    # Batch 8 is that of step 6 again, the second one after the checkpoint.
    assert train(tmp_path, "restore")["bad_steps"] == [6, 6]
    assert_saved(corpus, tmp_path, [1, 2, 3, 4, *range(9, 9 + STEPS - 4)])
    noted = [record["step"] for record in records(tmp_path) if "bad_step/number" in record]
    assert noted == [4, 4]


@pytest.mark.faults
def test_training_does_not_go_back_for_ever(corpus, tmp_path, monkeypatch, train, caplog):
    command = importlib.import_module("transformer_jax.commands.train")
    monkeypatch.setattr(command, "MOST_RESTORES", 2)
    run = train(tmp_path, "restore", {n: ("batch", np.nan) for n in range(6, 4 * STEPS)})
    assert (run["status"], run["first_bad_step"], run["bad_steps"]) == ("diverged", 5, [6, 5])
    assert "After 2 restores none is made" in caplog.text
    assert_saved(corpus, tmp_path, range(1, 5))


@pytest.mark.faults
def test_eight_devices_do_the_same():
    on_eight_devices("-m", "pytest", "-m", "not faults", __file__)
