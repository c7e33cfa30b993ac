"""Shares of the gradient, and losses by start, norms and clipping."""

import math
from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished

ARM = ("scheme", "start", "clip")


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes gradients.csv, losses.csv and the numbers; returns the text."""
    gradients = results.rows(runs)
    losses = [
        {**run.labels, "status": run.results["status"], "loss": run.results.get("validation/loss")}
        for run in runs
    ]
    results.write_csv(out / "gradients.csv", gradients)
    results.write_csv(out / "losses.csv", losses)
    by_arm = results.group(losses, *ARM)
    logs = {
        arm: [math.log(row["loss"]) for row in rows]
        for arm, rows in by_arm.items()
        if all(row["status"] == "finished" for row in rows)
    }
    deviation = results.pooled_deviation([*logs.values()])
    lines, numbers = [], {}
    for (*arm, clip), rows in by_arm.items():
        line = {"scheme": figures.title(arm[0]), "start": arm[1], "clipped at": clip}
        for when in ("before", "after"):
            members = [
                row
                for row in gradients
                if all(row[name] == rows[0][name] for name in ARM) and row["when"] == when
            ]
            line[f"norm {when}"] = results.interval(row["norm"] for row in members)
            line[f"share {when}"] = results.interval(row["share"] for row in members)
        line["loss"] = results.interval(row["loss"] for row in rows)
        lines.append(line)
        small, large = (logs.get((*arm, value)) for value in (0.1, 1.0))
        if clip == 1.0 and small is not None and large is not None:
            less = results.difference(small, large, deviation)
            name = "/".join(arm)
            numbers |= {f"clip/{name}": less.value, f"clip/{name}/half_width": less.half_width}
            line["log of the loss, 0.1 less 1"] = f"{less:+}"
    results.write_summary(out, numbers)
    figure = figures.lines(
        [
            point | {"arm": f"{figures.title(run.labels['scheme'])}, {run.labels['start']}"}
            for run in runs
            for point in run.curve("train/gradient_norm")
        ],
        x="step",
        y="loss",
        by="arm",
        panel="clip",
        yscale="log",
        xlabel="step",
        ylabel="norm of the gradient",
    )
    return "\n\n".join(
        [
            "The norm of the gradient on one batch, and the share of its square that two biases of "
            "the decoder's first self-attention have, before training and after; validation loss. "
            f"{results.convention(losses, *ARM)} That of the log pools the deviation over all "
            "arms.",
            results.table(lines),
            figures.save(figure, out, "norms", "Norm of the gradient before clipping, by step"),
        ]
    )
