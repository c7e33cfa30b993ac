"""The state that training starts from: a new one, another run's parameters, or a checkpoint."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
from absl import logging

from transformer_jax.checkpoint.checkpoints import Checkpoints, Origin, Restored, restore
from transformer_jax.checkpoint.init_from import format_report, init_from
from transformer_jax.commands.fork import fork, source
from transformer_jax.commands.opening import save
from transformer_jax.commands.restore import check, check_data
from transformer_jax.config.load import load
from transformer_jax.data.serve.streams import TrainStreams
from transformer_jax.devices import mesh
from transformer_jax.inspection.dependency import profile
from transformer_jax.process import hosts, progress
from transformer_jax.run import Run
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    INIT_FROM,
    LABELS,
    METRICS,
    PROFILE,
    ROWS,
    SAMPLES,
    TOKENIZER,
    read_metrics,
    read_results,
)
from transformer_jax.training.state import State, split_key


def newest(run: Run, workdir: Path, checkpoints: Checkpoints) -> Path | None:
    """The newest checkpoint, which `restore.check` has compared; None: there has never been one.

    A fork begins with one that it copies. Raises what `fork` raises, and FileNotFoundError where
    there have been some and all are gone.
    """
    with progress.phase("Checking the checkpoints"):
        folder = checkpoints.find("last")
    if folder is not None:
        check(run, workdir, folder)
    else:
        hosts.first(lambda: _check_nothing_was_saved(workdir))
        if run.checkpoint.fork_from:
            trunk = source(run, workdir)
            if hosts.is_first():
                save_vocabularies(run, workdir)  # as long as the other run is there
            return fork(run, workdir, trunk)
    return folder


def start(
    run: Run, workdir: Path, checkpoint: Path | None, streams: TrainStreams, bad: int | None = None
) -> State:
    """The state of a checkpoint or else a new one; the streams stand where it left them.

    Where training went back to it after bad steps they stand after the batch of the last of these;
    as they did before the last time that step `bad` was one, where it was. Raises ValueError as
    `check_data`.
    """
    if checkpoint is None:
        return begin(run, streams, workdir)
    with progress.phase("Restoring the last checkpoint"):
        check_data(checkpoint, streams)
        restored = restore(checkpoint, run.abstract_state)
        streams.set_state(restored.streams)
        for _ in range(hosts.first(lambda: _left_out(workdir, restored.step, bad))):
            next(streams)
    hosts.first(lambda: _tell_of_lost_records(workdir, restored))
    return restored.state


def begin(run: Run, streams: TrainStreams, workdir: Path, *, keep: bool = True) -> State:
    """A new state, with the parameters that `checkpoint.init_from` names, or an earlier start took.

    keep: whether Admin's profile, and what was taken from another run, are kept there.
    """
    beginning = streams.get_state()
    batch = mesh.place(run.mesh, next(streams))
    streams.set_state(beginning)
    with progress.phase("Initialising the model"):
        state = draws = run.new_state(batch)
    if run.checkpoint.init_from:
        roles = run.roles.items()
        params, report = init_from(
            run.checkpoint.init_from,
            draws.params,
            before=workdir / INIT_FROM,
            config=run.as_json,
            tokenizer=run.data.tokenizer_fingerprint,
            labels=run.data.labels,
            token_paths={path for path, role in roles if "vocab" in role.axes},
            label_paths={path for path, role in roles if "labels" in role.axes},
            factor_paths={path for path, role in roles if role.factor},
        )
        # A copy for the moving average: the training step donates both.
        ema_params = None if state.ema_params is None else jax.tree.map(jnp.copy, params)
        state = dataclasses.replace(state, params=params, ema_params=ema_params)
        if run.average is not None:  # which begins with the parameters, in the optimizer's state
            layout = jax.tree.map(lambda leaf: leaf.sharding, state.opt_state)
            begun = jax.jit(run.transform.init, out_shardings=layout)(params)
            state = dataclasses.replace(state, opt_state=begun)
        if keep:
            print(format_report(report))
            save(workdir / INIT_FROM, json.dumps(report._asdict(), indent=1))
    if keep and run.model.config.profiled:
        # Of the draws, with their key: so of what the omegas were measured on.
        key, _ = split_key(jax.random.key(run.seed))
        save(workdir / PROFILE, json.dumps(profile(run.model, draws.params, batch, key), indent=1))
    return state


def origin_of(run: Run, streams: TrainStreams, scored: Mapping[str, str]) -> Origin:
    """What checkpoints of a run say of where they come from; scored: as of `Origin`."""
    return Origin(
        config=run.as_json,
        data=streams.fingerprint,
        tokenizer=run.data.tokenizer_fingerprint,
        labels=run.data.labels,
        scored=scored,
    )


def save_vocabularies(run: Run, workdir: Path) -> None:
    """Saves what makes the work directory enough to predict with, without the data."""
    if run.own_rows:
        save(workdir / ROWS, run.own_rows)
    if run.data.settings.recipe.tokenized and not (workdir / TOKENIZER).exists():
        run.data.tokenizer.save(workdir / TOKENIZER)
    if run.data.labels and not (workdir / LABELS).exists():
        save(workdir / LABELS, json.dumps(run.data.labels, ensure_ascii=False, indent=1))


def _left_out(workdir: Path, step: int, bad: int | None) -> int:
    """How many batches after a checkpoint are left out: those up to a bad step, which is noted.

    bad: a bad step, before which these were; None, or none that is noted: all.
    """
    records = [record for record in read_metrics(workdir) if record["step"] == step]
    numbers = [x for record in records if (x := record.get("bad_step/number", step)) > step]
    if bad in numbers:
        numbers = numbers[: len(numbers) - 1 - numbers[::-1].index(bad)]
    return sum(number - step for number in numbers)


def _tell_of_lost_records(workdir: Path, restored: Restored) -> None:
    """Warns where the log lacks records that it had when the checkpoint was saved."""
    records = sum(record["step"] <= restored.step for record in read_metrics(workdir))
    if records < restored.records:
        logging.warning(
            "%s has %d of the %d records up to step %d; training continues without the others",
            workdir / METRICS,
            records,
            restored.records,
            restored.step,
        )


def _check_nothing_was_saved(workdir: Path) -> None:
    """Refuses to start anew what has saved checkpoints, and says where a log is begun anew.

    A run that was killed before its first checkpoint may have a log; so more than that has to show
    that there were checkpoints.
    """
    results, saved = read_results(workdir), workdir / CONFIG
    last = max((record["step"] for record in read_metrics(workdir)), default=None)
    # Without checkpoints all records are of the process that wrote the config. It waits for each
    # save before it begins the next one.
    every = load(str(saved)).checkpoint.every if saved.exists() else 0
    logged = 0 < 2 * every < (last or 0)
    ended = bool(results.get("steps")) and results.get("first_bad_step") is None
    if logged or ended or (workdir / SAMPLES).exists():
        raise FileNotFoundError(
            f"this run has saved checkpoints, but there are none in {workdir / CHECKPOINTS}: "
            f"restore that folder, or move {workdir} away to start anew"
        )
    if last is not None:
        logging.warning(
            "there is no checkpoint in %s yet: training starts from step 0 again, and replaces "
            "the records up to step %d",
            workdir,
            last,
        )
