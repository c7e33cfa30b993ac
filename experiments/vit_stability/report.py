"""Losses, accuracies and attention logits over learning rates, and how sensitive each arm is."""

import math
from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, rates, results
from experiments.harness.results import Finished
from transformer_jax.tools.reports import intervals

FIRST = "pre_ln"  # what the others are compared with
MOST = math.log(10)  # the loss of a guess among ten digits
_LOGIT = "diagnostics/encoder/self_attention/largest_logit"


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes scores.csv, a figure and the numbers; returns the text."""
    rows = []
    for run in runs:
        loss = run.results.get("validation/loss")
        logits = [max(by_layer) for by_layer in run.series(_LOGIT)[1]]
        rows.append(
            {
                **run.labels,
                "status": run.results["status"],
                "loss": loss if run.results["status"] != "diverged" else None,
                "accuracy": run.results.get("validation/accuracy"),
                "largest_logit": max(logits, default=None),
                "initial": MOST,
            }
        )
    results.write_csv(out / "scores.csv", rows)
    sensitivities = {
        arm: [
            rates.sensitivity(rates.grid(cell), MOST)
            for cell in results.group(members, "seed").values()
        ]
        for (arm,), members in results.group(rows, "arm").items()
    }
    deviation = results.pooled_deviation([*sensitivities.values()])
    lines, numbers = [], {}
    for arm, values in sensitivities.items():
        less = results.difference(values, sensitivities[FIRST], deviation)
        line = {"arm": figures.title(arm), "sensitivity (nats)": intervals.mean(values).value}
        lines.append(line | {"less Pre-LN's": "" if arm == FIRST else f"{less:+}"})
        numbers |= {f"sensitivity/{arm}": line["sensitivity (nats)"], f"less/{arm}": less.value}
        numbers[f"half_width/{arm}"] = less.half_width
    cells = [
        {"arm": figures.title(arm), "learning rate": rate}
        | {
            "runs": ", ".join(row["status"] for row in cell),
            "loss": results.interval(row["loss"] for row in cell),
            "accuracy": results.interval(row["accuracy"] for row in cell),
            "largest attention logit": results.interval(row["largest_logit"] for row in cell),
        }
        for (arm, rate), cell in results.group(rows, "arm", "learning_rate").items()
    ]
    results.write_summary(out, numbers)
    figure = figures.lines(
        [row | {"loss": rates.drawn_loss(row)} for row in rows],
        x="learning_rate",
        y="loss",
        by="arm",
        xscale="log",
        xlabel="learning rate",
        ylabel="validation loss (nats)",
    )
    return "\n\n".join(
        [
            "Sensitivities are means over seeds, their differences with a 95 % interval by t, the "
            "deviation pooled over the arms.",
            results.table(lines),
            "The largest attention logit is that of all that were measured. "
            f"{results.convention(rows, 'arm', 'learning_rate')}",
            results.table(cells),
            figures.save(figure, out, "rates", "Validation loss by learning rate"),
        ]
    )
