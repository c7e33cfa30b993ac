"""How far what was measured is from what was logged, by diagnostic and model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row

_HELD, _CONTRADICTED = 1e-3, 1e-2


def report(runs: Sequence[Finished], out: Path) -> str:
    """A table of differences, the verdict, and the dependency, logged and measured."""
    rows = results.rows(runs)
    results.write_csv(out / "trajectories.csv", rows)
    far = {key: _distance(mine) for key, mine in results.group(rows, "name", "model").items()}
    results.write_summary(out, {f"{name}/{model}": value for (name, model), value in far.items()})
    models = list(dict.fromkeys(model for _, model in far))
    lines = [
        {
            "diagnostic": name,
            **{model: f"{far[name, model]:.1e}" for model in models if (name, model) in far},
        }
        for name in dict.fromkeys(name for name, _ in far)
    ]
    largest = max(far.values())
    verdict = "held" if largest <= _HELD else "contradicted"
    verdict = "undecided" if _HELD < largest <= _CONTRADICTED else verdict
    words = (
        f"*A training can be measured from its checkpoints*: **{verdict}**, at most {largest:.1e}."
    )
    title = "Measured from imported checkpoints, the dependency is what training logged"
    return "\n\n".join(
        [results.table(lines), words, figures.save(_figure(rows, models), out, "dependency", title)]
    )


def _distance(rows: Sequence[Row]) -> float:
    logged, measured = (np.array([row[name] for row in rows]) for name in ("logged", "measured"))
    return float(np.max(np.abs(logged - measured)) / np.max(np.abs(logged)))


def _figure(rows: Sequence[Row], models: Sequence[str]):
    """A panel for each step: logged as lines, measured as points, over sublayers."""
    dependencies = [row for row in rows if row["name"] == "decoder/dependency"]
    steps = sorted({row["step"] for row in dependencies})
    figure, axes = figures.panels(1, len(steps))
    for ax, step in zip(axes, steps, strict=True):
        for model in models:
            mine = [row for row in dependencies if row["step"] == step and row["model"] == model]
            looks = figures.style(model, models)
            places = [row["layer"] for row in mine]
            ax.plot(places, [row["logged"] for row in mine], **{**looks, "marker": ""})
            points = {**looks, "linestyle": "none", "label": ""}
            ax.plot(places, [row["measured"] for row in mine], **points)
        ax.set(title=f"step {step}", xlabel="sublayer", ylim=(0, 1))
    axes[0].set(ylabel="dependency on the own branch")
    figures.legend(figure, [axes[0]])
    return figure
