"""NaN and infinity in training: what stop, skip and restore make of them, bit for bit.

Every run is compared with a plain loop of the same compiled step over the batches that count.
"""

import dataclasses
import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from tests.whole.command_line import BYTES, call, records, results
from transformer_jax.checkpoint.checkpoints import restore
from transformer_jax.commands.start import begin
from transformer_jax.config.build import build, built
from transformer_jax.config.load import load, to_json
from transformer_jax.devices.mesh import place
from transformer_jax.inspection import memory
from transformer_jax.training.optimizer import adam_state

TRIALS = int(os.environ.get("FAULT_TRIALS", "200"))  # of the long form
STEPS, EVERY = 16, 4
TINY = BYTES | {
    "data.train": ("text",),
    "data.validation_size": 16,
    "data.test": (),
    "model.architecture": "encoder_only",
    "model.num_layers": 1,
    "model.dropout_rate": 0.0,  # dropout goes by steps, so that a step left out would show
    "model.embedding_dropout_rate": 0.0,
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": 0,
    "train.steps": STEPS,
    "train.log_every": 3,
    "train.evaluate_every": 0,
    "checkpoint.every": EVERY,
    "checkpoint.best_metric": "",
    "evaluate.batch_size": 8,
    "mesh.data": 1,
    "mesh.fsdp": -1,
}
# Where a fault strikes: in the forward pass, the backward pass, or the state before the step.
PLACES = ("batch", "gradient", "params", "mu", "nu")


class Killed(BaseException):
    """Ends a run without anything being saved or told, as a kill does."""


@jax.custom_vjp
def bent(x, fault):
    """x, whose gradient is multiplied by 1 + fault."""
    return x


bent.defvjp(lambda x, fault: (x, fault), lambda fault, g: (g * (1 + fault), jnp.zeros_like(fault)))


def digest(batch):
    return hashlib.sha256(b"".join(np.asarray(batch[name]).tobytes() for name in sorted(batch)))


