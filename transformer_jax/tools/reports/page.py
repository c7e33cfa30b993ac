"""The page of a report: what runs have left, as data, for `report.js` to show."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.runs.workdir import REPLAY, SAMPLES, read_samples, reading
from transformer_jax.tools.pages.page import file, numbers, page
from transformer_jax.tools.reports.arms import arms, config_rows, finding, names, score_rows
from transformer_jax.tools.reports.intervals import convention, mean
from transformer_jax.tools.reports.looks import style
from transformer_jax.tools.reports.records import DIAGNOSTICS, Curve, Record, read_json, series

_SPIKE = "spike/loss"


def report(runs: Sequence[Record], title: str, body: str = "") -> str:
    """One HTML file that shows the runs; it needs no network and no other file.

    body: HTML that stands before them, or alone where there are none.
    """
    curves = ("uplot/uPlot.iife.min.js", "report_curves.js", "report_heat.js", "report.js")
    return page(
        title,
        data(runs) if runs else {},
        styles=("uplot/uPlot.min.css", "report.css"),
        scripts=curves if runs else (),
        body=body,
    )


def data(runs: Sequence[Record]) -> dict[str, Any]:
    """What the page shows, as JSON can hold it.

    "runs": name, folder, group, what became of it, spikes, samples, diagnostics.
    "groups": the arms: name, looks and members. "curves": for each number in metrics.jsonl the
    curve of each run. "bands": for each number the mean and its interval over the seeds of each
    group that has several (None: one run). "config", "scores": the rows that `compare` prints, a
    column for each group, the first cell a name. "convention": what intervals they have.
    "finding": the sentence that the page begins with.
    """
    called, groups = names(runs), arms(runs)
    members = [[runs.index(run) for run in arm.runs] for arm in groups]
    group_of = {run: number for number, each in enumerate(members) for run in each}
    order = [arm.name for arm in groups]
    every = dict.fromkeys(
        name for run in runs for name in run.curves if _by_depth(run, name) is None
    )
    logged = [name for name in every if name != "step" and not name.startswith("spike/")]
    curves = {name: [series(run, name) for run in runs] for name in logged}
    return {
        "finding": finding(groups),
        "runs": [
            {
                "name": name,
                "folder": str(run.folder),
                "group": group_of[number],
                "status": run.results.get("status", "not begun"),
                "outcome": outcome(run),
                "bad": run.results.get("first_bad_step"),
                "spikes": series(run, _SPIKE),
                "samples": _samples(run),
                "diagnostics": _diagnostics(run),
            }
            for number, (run, name) in enumerate(zip(runs, called, strict=True))
        ],
        "groups": [
            {"name": str(arm), "runs": indices, "looks": style(arm.name, order)}
            for arm, indices in zip(groups, members, strict=True)
        ],
        "curves": curves,
        "bands": {
            name: [
                _band([run.curves.get(name) for run in arm.runs]) if len(arm.runs) > 1 else None
                for arm in groups
            ]
            for name in logged
        },
        "config": config_rows(groups),
        "scores": score_rows(groups),
        "convention": convention(len(arm.runs) for arm in groups),
        # Of what draws, whose copies have to hold it.
        "licence": file("uplot/LICENSE"),
    }


def outcome(run: Record) -> list[str]:
    """What became of a run, in sentences."""
    results = run.results
    status = results.get("status", "has not begun to train")
    lines = [f"{status}, after step {results['steps']:,}" if "steps" in results else status]
    if spikes := results.get("spikes"):
        lines.append(f"the loss spiked at {len(spikes)} steps" if len(spikes) > 1 else "one spike")
    if results.get("first_bad_step") is not None:
        lines.append(f"step {results['first_bad_step']:,} was the first that was not finite")
    if replayed := read_json(run.folder / REPLAY):
        with reading(run.folder / REPLAY, "replay again, or remove it"):
            lines.append(f"replay up to step {replayed['step']:,}: {replayed['found']}")
    # As `inspected` of the families says, which only JAX can be asked for.
    elif results.get("first_bad_step") and run.config["model.family"] == "transformer":
        step = results["first_bad_step"]
        lines.append(f"launch.sh replay --workdir={run.folder} --step={step} says what it was")
    return lines


def _band(curves: Sequence[Curve | None]) -> dict[str, list[Any]]:
    """Mean and interval at each step or stretch of the last value of each seed that has one."""
    width = max((curve.width for curve in curves if curve), default=1)
    by_stretch: dict[int, list[float]] = {}
    for points in (curve.points() for curve in curves if curve):
        last = {step // width: value for step, value in points if value is not None}
        for stretch, value in last.items():
            by_stretch.setdefault(stretch, []).append(value)
    stretches = sorted(by_stretch)
    means = [mean(by_stretch[stretch]) for stretch in stretches]
    return {
        "steps": [stretch * width for stretch in stretches],
        "mean": [each.value for each in means],
        "low": [each.value - each.half_width if each.freedom else None for each in means],
        "high": [each.value + each.half_width if each.freedom else None for each in means],
        "count": [len(by_stretch[stretch]) for stretch in stretches],
    }


def _diagnostics(run: Record) -> dict[str, dict[str, Any]]:
    """What was measured inside the model: at each step a row with a value for each depth.

    As float32, in which it was measured.
    """
    diagnostics: dict[str, dict[str, Any]] = {}
    for name in run.curves:
        if (what := _by_depth(run, name)) is not None:
            curve = series(run, name)
            rows = np.array(curve["values"], np.float32)  # None becomes NaN
            curve["values"] = numbers(rows.reshape(len(rows), -1))
            stack = what.partition("/")[0]
            layers = run.config.get(f"model.num_{stack}_layers")
            diagnostics[what] = curve | {"layers": layers or run.config.get("model.num_layers")}
    return diagnostics


def _by_depth(run: Record, name: str) -> str | None:
    """What was measured, as "decoder/entropy", by diagnostics or a probe; None: a curve."""
    if name.startswith(DIAGNOSTICS):
        return name.removeprefix(DIAGNOSTICS)
    probe, _, place = name.partition("/")
    return "/".join(filter(None, (place, probe))) if run.curves[name].vector else None


def _samples(run: Record) -> list[dict[str, Any]]:
    """The texts that the model wrote: while it trained, by step, and at the end."""
    samples = []
    for record in read_samples(run.folder):
        texts = ("\n    ".join([line, *results]) for line, results in record["samples"])
        samples.append({"step": record["step"], "text": "\n\n".join(texts)})
    path = run.folder / SAMPLES
    if path.exists():
        samples.append({"step": None, "text": path.read_text("utf-8", "replace")})
    return samples
