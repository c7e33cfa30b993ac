"""Average precision by where positions are added, and the differences that the lines ask for."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished
from transformer_jax.tools.reports import intervals

FIRST = "sines, in attention"  # what the others are compared with
_SCORES = {"ap": "AP", "ap50": "AP50", "ap50_any": "AP50, any class"}


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes scores.csv, the curves and the numbers; returns the text."""
    rows = [
        {**run.labels, **{score: run.results[f"validation/{score}"] for score in _SCORES}}
        for run in runs
    ]
    results.write_csv(out / "scores.csv", rows)
    arms = {arm: members for (arm,), members in results.group(rows, "positions").items()}
    aps = {arm: [row["ap"] for row in members] for arm, members in arms.items()}
    deviation = results.pooled_deviation([*aps.values()])
    lines, numbers = [], {}
    for arm, members in arms.items():
        less = results.difference(aps[arm], aps[FIRST], deviation)
        line = {"positions": arm} | {
            title: intervals.mean([row[score] for row in members]).value
            for score, title in _SCORES.items()
        }
        lines.append(line | {"AP less the first": "" if arm == FIRST else f"{less:+}"})
        numbers |= {f"ap/{arm}": line["AP"], f"difference/{arm}": less.value}
        numbers[f"half_width/{arm}"] = less.half_width
    results.write_summary(out, numbers)
    figure = figures.lines(
        [point for run in runs for point in run.curve("train/loss")],
        x="step",
        y="loss",
        by="positions",
        xlabel="step",
        ylabel="training loss",
    )
    return "\n\n".join(
        [
            "Means over seeds; differences with their 95 % interval by t, the deviation pooled "
            "over all arms.",
            results.table(lines),
            figures.save(figure, out, "training", "Training loss by where positions are added"),
        ]
    )
