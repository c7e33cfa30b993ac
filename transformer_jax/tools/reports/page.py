"""The page of a report: what runs have left, as data, for `report.js` to show."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.runs.workdir import REPLAY, SAMPLES, read_samples, reading
from transformer_jax.tools.pages.page import file, numbers, page
from transformer_jax.tools.reports.records import (
    DIAGNOSTICS,
    Curve,
    Record,
    config_rows,
    differing,
    names,
    read_json,
    score_rows,
    series,
    short_names,
)

# What two runs may differ in and still be seeds of one.
_SEED = ("seed", "data.cache_dir", "data.workers")
_LONGEST = 60  # characters of a group's name
_SPIKE = "spike/loss"
_LOSSES = ("validation/token_loss", "validation/loss")


def report(runs: Sequence[Record], title: str) -> str:
    """One HTML file that shows the runs; it needs no network and no other file."""
    return page(
        title,
        data(runs),
        styles=("uplot/uPlot.min.css", "report.css"),
        scripts=("uplot/uPlot.iife.min.js", "report_curves.js", "report_heat.js", "report.js"),
    )


def data(runs: Sequence[Record]) -> dict[str, Any]:
    """What the page shows, as JSON can hold it.

    "runs": name, folder, group, what became of it, losses, spikes, samples and diagnostics.
    "groups": runs that differ in their seed alone: name and members. "curves": for each number
    in metrics.jsonl the curve of each run. "bands": for each number the mean, the least and the
    largest value over the seeds of each group that has several (None: one run).
    "config", "scores": the rows that `compare` prints, the first cell a name.
    """
    called = names(runs)
    groups = _groups(runs, called)
    group_of = {run: number for number, each in enumerate(groups) for run in each["runs"]}
    every = dict.fromkeys(name for run in runs for name in run.curves)
    logged = [name for name in every if not name.startswith(("step", "spike/", DIAGNOSTICS))]
    curves = {name: [series(run, name) for run in runs] for name in logged}
    return {
        "runs": [
            {
                "name": name,
                "folder": str(run.folder),
                "group": group_of[number],
                "status": run.results.get("status", "not begun"),
                "losses": {name: run.results.get(name) for name in _LOSSES},
                "outcome": outcome(run),
                "bad": run.results.get("first_bad_step"),
                "spikes": series(run, _SPIKE),
                "samples": _samples(run),
                "diagnostics": _diagnostics(run),
            }
            for number, (run, name) in enumerate(zip(runs, called, strict=True))
        ],
        "groups": groups,
        "curves": curves,
        "bands": {
            name: [_band([runs[run].curves.get(name) for run in group["runs"]]) for group in groups]
            for name in logged
        },
        "config": config_rows(runs),
        "scores": score_rows(runs),
        # Of what draws, whose copies have to hold it.
        "licence": file("uplot/LICENSE"),
    }


def outcome(run: Record) -> list[str]:
    """What became of a run, in sentences."""
    results = run.results
    status = results.get("status", "has not begun to train")
    told = [f"{status}, after step {results['steps']:,}" if "steps" in results else status]
    if spikes := results.get("spikes"):
        told.append(f"the loss spiked at {len(spikes)} steps" if len(spikes) > 1 else "one spike")
    if results.get("first_bad_step") is not None:
        told.append(f"step {results['first_bad_step']:,} was the first that was not finite")
    if replayed := read_json(run.folder / REPLAY):
        with reading(run.folder / REPLAY, "replay again, or remove it"):
            told.append(f"replay up to step {replayed['step']:,}: {replayed['found']}")
    # As `inspected` of the families says, which only JAX can be asked for.
    elif results.get("first_bad_step") and run.config["model.family"] == "transformer":
        step = results["first_bad_step"]
        told.append(f"launch.sh replay --workdir={run.folder} --step={step} says what it was")
    return told


def _groups(runs: Sequence[Record], called: Sequence[str]) -> list[dict[str, Any]]:
    """The runs by what differs in their configs besides the seed, in order of first appearance."""
    keys = [key for key in differing([run.config for run in runs]) if key not in _SEED]
    members: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        members.setdefault(json.dumps([run.config.get(key) for key in keys]), []).append(number)
    groups = []
    for group in members.values():  # a run and its copy are no two seeds
        several = len({runs[number].config.get("seed") for number in group}) == len(group)
        groups += [group] if several else [[number] for number in group]
    shared = [_shared_labels(runs, group, keys) for group in groups]
    found = short_names(shared) if len(groups) > 1 else []
    if len(set(found)) < len(groups) or not all(0 < len(name) <= _LONGEST for name in found):
        found = [called[group[0]] for group in groups]
    return [
        {"name": called[group[0]] if len(group) == 1 else f"{name} ({len(group)} seeds)"}
        | {"runs": group}
        for name, group in zip(found, groups, strict=True)
    ]


def _shared_labels(
    runs: Sequence[Record], group: Sequence[int], keys: Sequence[str]
) -> dict[str, Any]:
    """What names a group: an experiment's labels but the seed, or settings that differ."""
    if all(run.labels for run in runs):
        return {
            name: value
            for name, value in runs[group[0]].labels.items()
            if name != "seed" and all(runs[each].labels.get(name) == value for each in group)
        }
    return {key.rpartition(".")[2]: runs[group[0]].config.get(key) for key in keys}


def _band(curves: Sequence[Curve | None]) -> dict[str, Sequence[float]] | None:
    """Mean of the last, the least and the largest value of each step or stretch with some."""
    if len(curves) == 1:
        return None
    width = max(curve.width for curve in curves if curve)
    found: dict[int, list[list[float]]] = {}
    for points in (curve.points() for curve in curves if curve):
        for number, own in itertools.groupby(points, lambda point: point[0] // width):
            if values := [value for _, value in own if value is not None]:
                found.setdefault(number, []).append(values)
    stretches = sorted(found.items())
    return {
        "steps": [number * width for number, _ in stretches],
        "mean": [math.fsum(own[-1] for own in each) / len(each) for _, each in stretches],
        "low": [min(map(min, each)) for _, each in stretches],
        "high": [max(map(max, each)) for _, each in stretches],
        "count": [len(each) for _, each in stretches],
    }


def _diagnostics(run: Record) -> dict[str, dict[str, Any]]:
    """What was measured inside the model: at each step a row with a value for each depth.

    As float32, in which it was measured.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in run.curves:
        if name.startswith(DIAGNOSTICS):
            own = series(run, name)
            rows = np.array(own["values"], np.float32)  # None becomes NaN
            own["values"] = numbers(rows.reshape(len(rows), -1))
            stack = (what := name.removeprefix(DIAGNOSTICS)).partition("/")[0]
            layers = run.config.get(f"model.num_{stack}_layers")
            found[what] = own | {"layers": layers or run.config.get("model.num_layers")}
    return found


def _samples(run: Record) -> list[dict[str, Any]]:
    """The texts that the model wrote: while it trained, by step, and at the end."""
    found = []
    for record in read_samples(run.folder):
        texts = ("\n    ".join([line, *results]) for line, results in record["samples"])
        found.append({"step": record["step"], "text": "\n\n".join(texts)})
    path = run.folder / SAMPLES
    if path.exists():
        found.append({"step": None, "text": path.read_text("utf-8", "replace")})
    return found
