"""Runs by arm: those that differ in their seeds alone, what is said of them side by side, pairs."""

import collections
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.process import tables
from transformer_jax.runs.workdir import CONFIG, WALL, read_fork, scores
from transformer_jax.tools.reports import intervals
from transformer_jax.tools.reports.intervals import mean
from transformer_jax.tools.reports.records import Record, read_config

# What two runs may differ in and still be seeds of one.
_SEEDS = ("seed", "data.seed", "data.cache_dir", "data.workers", "checkpoint.fork_from")
_LOSSES = ("validation/token_loss", "validation/loss", "train/token_loss")
_LONGEST = 60  # characters of an arm's name


class Arm(NamedTuple):
    """Runs that differ in their seeds alone; a run without its like is an arm too."""

    name: str
    runs: list[Record]

    def __str__(self) -> str:
        return self.name if len(self.runs) == 1 else f"{self.name} ({len(self.runs)} seeds)"


def arms(runs: Sequence[Record]) -> list[Arm]:
    """The arms, in order of first appearance. A run and its copy are no two seeds."""
    keys = [key for key in differing([run.config for run in runs]) if key not in _SEEDS]
    alike: dict[str, list[Record]] = {}
    for run in runs:
        trunk = _trunk(run.config, run.results.get("fork"))
        identity = [*(run.config.get(key) for key in keys), trunk]
        alike.setdefault(json.dumps(identity), []).append(run)
    groups = []
    for group in alike.values():
        groups += [group] if len({*map(seeds, group)}) == len(group) else [[run] for run in group]
    labelled = all(run.labels for run in runs)
    titles = short_names([_shared(group, [] if labelled else keys) for group in groups])
    clear = len(set(titles)) == len(groups) and all(0 < len(name) <= _LONGEST for name in titles)
    called = {run.folder: name for run, name in zip(runs, names(runs), strict=True)}
    return [
        Arm(name if clear and (labelled or len(group) > 1) else called[group[0].folder], group)
        for name, group in zip(titles, groups, strict=True)
    ]


def seeds(run: Record) -> tuple[Any, Any]:
    """The seeds of parameters and of data, in which runs of two arms are alike that are a pair."""
    seed, of_data = run.config.get("seed"), run.config.get("data.seed")
    return seed, seed if of_data is None else of_data


def _trunk(config: Mapping[str, Any], origin: Mapping[str, Any] | None) -> Any:
    """What a fork branched off from, and that run in turn, but for seeds; its place where that is
    not there now."""
    if not origin or not (path := Path(origin["run"]) / CONFIG).is_file():
        return config["checkpoint.fork_from"]
    trunk = read_config(path)
    values = [value for key, value in trunk.items() if key not in _SEEDS]
    return origin["step"], values, _trunk(trunk, read_fork(path.parent))


def _shared(runs: Sequence[Record], keys: Sequence[str]) -> dict[str, Any]:
    """What names an arm: settings, or labels that all of its runs share, but for the seed."""
    first, *others = runs
    if keys:
        return {key.rpartition(".")[2]: first.config.get(key) for key in keys}
    return {
        name: value
        for name, value in first.labels.items()
        if name != "seed" and all(run.labels.get(name) == value for run in others)
    }


def names(runs: Sequence[Record]) -> list[str]:
    """The shortest names that tell the runs apart: labels of experiments, or the ends of paths."""
    short = iter(short_names([run.labels for run in runs if run.labels]))
    labels = [next(short) or _label_text(run.labels) if run.labels else "" for run in runs]
    labels = [name if labels.count(name) == 1 else "" for name in labels]
    run_names, depths = labels, itertools.count(1)
    while len({*run_names}) < len(runs) or not all(run_names):
        depth = next(depths)
        ends = ["/".join(run.folder.parts[-depth:]) for run in runs]
        run_names = [name or end for name, end in zip(labels, ends, strict=True)]
    return run_names


def config_rows(arms: Sequence[Arm]) -> list[list[str]]:
    """A row for each key whose value is not the same in all runs, with all values of each arm."""
    keys = sorted(differing([run.config for arm in arms for run in arm.runs]))
    values = [[{str(run.config.get(key)): 0 for run in arm.runs} for arm in arms] for key in keys]
    rows = [[key, *map(", ".join, cells)] for key, cells in zip(keys, values, strict=True)]
    return rows or [["(the same config)"]] * (len(arms) > 1)


