"""Adds the rows of entries to the table, in which all that were ever judged stay."""

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmark import rule
from experiments.benchmark.rule import Result
from experiments.benchmark.sweep import BASELINE, JUDGED, changes
from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from experiments.harness.sweep import ROOT
from transformer_jax.runs.workdir import write_atomically


def report(runs: Sequence[Finished], out: Path) -> str:
    """The table of a track, the csv, and a figure of the steps to the target."""
    track = runs[0].labels["track"]
    path = out / JUDGED
    tracks = results.read_json(path)
    entries = tracks.get(track, {})
    for name in dict.fromkeys(run.labels["entry"] for run in runs):
        entry = _entry([run for run in runs if run.labels["entry"] == name])
        if entry["losses"] != entries.get(name, {}).get("losses"):  # else reported again, later
            entries[name] = entry
    tracks |= {track: entries}
    text = json.dumps(tracks, indent=1, sort_keys=True, ensure_ascii=False)
    write_atomically(path, text + "\n")

    scores = {name: _result(entry) for name, entry in entries.items()}
    order = sorted(scores, key=lambda name: scores[name].loss + rule.SLOPE * scores[name].steps)
    first = tracks.get("optimisation", {}).get(BASELINE)
    others = {name: None if entries[name] is first else first for name in order}
    rows = [_row(name, entries[name], other and _result(other)) for name, other in others.items()]
    results.write_csv(out / f"{track}.csv", rows)
    results.write_summary(out, {f"{track}/{name}/loss": scores[name].loss for name in order})
    changes = [f"- `{name}`: {_changes(entries[name]['overrides'])}" for name in order]
    said = f"Mean loss of each entry, and 3.09 errors of it by a deviation of {rule.DEVIATION}"
    return "\n\n".join(
        [
            results.table(rows),
            "\n".join(changes),
            figures.save(_figure({name: scores[name] for name in order}), out, track, said),
            "Of the entry that was reported last:",
        ]
    )


def _entry(runs: Sequence[Finished]) -> dict[str, Any]:
    """What is kept of an entry."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%h"], capture_output=True, text=True
    ).stdout.strip()
    return {
        "steps": runs[0].labels["steps"],
        "losses": {str(run.labels["seed"]): run.results.get("validation/loss") for run in runs},
        "seconds": float(np.mean([run.results["time/wall_seconds"] for run in runs])),
        "date": max(run.record.get("date", "") for run in runs),
        "commit": commit,
        "overrides": changes(runs[0].run.overrides),
    }


def _result(entry: Mapping[str, Any]) -> Result:
    losses = [math.inf if loss is None else loss for loss in entry["losses"].values()]
    return Result(entry["steps"], losses)


def _row(name: str, entry: Mapping[str, Any], baseline: Result | None) -> Row:
    result = _result(entry)
    diverged = sum(not math.isfinite(loss) for loss in result.losses)
    finite, steps = not diverged, result.steps_to_target
    return {
        "entry": name,
        "steps": result.steps,
        "loss": results.interval(result.losses) if finite else f"{diverged} diverged",
        "seeds": len(result.losses),
        "deviation": f"{np.std(result.losses, ddof=1):.4f}" if finite else "",
        f"reaches {rule.TARGET:.3f}": "yes" if result.passes else "no",
        "steps to it": "" if steps is None else f"{steps:.0f}",
        "to the baseline": rule.verdict(result, baseline) if baseline else "",
        "seconds": f"{entry['seconds']:.0f}",
        "date": entry["date"],
        "commit": entry["commit"],
    }


def _changes(overrides: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in overrides.items()) or "nothing"


def _figure(scores: Mapping[str, Result]):
    """A bar of 3.09 standard errors on each side of a mean loss, and a line at the target."""
    figure, (ax,) = figures.panels()
    names = [name for name in scores if math.isfinite(scores[name].loss)][::-1]
    for place, name in enumerate(names):
        result = scores[name]
        margin = rule.MARGIN / math.sqrt(len(result.losses))
        mark = "o" if result.passes else "x"
        ax.errorbar(result.loss, place, xerr=margin, fmt=mark, color="black")
    ax.axvline(rule.TARGET, color="black", linewidth=0.6, linestyle="dotted")
    labels = [f"{name} ({scores[name].steps})" for name in names]
    ax.set_yticks(range(len(names)), labels)
    ax.set(xlabel="validation loss in nats\n(o: reaches the target, x: does not)")
    return figure
