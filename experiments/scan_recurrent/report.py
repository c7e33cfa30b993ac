"""Exact match on the split's test, and accuracy there and on training's own kind of commands."""

from pathlib import Path

from experiments.generalization.report import SCORES, scores
from experiments.harness import figures, results
from experiments.harness.results import Finished


def report(runs: list[Finished], out: Path) -> str:
    """Writes exact_match.csv, a figure and the numbers; returns the text."""
    rows = scores(runs)
    results.write_csv(out / "exact_match.csv", rows)
    results.write_summary(
        out,
        {f"{name}/{row['split']}/{row['model']}": row[name] for row in rows for name in SCORES},
    )
    table = [
        {
            "split": row["split"],
            "model": row["model"],
            **{name: f"{row[name]:.4f}" for name in SCORES},
        }
        for row in rows
    ]
    figure = figures.lines(
        [point for run in runs for point in run.curve("train/token_loss")],
        x="step",
        y="loss",
        by="model",
        panel="split",
        xlabel="step",
        ylabel="training loss (nats an action)",
        yscale="log",
    )
    return "\n\n".join(
        [
            "Exact match of whole outputs, and accuracy of single actions, each given the right "
            "ones before it; on test, and on 500 examples of training's own kind (validation).",
            results.table(table),
            figures.save(figure, out, "training", "Training loss by step, a panel for each split"),
        ]
    )
