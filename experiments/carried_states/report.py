"""The loss of each training by each way of scoring, and the curves of training."""

import math
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished


def report(runs: list[Finished], out: Path) -> str:
    """Writes scores.csv, training.csv, a figure and the numbers; returns the text."""
    rows = results.rows(runs)
    curves = [point for run in runs for point in run.curve("train/token_loss")]
    results.write_csv(out / "scores.csv", rows)
    results.write_csv(out / "training.csv", curves)
    losses = {
        key: results.median([row["loss"] for row in members])
        for key, members in results.group(rows, "carried", "scored").items()
    }
    results.write_summary(
        out,
        {
            f"loss/trained={trained}/scored={scored}": loss
            for (trained, scored), loss in losses.items()
        },
    )
    table = [
        {
            "states carried in training": trained,
            "in scoring": scored,
            "loss": f"{loss:.3f}",
            "perplexity": f"{math.exp(loss):.1f}",
        }
        for (trained, scored), loss in losses.items()
    ]
    figure = figures.lines(
        curves,
        x="step",
        y="loss",
        by="carried",
        xlabel="step",
        ylabel="training loss (nats a word)",
    )
    return "\n\n".join(
        [
            "Test loss in nats a word of 10,000 (9.7 % of the training text is <unk>), and the "
            "perplexity that it is.",
            results.table(table),
            figures.save(
                figure, out, "training", "Training loss by step, with carried states and without"
            ),
        ]
    )
