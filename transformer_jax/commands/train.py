"""Trains a run, or continues it, and scores what came of it."""

import contextlib
import itertools
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
from absl import logging

from transformer_jax.commands import restore
from transformer_jax.commands.opening import final_status, is_scored, lock, save
from transformer_jax.commands.start import newest, origin_of, save_vocabularies, start
from transformer_jax.config import effects
from transformer_jax.config.build import built
from transformer_jax.config.load import to_json
from transformer_jax.configs.default import Config
from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.summary import report, too_long
from transformer_jax.devices import mesh
from transformer_jax.inspection import memory
from transformer_jax.inspection.flops import seconds_at_peak
from transformer_jax.inspection.probes import probes
from transformer_jax.inspection.spikes import spike_scores
from transformer_jax.models import FAMILIES
from transformer_jax.process import hosts, interrupt, progress, watch
from transformer_jax.run import Run
from transformer_jax.runs import log as run_log
from transformer_jax.runs import trackers
from transformer_jax.runs.log import RunLog
from transformer_jax.runs.workdir import (
    CONFIG,
    SAMPLES,
    flatten,
    read_fork,
    read_metrics,
    read_results,
    saved_steps,
)
from transformer_jax.training import loop
from transformer_jax.training.probe import Observation, is_listed
from transformer_jax.training.state import State

MOST_RESTORES = 10  # of a process, after bad steps
_EXIT_CODES = {"finished": 0, "plateaued": 0, "diverged": 1, "preempted": interrupt.EXIT_STATUS}


def train(config: Config, workdir: Path) -> int:
    """Trains, or continues training, in a work directory; then scores and shows the results.

    A run that has made all its steps ends as "finished", "plateaued" or "diverged" (see
    `Task.judge`) and only shows its results again. SIGTERM and SIGINT save and end it as
    "preempted"; a bad step that is neither skipped nor restored from ends it as "diverged", and a
    rerun continues from the last checkpoint before.
    """
    status = trained(config, workdir)
    if hosts.is_first():
        _show(workdir, replays=FAMILIES[config.model.family].inspected)
    return _EXIT_CODES[status]


def trained(config: Config, workdir: Path) -> str:
    """`train`, which shows no results; returns the status."""
    if status := hosts.first(lambda: final_status(config, workdir)):
        return status  # it may even lie in a folder that cannot be written
    for line in effects.notes(config) if hosts.is_first() else ():
        logging.warning("%s", line)
    lock(workdir)
    hosts.first(lambda: trackers.check(config.log.trackers))  # before anything is compiled
    with built(config, workdir) as run:
        return _train(run, workdir)


def _train(run: Run, workdir: Path) -> str:
    """Trains and scores; returns the status."""
    memory.check(run, memory.train(run))
    checkpoints = run.checkpoints(workdir)
    checkpoint = newest(run, workdir, checkpoints)
    # All data is read before anything is written, so that a mistake in it comes at once.
    splits = {name: run.data.split(name) for name in ("validation", "test") if run.data.has(name)}
    streams = run.train_streams()
    summaries = run.data.summaries()
    if hosts.is_first():
        print(report(summaries), flush=True)
    contents = {name: summaries[name].content for name in splits}
    if checkpoint is not None:
        restore.check_data(checkpoint, streams)
        if hosts.is_first():
            restore.warn_of_scores(checkpoint, contents)
    observing = probes(run, splits["validation"])
    # Before there is a state, so that nothing is made in vain, and only where steps are left.
    todo = checkpoint is None or int(checkpoint.name) < run.train.steps
    train_step = memory.compiled_step(run, begins=checkpoint is None) if todo else run.train_step()
    state = start(run, workdir, checkpoint, streams)
    if hosts.is_first():
        save_vocabularies(run, workdir)
        if checkpoint is not None and not todo:
            checkpoints.tidy(int(checkpoint.name))  # since no save does it any more
        if run.mesh.size > 1:
            print(_mesh_line(run))

    log = _opened_log(run, workdir, -1 if checkpoint is None else int(state.step))
    log.results({"too_long": too_long(summaries) or None})
    origin = origin_of(run, streams, contents)

    def save_checkpoint(step: int, state: State, values: dict[str, Any], **parts: Any) -> None:
        scores = {name: value for name, value in values.items() if name.startswith("validation/")}
        checkpoints.save(step, state, origin=origin, metrics=scores, records=log.records, **parts)
        log.results({"passes_over_train": streams.passes(parts["streams"])})

    try:
        # Only now: a kill between a new config and the new status would pass for a finished run.
        save(workdir / CONFIG, to_json(run.as_json))
        with watch.stop_at_signal(lambda: _prospect(workdir)) as stop:
            if checkpoint is None:  # what is due before the first step
                due = [probe for probe in observing if probe.due(0)]
                if values := loop.measured(due, Observation(state, None, {})):
                    log.write(0, values)
                if is_listed(0, run.train.checkpoint_at):
                    begun = streams.get_state()
                    save_checkpoint(0, state, values, streams=begun, scheduled=False)
            for restores in itertools.count():
                outcome = loop.fit(
                    state,
                    mesh.place_ahead(streams, run.mesh),
                    settings=run.train,
                    train_step=train_step,
                    report=loop.Report(run.train, run.loss.means, log, seconds_at_peak(run)),
                    probes=observing,
                    save=save_checkpoint,
                    stop=stop,
                )
                if outcome.status != "diverged" or run.train.bad_step != "restore":
                    break
                checkpoint = newest(run, workdir, checkpoints)
                if checkpoint is None or restores == MOST_RESTORES:
                    logging.error("After %d restores none is made from %s", restores, checkpoint)
                    break
                log.close()
                log = _opened_log(run, workdir, int(checkpoint.name))
                log.write(int(checkpoint.name), {"bad_step/number": outcome.step})
                del outcome  # whose state would take room
                state = start(run, workdir, checkpoint, streams)
            checkpoints.wait()
            status = outcome.status
            bad_step = outcome.step if status == "diverged" else None
            spikes = {"spikes": run_log.spikes(read_metrics(workdir))}
            spikes |= spike_scores(read_metrics(workdir))
            numbers = (record.get("bad_step/number") for record in read_metrics(workdir))
            if bad_steps := [number for number in numbers if number is not None]:
                spikes["bad_steps"] = bad_steps
            log.results({"steps": outcome.step, "first_bad_step": bad_step, **spikes})
            if status == "finished" and stop():
                status = "preempted"  # after the last step: the rerun scores
        # From here on a signal ends the process at once, since the rerun scores too.
        if status == "finished":
            if outcome.state.window["gradient_norm"][1]:  # 0: the last steps were all skipped
                means = run.loss.means(outcome.state.window)
                status, grounds = run.task.judge(means, run.trained(outcome.state.params))
                log.results(grounds)
            _score(run, workdir, splits, log)
        log.results({"status": status})
    except Exception:
        with contextlib.suppress(OSError):  # the disk may be full, which is what to tell of
            log.results({"status": "failed"})
        raise
    finally:
        try:
            checkpoints.close()
        finally:
            log.close()
    return status