def score_rows(arms: Sequence[Arm]) -> list[list[str]]:
    """A row for each fact and score; of several seeds the mean and its interval, and what each arm
    has less than the first in pairs of equal seeds."""
    by_arm = [{seeds(run): facts(run) for run in arm.runs} for arm in arms]
    names = dict.fromkeys(name for runs in by_arm for each in runs.values() for name in each)
    rows = []
    for name in names:
        columns = [{seed: each.get(name, "-") for seed, each in runs.items()} for runs in by_arm]
        rows.append([name, *(_cell([*column.values()]) for column in columns)])
        if "/" in name and any(len(column) > 1 for column in columns):
            first, *others = [
                {seed: value for seed, value in column.items() if isinstance(value, float)}
                for column in columns
            ]
            less = [intervals.less(other, first) for other in others]
            rows += [[f"  less {arms[0].name}, paired", "", *less]] * any(less)
    return rows


def finding(arms: Sequence[Arm]) -> str:
    """A sentence: which arm has the least loss, how much less than the next one, and if it counts.

    A difference counts where pairs of equal seeds say so with an interval below 0; otherwise it may
    be chance. Runs that diverged have no loss, and are told of.
    """
    for name in _LOSSES:
        losses = [
            {seeds(run): value for run in arm.runs if (value := _last(run, name)) is not None}
            for arm in arms
        ]
        if any(losses):
            break
    else:
        return "Nothing has been scored yet."
    scored = [
        (mean(ours.values()), arm, ours) for arm, ours in zip(arms, losses, strict=True) if ours
    ]
    (least, best, ours), *others = sorted(scored, key=lambda each: each[0].value)
    what = name.replace("/", " ").replace("token_loss", "loss")
    diverged = [(arm, sum(map(_diverged, arm.runs)), len(arm.runs)) for arm in arms]
    left_out = "".join(f" Of {arm}, {n} of {all_} diverged." for arm, n, all_ in diverged if n)
    if not others:
        return f"The {what} of {best} is {least}.{left_out}"
    _, second, theirs = others[0]
    less = intervals.less(ours, theirs) or f"{least.value - others[0][0].value:+.2g}"
    differences = intervals.paired_differences(ours, theirs)
    difference = mean(differences) if differences else None
    counts = difference is not None and difference.counts and difference.value < 0
    chance = "" if counts else ", which may be chance"
    return f"{best} has the lowest {what}, {least}: {less} against {second}{chance}.{left_out}"


def _diverged(run: Record) -> bool:
    return run.results.get("status") == "diverged"


def _last(run: Record, name: str) -> float | None:
    value = run.results.get(name)
    return run.last(name) if value is None and not _diverged(run) else value


def facts(run: Record) -> dict[str, Any]:
    """How far a run has come and its scores; before its end, those last logged, which are none of
    a run that diverged behind them."""
    logged = {
        name: run.last(name)
        for name in run.curves
        if not _diverged(run) and (name.startswith("validation/") or name == "train/token_loss")
    }
    reached = max(run.results.get("steps", 0), run.last("step") or 0)
    origin = run.results.get("fork")
    fork = {"forked from": f"{origin['run']} at step {origin['step']:,}"} if origin else {}
    return {
        "status": run.results.get("status", "-"),
        "steps": f"{reached:,} of {run.config['train.steps']:,}",
        "parameters": run.results.get("parameters", "-"),
        "wall seconds": max(run.results.get(WALL, 0.0), run.last(WALL) or 0.0) or "-",
        **fork,
        **scores(logged | run.results),
    }


def _cell(values: Sequence[Any]) -> str:
    """What runs of an arm have in common, the mean of their numbers, or each text and how often."""
    texts = collections.Counter(map(tables.cell, values))
    if len(texts) == 1:
        return next(iter(texts))
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        return f"{intervals.mean(numbers)}"
    if numbers:
        return f"{len(numbers)} of {len(values)} have one"
    return ", ".join(f"{text} ({count})" for text, count in texts.items())


def differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which the rows differ, in order of appearance; a missing value is None."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [name for name in columns if any(row.get(name) != rows[0].get(name) for row in rows)]


def short_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the rows apart: "VALUE" where one column does, else "NAME=VALUE NAME=VALUE".

    Empty for rows that are alike.
    """
    columns = differing(rows)
    if len(columns) == 1:
        return [str(row.get(columns[0])) for row in rows]
    return [_label_text({name: row.get(name) for name in columns}) for row in rows]


def _label_text(labels: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in labels.items())
