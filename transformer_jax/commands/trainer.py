"""Training by a loop of one's own, with the steps, batches and checkpoints of `train`."""

import contextlib
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from transformer_jax.checkpoint.checkpoints import origin
from transformer_jax.commands import restore
from transformer_jax.commands.message import one_line
from transformer_jax.commands.opening import check_own, lock, save
from transformer_jax.commands.start import newest, origin_of, save_vocabularies, start
from transformer_jax.config.build import built
from transformer_jax.config.load import to_json
from transformer_jax.configs.default import Config
from transformer_jax.devices import mesh
from transformer_jax.inspection import memory
from transformer_jax.models.family import Batch
from transformer_jax.process import hosts
from transformer_jax.runs import workdir as work
from transformer_jax.runs.log import cut
from transformer_jax.runs.workdir import CONFIG
from transformer_jax.training.probe import is_due
from transformer_jax.training.step import all_finite


class Trainer:
    """A run under way, from the last checkpoint of its work directory on, or anew.

        trainer = tj.trainer(config, "runs/mine")
        for batch in trainer.batches:
            loss = trainer.step(batch)["loss"]
        trainer.save()

    Training with `train` gives the same losses to the bit, and either continues from checkpoints of
    the other. (What `train.bad_step="restore"` does is for the loop to do, by another trainer.) The
    work directory is locked until `close`, or until nothing refers to this any more.

    Attributes:
      state: the `State` after the newest step: `params`, `opt_state`, `step` and more. An update of
        one's own puts another in its place, with its step counted; its batch is the next of those
        that were taken.
      batches: those of the steps that are left of train.steps, on the devices, and others for those
        that are not trained on. These come again after a restart, if they were taken last.
    """

    @one_line
    def __init__(self, config: Config, workdir: Path):
        check_own(config, workdir)
        lock(workdir)
        # By each, as a cell that runs again makes the next one before this one goes.
        work.claim(workdir)
        self.close = weakref.finalize(self, work.unlock, workdir)
        with contextlib.ExitStack() as failing, built(config, workdir) as run:
            failing.callback(self.close)
            self._run, self._workdir = run, workdir
            memory.check(run, memory.train(run))
            self._checkpoints = run.checkpoints(workdir)
            checkpoint, streams = newest(run, workdir, self._checkpoints), run.train_streams()
            if checkpoint is not None:
                restore.check_data(checkpoint, streams)  # before anything is compiled
            self._step = memory.compiled_step(run, begins=checkpoint is None)
            self.state = start(run, workdir, checkpoint, streams)
            scored = {} if checkpoint is None else origin(checkpoint).scored
            self._origin = origin_of(run, streams, scored)
            # Not to be saved again: a checkpoint that is there has scores.
            self._saved = (lambda: None) if checkpoint is None else weakref.ref(self.state)
            self._begun = -1 if checkpoint is None else int(self.state.step)
            # Where the data is behind the newest step, and behind each batch taken since, which one
            # of its arrays tells, for as long as it is there.
            self._streams, self._taken = streams.get_state(), list[tuple[weakref.ref, Any]]()
            self._number = int(self.state.step)
            self.batches = self._batches(mesh.place_ahead(streams, run.mesh))
            failing.pop_all()

    def _batches(self, ahead: Any) -> Iterator[Batch]:
        steps = self._run.train.steps
        left = steps - self._number
        with contextlib.closing(ahead):
            # The latter ends a loop that trains on none.
            while self._number < steps and len(self._taken) < left:
                batch, streams = next(ahead)
                self._taken.append((weakref.ref(jax.tree.leaves(batch)[0]), streams))
                yield batch

    @one_line
    def step(self, batch: Batch) -> dict[str, jax.Array]:
        """One step of training: its numbers, such as "loss", in nats, and "gradient_norm".

        They are scalars on the devices, so the next step need not wait for them. Where spikes are
        bad steps, or these are skipped, "bad" says whether this is one.
        """
        # Behind this batch; behind the newest, where nothing of it is as it was taken.
        arrays = {id(array) for array in jax.tree.leaves(batch)}
        places = [n for n, (array, _) in enumerate(self._taken) if id(array()) in arrays]
        with mesh.use(self._run.mesh):
            self.state, metrics = self._step(self.state, batch)
        self._number += 1
        if self._taken:
            self._advance(places[-1] if places else len(self._taken) - 1)
        return {name: value for name, value in metrics.items() if name != "window"}

    def means(self) -> dict[str, float]:
        """What `train` logs here: means over the steps since the last multiple of train.log_every.

        Raises ValueError before the first step.
        """
        return self._run.loss.means(self.state.window)

    @one_line
    def save(self) -> Path:
        """Saves a checkpoint of this state, and returns its folder once it is whole.

        Raises ValueError, and saves nothing, where a parameter, a moment or a moving average is not
        finite: training could not go on from there; where this trainer is closed, or the work
        directory has a later checkpoint, of which another one would be in front.
        """
        run, state, step = self._run, self.state, int(self.state.step)
        again = "make another trainer, which goes on from the last checkpoint"
        if not self.close.alive:
            raise ValueError(f"this trainer is closed, and does not save: {again}")
        if later := self._checkpoints.after(step):
            raise ValueError(
                f"the state is at step {step}, and {self._workdir} has a checkpoint of step "
                f"{later[-1]}, which this would be before: {again}"
            )
        if not jax.jit(all_finite)((state.params, state.ema_params, state.opt_state)):
            raise ValueError(f"the state at step {step} is not finite, and was not saved: {again}")
        if (updates := min(step - self._number, len(self._taken))) > 0:  # of one's own
            self._advance(updates - 1)
        self._number, records = step, 0
        if hosts.is_first():
            save_vocabularies(run, self._workdir)
            # What was logged after the checkpoint that this began from comes again.
            records, _ = cut(self._workdir, self._begun)
            if work.read_results(self._workdir).get("steps", step) < step:
                work.write_results(self._workdir, {"status": "running", "steps": step})
        save(self._workdir / CONFIG, to_json(run.as_json))
        if self._saved() is not state:
            self._checkpoints.save(
                step,
                state,
                streams=self._streams,
                origin=self._origin,
                metrics={},
                scheduled=is_due(step, run.train.checkpoint_every),
                records=records,
            )
            self._checkpoints.wait()
            self._saved = weakref.ref(state)
        folder = self._checkpoints.find(step)
        assert folder is not None  # it has just been saved
        return folder

    def _advance(self, place: int) -> None:
        """Puts the data behind one of the batches that were taken."""
        _, self._streams = self._taken[place]
        del self._taken[: place + 1]