def spoilt(state, field, value):
    """The state with this value in one place of the first array that belongs to the field."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    first = next(i for i, name in enumerate(names) if f".{field}" in name)
    arrays = [leaf for _, leaf in leaves]
    place = (0,) * arrays[first].ndim
    arrays[first] = jax.device_put(arrays[first].at[place].set(value), arrays[first].sharding)
    return jax.tree.unflatten(structure, arrays)


COMPILED: dict[bool, Any] = {}  # steps that skip what is bad, and those that do not


def faulty_step(run):
    """The compiled step of a run of `TINY`, whose batches have two columns more."""

    def outputs(params, batch, rng, memory):
        batch = dict(batch)
        forward, backward = jnp.max(batch.pop("forward")), jnp.max(batch.pop("backward"))
        (first, *others), structure = jax.tree.flatten(params)
        first = bent(first * (1 + forward), backward)
        return run.outputs(jax.tree.unflatten(structure, [first, *others]), batch, rng, memory)

    skips = run.train.bad_step == "skip"
    if skips not in COMPILED:
        COMPILED[skips] = run.train_step(outputs)
    return COMPILED[skips]


class Step:
    """The step of one process: it strikes at its faults, number of the batch -> place and value."""

    def __init__(self, numbers, faults=(), die_at=0, once=False):
        self.numbers, self.faults = numbers, dict(faults)
        self.die_at, self.once, self.made = die_at, once, 0

    def compiled(self, run, step=None):
        self.run, self.step = run, faulty_step(run)
        return self

    def __call__(self, state, batch):
        self.made += 1
        if self.made == self.die_at:
            raise Killed
        number = self.numbers[digest(batch).digest()]
        where, value = self.faults.get(number, ("", 0.0))
        if self.once:
            self.faults.pop(number, None)
        if where in ("params", "mu", "nu"):
            state = spoilt(state, where, value)
        rows = np.ones((len(batch["inputs"]), 1), np.float32)
        columns = {"forward": "batch", "backward": "gradient"}
        own = {name: rows * (value if where == place else 0) for name, place in columns.items()}
        return self.step(state, batch | place(self.run.mesh, own))


@dataclasses.dataclass
class Corpus:
    """A config file, and what runs of it are made of."""

    folder: Path
    batches: list[Any]
    numbers: dict[bytes, int]
    first: Any = None  # the state before the first step

    def train(self, monkeypatch, workdir, bad_step, faults=(), **kind):
        """Trains in this process; whether it came to an end, and its results."""
        step = Step(self.numbers, faults, **kind)
        with monkeypatch.context() as patch:
            patch.setattr(memory, "compiled_step", step.compiled)
            arguments = [f"--config={self.folder}/config.json", f"--workdir={workdir}"]
            try:
                call(*arguments, f"--config.train.bad_step={bad_step}")
            except Killed:
                return None
        return results(workdir)

    def expected(self, numbers, bad_step="stop"):
        """The state after the batches of these numbers, by a plain loop."""
        with built(self.config(bad_step), None) as run:
            step = Step(self.numbers)
            step.compiled(run)
            self.first = self.first or begin(run, run.train_streams())
            state = jax.tree.map(jnp.copy, self.first)
            for number in numbers:
                state, _ = step(state, place(run.mesh, self.batches[number - 1]))
        return trained(state)

    def config(self, bad_step):
        return load(str(self.folder / "config.json"), {"train.bad_step": bad_step})

    def saved(self, workdir, step):
        run = build(self.config("stop"), workdir)
        return trained(restore(workdir / "checkpoints" / str(step), run.abstract_state()).state)


def trained(state):
    """The bytes of all that a step has trained."""
    leaves = jax.tree.leaves((state.params, adam_state(state.opt_state)))
    return [np.asarray(leaf).tobytes() for leaf in leaves]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, compiled_once):
    folder = tmp_path_factory.mktemp("numbers")
    words = np.random.default_rng(0).integers(97, 123, (300, 6), np.uint8)
    (folder / "text").write_text("\n".join(word.tobytes().decode() for word in words))
    folders = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}
    config = load(default.__file__, TINY | folders)
    (folder / "config.json").write_text(to_json(config))
    streams = build(config).train_streams()
    batches = [next(streams) for _ in range(4 * STEPS)]
    numbers = {digest(batch).digest(): n for n, batch in enumerate(batches, start=1)}
    assert len(numbers) == len(batches)
    return Corpus(folder, batches, numbers)


def fate(bad_step, number, place, value):
    """What becomes of a run with one fault: the batches that are trained on, and how it ends.

    That is the step that is bad, and whether the run ends there.
    """
    save = min(-(-number // EVERY) * EVERY, STEPS)  # the first one after the fault
    # The parameter of an infinite second moment no longer moves, until something is to be saved. A
    # moment that is not finite makes all steps after it bad, of which none helps.
    late = (place, value) == ("nu", np.inf) or (bad_step == "skip" and place in ("mu", "nu"))
    seen = save if late else number
    back = (seen - 1) // EVERY * EVERY
    if bad_step == "restore" and back:
        return [*range(1, back + 1), *range(seen + 1, seen + 1 + STEPS - back)], seen, False
    if bad_step == "skip" and place in ("batch", "gradient"):
        return [n for n in range(1, STEPS + 1) if n != number], number, False
    return list(range(1, back + 1)), seen, True


def check(corpus, workdir, bad_step, fault, found):
    batches, step, ends = fate(bad_step, *fault)
    saved = max((int(path.name) for path in workdir.glob("checkpoints/*")), default=0)
    if ends:
        assert (found["status"], found["first_bad_step"]) == ("diverged", step)
        assert saved == len(batches)
    else:
        assert found["status"] in ("finished", "plateaued") and saved == STEPS
        assert (found["first_bad_step"], found["bad_steps"]) == (None, [step])
    if saved:
        assert corpus.saved(workdir, saved) == corpus.expected(batches, bad_step)


@pytest.mark.parametrize(
    ("bad_step", "number", "place", "value"),
    [
        ("stop", 9, "nu", np.inf),
        ("skip", 7, "gradient", np.inf),
        ("skip", 10, "mu", np.nan),
        ("restore", 11, "params", np.nan),
        pytest.param("restore", 2, "batch", np.nan, marks=pytest.mark.faults),
    ],
)
def test_a_fault_is_dealt_with_as_the_config_says(
    corpus, tmp_path, monkeypatch, bad_step, number, place, value
):
    found = corpus.train(monkeypatch, tmp_path, bad_step, {number: (place, value)})
    check(corpus, tmp_path, bad_step, (number, place, value), found)


def test_a_kill_after_a_restore_changes_nothing_though_the_fault_does_not_come_again(
    corpus, tmp_path, monkeypatch
):
    """Two faults, back to the same checkpoint: batches up to the last one stay left out."""
    faults = {6: ("params", np.nan), 8: ("mu", np.inf)}
    assert corpus.train(monkeypatch, tmp_path, "restore", faults, once=True, die_at=13) is None
    found = corpus.train(monkeypatch, tmp_path, "restore")
    # Batch 8 is that of step 6 again, the second one after the checkpoint.
    assert found["bad_steps"] == [6, 6]
    numbers = [1, 2, 3, 4, *range(9, 9 + STEPS - 4)]
    assert corpus.saved(tmp_path, STEPS) == corpus.expected(numbers, "restore")
    noted = [record["step"] for record in records(tmp_path) if "bad_step/number" in record]
    assert noted == [4, 4]


def test_training_does_not_go_back_for_ever(corpus, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(
        importlib.import_module("transformer_jax.commands.train"), "MOST_RESTORES", 2
    )
    faults = {number: ("batch", np.nan) for number in range(6, 4 * STEPS)}
    found = corpus.train(monkeypatch, tmp_path, "restore", faults)
    assert (found["status"], found["first_bad_step"], found["bad_steps"]) == ("diverged", 5, [6, 5])
    assert "After 2 restores none is made" in caplog.text
    assert corpus.saved(tmp_path, 4) == corpus.expected(range(1, 5))


@pytest.mark.faults
@pytest.mark.parametrize("trial", range(TRIALS))
def test_any_fault_at_any_step_with_a_kill_at_any_step(corpus, tmp_path, monkeypatch, trial):
    rng = np.random.default_rng(trial)
    bad_step, place = rng.choice(["stop", "skip", "restore"]), rng.choice(PLACES)
    value = float(rng.choice([np.nan, np.inf]))
    fault = int(rng.integers(1, STEPS + 1)), str(place), value
    faults = {fault[0]: fault[1:]}
    die_at, found = int(rng.integers(1, STEPS + 1)), None
    unbroken = corpus.train(monkeypatch, tmp_path / "unbroken", bad_step, faults)
    check(corpus, tmp_path / "unbroken", bad_step, fault, unbroken)
    while found is None:
        found = corpus.train(monkeypatch, tmp_path / "broken", bad_step, faults, die_at=die_at)
        die_at = 0
    check(corpus, tmp_path / "broken", bad_step, fault, found)
    assert records(tmp_path / "broken") == records(tmp_path / "unbroken")


@pytest.mark.faults
def test_eight_devices_do_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "not faults", __file__],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
