"""What the sweeps say: the ladder of sizes, z-loss, kappa, and what became of the prediction."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from experiments.learning_rate_sensitivity import prediction, sizes, summaries
from transformer_jax.tools.reports.intervals import Estimate


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes the csv, the figures and the numbers of a sweep; returns the text."""
    rows = [
        {**row, "model": summaries.model(row["layers"], row["width"])} for row in results.rows(runs)
    ]
    part = runs[0].labels["part"]
    results.write_csv(out / f"{part}.csv", rows)
    match part:
        case "sizes":
            return sizes.text(rows, out)
        case "z_loss":
            return _compared(rows, "z_loss", "log_z", "learning_rate", out)
        case "kappa":
            return _compared(rows, "kappa", "largest_logit", "kappa", out)
    return _blind(rows, out)


def _compared(rows: Sequence[Row], column: str, quantity: str, x: str, out: Path) -> str:
    """Losses, and what was seen at the end, by a column against its least value, at each learning
    rate; a figure of the losses over x."""
    name = column.replace("_", "-")
    lines, numbers = [], {"unigram_entropy": rows[0]["unigram_entropy"]}
    for (rate,), members in results.group(rows, "learning_rate").items():
        cells = {value: cell for (value,), cell in sorted(results.group(members, column).items())}
        values = {
            "loss": {
                value: [rates.drawn_loss(row) for row in cell] for value, cell in cells.items()
            },
            quantity: {
                value: summaries.known(row.get(f"end/{quantity}") for row in cell)
                for value, cell in cells.items()
            },
        }
        for value, cell in cells.items():
            line: Row = {
                "learning rate": f"{rate:g}",
                name: f"{value:g}",
                "finished": summaries.finished(cell),
            }
            for what, of in values.items():
                gap = _against_least(of, value)
                title = what.replace("_", " ")
                line[title] = summaries.mean_text(
                    [*of[value], *[None] * (len(cell) - len(of[value]))]
                )
                line[f"{title}, against {min(cells):g}"] = "" if gap is None else f"{gap:+}"
                at = f"{what}/{column}/{value:g}/{rate:g}"
                numbers[at] = summaries.mean(of[value])
                if gap is not None:
                    numbers |= summaries.difference(f"difference/{at}", gap)
            lines.append(line)
    results.write_summary(out, numbers)
    figure = figures.lines(
        [{**row, "loss": rates.drawn_loss(row), name: f"{row[column]:g}"} for row in rows],
        x=x,
        y="loss",
        by="model" if x == column else name,
        xscale="log",
        xlabel=x.replace("_", " "),
        ylabel="validation loss (nats a character)",
    )
    description = f"Validation loss by {x.replace('_', ' ')}"
    return "\n\n".join(
        [
            "Means over seeds at the end of training, and differences with 95 % intervals by t, of "
            "the deviation pooled over all cells of a learning rate. Trainings that diverged count "
            "as the loss before training, and are looked at before they do; the entropy of "
            f"characters is {rows[0]['unigram_entropy']:.2f} nats.",
            results.table(lines),
            figures.save(figure, out, column, description),
        ]
    )


def _against_least(cells: Mapping[float, Sequence[float]], value: float) -> Estimate | None:
    """Of the means of a cell and the first one; None for that itself, and where one is empty."""
    least = min(cells)
    if value == least or not (cells[value] and cells[least]):
        return None
    deviation = results.pooled_deviation([cell for cell in cells.values() if cell])
    return results.difference(cells[value], cells[least], deviation)


def _blind(rows: Sequence[Row], out: Path) -> str:
    """What was predicted by the report on the smaller models, which is in summary.json."""
    summary = results.read_json(out / "summary.json")
    if "prediction/rates" not in summary:
        raise ValueError(f"{out / 'summary.json'} predicts nothing: run the sweep cpu first")
    first = summary["prediction/first_failing"]
    first = math.inf if first is None else first
    lines, right = [], 0
    for row in rows:
        rate = row["learning_rate"]
        fails = not rates.trains(row)
        right += fails == (rate >= first)
        lines.append(
            {
                "learning rate": f"{rate:g}",
                "logit, predicted": prediction.text(summary.get(f"prediction/logit/{rate:g}")),
                "logit": prediction.text(row.get("warm_up/largest_logit")),
                "predicted": "fails" if rate >= first else "trains",
                "found": "fails" if fails else "trains",
                "loss": "diverged" if row["loss"] is None else f"{row['loss']:.3f}",
            }
        )
    results.write_summary(out, {"blind/right": right, "blind/runs": len(rows)})
    return "\n\n".join(
        [
            f"{rows[0]['model']} without QK-norm, one seed, at the learning rates that the "
            f"prediction names: {right} of {len(rows)} as predicted.",
            results.table(lines),
        ]
    )
