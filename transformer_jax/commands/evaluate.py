"""Scores a checkpoint, or all of a work directory."""

import json
from pathlib import Path
from typing import Any

from transformer_jax.commands import restore
from transformer_jax.commands.opening import check_trained, is_own, lock, opened, save
from transformer_jax.config.build import built
from transformer_jax.configs.default import Config
from transformer_jax.data.dataset import Split
from transformer_jax.evaluation.trained import Trained
from transformer_jax.inspection import memory
from transformer_jax.process import hosts, progress, tables
from transformer_jax.run import Run
from transformer_jax.runs import log as run_log
from transformer_jax.runs.workdir import (
    RESULTS,
    SCORED,
    is_writable,
    merged,
    plain,
    read_metrics,
    read_results,
    scores,
    write_results,
)


def evaluate(config: Config, workdir: Path, checkpoint: str | None, name: str | None) -> int:
    """Scores a checkpoint on a split (None: as training does, test or else validation).

    They go into results.json where they are the run's own, by its config and its checkpoint, and
    where the work directory can be written. Of "all" see `evaluate_all`.
    """
    if checkpoint == "all":
        return evaluate_all(config, workdir, name)
    own = checkpoint is None and is_own(config, workdir)
    stored = own and hosts.first(lambda: is_writable(workdir))
    if stored:
        lock(workdir)
    before = read_results(workdir) if own else {}  # now, since a broken file is refused
    with opened(config, workdir, checkpoint, memory.evaluate) as (run, trained, step):
        name = name or _last_split(run)
        with progress.phase(f"Scoring the {name} split"):
            results, samples = _scores(run, trained, name, run.data.split(name))
    print(run_log.format_scores(results), run_log.format_samples(samples), sep="\n\n")
    last = str(before.get("steps", step))
    if own and step != last and run.evaluate.checkpoint == "last":
        print(f"\nThese are scores of step {step}, not of {last}: {RESULTS} does not hold them.")
    elif stored and hosts.is_first():
        write_results(workdir, merged(before, results))
    elif own and not stored:
        print(f"\n{workdir} cannot be written: its {RESULTS} does not hold these scores.")
    return 0


def evaluate_all(config: Config, workdir: Path, name: str | None) -> int:
    """Scores every checkpoint of a work directory on a split, and shows the scores.

    They go into checkpoints.jsonl, a line of each, beside those of the other split, where the work
    directory can be written and has this config.
    """
    check_trained(workdir, None)
    if stored := is_own(config, workdir) and hosts.first(lambda: is_writable(workdir)):
        lock(workdir)
    records = {record["step"]: record for record in read_metrics(workdir, SCORED)}
    with built(config, workdir) as run:
        memory.check(run, memory.evaluate(run))
        name = name or _last_split(run)
        split, steps = run.data.split(name), run.checkpoints(workdir).steps()
        records = {step: records.get(step, {"step": step}) for step in steps}
        for step, record in records.items():
            with progress.phase(f"Scoring the {name} split at step {step}"):
                trained = restore.trained(run, workdir, restore.find(run, workdir, str(step)))
                record |= plain(_scores(run, trained, name, split)[0])
    names = dict.fromkeys(name for record in records.values() for name in scores(record))
    rows = [[str(step), *map(tables.cell, map(row.get, names))] for step, row in records.items()]
    print(*tables.aligned([["step", *names], *rows]), sep="\n")
    if stored:
        save(workdir / SCORED, "".join(json.dumps(record) + "\n" for record in records.values()))
    return 0


def _last_split(run: Run) -> str:
    """The split that training scores at its end."""
    return "test" if run.data.has("test") else "validation"


def _scores(run: Run, trained: Trained, name: str, split: Split) -> tuple[dict[str, Any], Any]:
    """The scores by their flat names, and some samples."""
    metrics, samples = run.task.score(trained, split)
    return run_log.named(name, run.task.losses(trained, split) | metrics), samples