def _opened_log(run: Run, workdir: Path, step: int) -> RunLog:
    """The log of a run that continues after this step (-1: it begins), as its results say."""
    log = RunLog(
        workdir,
        restored_step=step,
        total_steps=run.train.steps,
        trackers=run.trackers,
        config=flatten(run.as_json),
    )
    log.results(
        {
            "status": "running",
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(run.abstract_state.params)),
            "steps": max(step, 0),
            **({"fork": origin} if (origin := read_fork(workdir)) else {}),
            "device_kind": jax.devices()[0].device_kind,
            "versions": run_log.versions(),
            "devices": run.mesh.size,
        }
    )
    return log


def _score(run: Run, workdir: Path, splits: dict[str, Split], log: RunLog) -> None:
    """Scores the splits with the parameters that `evaluate.checkpoint` names."""
    trained = restore.trained(run, workdir, restore.find(run, workdir, None))
    last = list(splits)[-1]
    for name, split in splits.items():
        with progress.phase(f"Scoring the {name} split"):
            scores = run.task.losses(trained, split)
            # Decoding takes long, so that it is done only for what ends the run.
            if name == last or run.task.limit is None:
                metrics, samples = run.task.score(trained, split)
                scores |= metrics
                save(workdir / SAMPLES, run_log.format_samples(samples))
        log.results(run_log.named(name, scores))


def _prospect(workdir: Path) -> str:
    """What comes of a signal in training, for the user to read."""
    return (
        "the step under way is finished and saved first. A second signal ends the run at once, and "
        f"the same command then continues from step {max(saved_steps(workdir), default=0)}."
    )


def _mesh_line(run: Run) -> str:
    """How the devices are laid out, and which parameters they cannot share."""
    sizes = [f"{name} {size}" for name, size in run.mesh.shape.items() if size > 1]
    kind = run.mesh.devices.flat[0].device_kind
    line = f"{run.mesh.size} devices ({kind}) as {' * '.join(sizes)}."
    rows = [
        (path, mesh.undivided(run.mesh, role.axes, role.shape)) for path, role in run.roles.items()
    ]
    whole = [f"{path} ({', '.join(dimensions)})" for path, dimensions in rows if dimensions]
    if not whole:
        return line
    more = f" and {len(whole) - 3} more" if len(whole) > 3 else ""
    return f"{line} Not divided as they should be: {'; '.join(whole[:3])}{more}."


def _show(workdir: Path, *, replays: bool) -> None:
    results = read_results(workdir)
    print(run_log.format_scores(results))
    if is_scored(results):
        if results["status"] == "diverged":
            print("\nThis run diverged: at its end the loss was far above that of a uniform guess.")
        samples = workdir / SAMPLES
        if samples.exists():
            print(f"\n{samples.read_text('utf-8', 'replace')}")
        else:
            print(f"\nThere is no {samples}; `evaluate` shows samples again.")
    elif results["status"] == "diverged" and replays:
        where, step = shlex.quote(str(workdir.resolve())), results["first_bad_step"]
        print("\nWhat became non-finite first is found by")
        print(f"  {_replay()} --workdir={where} --step={step}")
    print(f"\nThe files of this run are in {workdir}")


def _replay() -> str:
    """How a user calls replay, in whichever folder that may be."""
    script = Path(__file__).parents[2] / "launch.sh"
    if script.exists():
        return f"{shlex.quote(str(script))} replay"
    return f"{shlex.quote(sys.executable)} -m transformer_jax.main --mode=replay"
