"""Whether positions train alike, and what becomes of the loss beyond the length of training."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from experiments.harness import figures, results
from experiments.harness.results import Finished

# Parts of a text by what multiple of the training length holds them: in each the pieces' numbers.
_REACH = {"1x": range(0, 2), "2x": range(2, 4), "4x": range(4, 8)}
_HALVES = ("drawn", "copied")


def report(runs: list[Finished], out: Path) -> str:
    """Writes training.csv, pieces.csv, two figures and the numbers; returns the text."""
    training = [point for run in runs for point in run.curve("train/loss")]
    pieces = results.rows(runs)
    results.write_csv(out / "training.csv", training)
    results.write_csv(out / "pieces.csv", pieces)
    losses = {
        positions: _losses(runs, pieces, positions)
        for (positions,) in results.group(pieces, "positions")
    }
    results.write_summary(
        out,
        {
            f"loss/{positions}/{part.replace(' ', '/')}": results.median(values)
            for positions, parts in losses.items()
            for part, values in parts.items()
        },
    )
    table = [
        {
            "positions": positions,
            **{part: results.interval(values) for part, values in parts.items()},
        }
        for positions, parts in losses.items()
    ]
    return "\n\n".join(
        [
            "### Training",
            figures.save(
                figures.lines(
                    training,
                    x="step",
                    y="loss",
                    by="positions",
                    xlabel="step",
                    ylabel="training loss (nats a word)",
                ),
                out,
                "training",
                "Training loss by step, a line for each kind of positions",
            ),
            "### Beyond the length of training",
            "Nats a word. 1x: within the training length; 2x and 4x: the tokens that only a text "
            f"of that multiple has. {results.convention(pieces, 'positions', 'half', 'piece')}",
            results.table(table),
            figures.save(
                figures.lines(
                    pieces,
                    x="piece",
                    y="token_loss",
                    by="positions",
                    panel="half",
                    xlabel="piece of 32 tokens (training: 0 and 1)",
                    ylabel="loss (nats a word)",
                ),
                out,
                "pieces",
                "Loss by piece of the text, of drawn and of copied words",
            ),
        ]
    )


def _losses(
    runs: list[Finished], pieces: list[dict[str, Any]], positions: Hashable
) -> dict[str, list[float]]:
    """A value for each seed: validation as trained, and each half in each part of a text."""
    seed_runs = [run for run in runs if run.labels["positions"] == positions]
    scores = (run.results.get("validation/token_loss") for run in seed_runs)
    losses = {"validation": [score for score in scores if score is not None]}
    for half in _HALVES:
        for reach, numbers in _REACH.items():
            rows = [
                row
                for row in pieces
                if (row["positions"], row["half"]) == (positions, half) and row["piece"] in numbers
            ]
            losses[f"{half} {reach}"] = [
                sum(row["token_loss"] for row in members) / len(members)
                for members in results.group(rows, "seed").values()
            ]
    return losses
