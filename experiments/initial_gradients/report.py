"""How the norm of the last layer's gradient follows the depth, and what the theorem foretells."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from transformer_jax.tools.reports import intervals
from transformer_jax.tools.reports.intervals import Estimate

# The slopes of theorem 1 of Xiong et al. 2020, and how far from them one may lie.
FORETOLD = {"post_ln": 0.0, "pre_ln": -0.5}
TOLERANCE = 0.1
HELD, CONTRADICTED, UNDECIDED = "held", "contradicted", "undecided"


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes norms.csv, the figure and the numbers; returns the text."""
    rows = results.rows(runs)
    results.write_csv(out / "norms.csv", rows)
    lines, numbers = [], {}
    for (architecture, scheme), members in results.group(rows, "architecture", "scheme").items():
        line = {"architecture": architecture, "scheme": figures.title(scheme)}
        for (layers,), cell in results.group(members, "layers").items():
            line[f"{layers} layers"] = results.median(row["down"] for row in cell)
        slopes = {matrix: slope(members, matrix) for matrix in ("down", "up")}
        for matrix, estimate in slopes.items():
            at = f"slope/{architecture}/{scheme}/{matrix}"
            numbers |= {at: estimate.value, f"{at}/half_width": estimate.half_width}
        line["foretold"] = f"{FORETOLD[scheme]:g}"
        line["slope"] = f"{slopes['down']:+}"
        line["verdict"] = verdict(slopes["down"], FORETOLD[scheme])
        line["slope of W1"] = f"{slopes['up']:+}"
        lines.append(line)
    results.write_summary(out, numbers)
    figure = figures.lines(
        rows,
        x="layers",
        y="down",
        by="scheme",
        panel="architecture",
        xscale="log",
        yscale="log",
        xlabel="layers",
        ylabel="norm of the gradient of the last W2",
    )
    description = "Norm of the gradient of the last layer's second feed-forward matrix over depth"
    return "\n\n".join(
        [
            "Medians over draws of the norm of the last W2's gradient; slopes of its log over the "
            "log of the depth, mean over draws with its 95 % interval by t.",
            results.table(lines),
            figures.save(figure, out, "norms", description),
        ]
    )


def slope(rows: Sequence[Row], matrix: str) -> Estimate:
    """Of the log of a gradient's norm over the log of the depth, mean over draws."""
    draws = results.group(rows, "draw").values()
    return intervals.mean(
        [
            results.log_log_slope([row["layers"] for row in draw], [row[matrix] for row in draw])
            for draw in draws
        ]
    )


def verdict(estimate: Estimate, foretold: float) -> str:
    """Whether the whole interval lies within the tolerance, or the whole of it outside."""
    away = abs(estimate.value - foretold)
    if away + estimate.half_width <= TOLERANCE:
        return HELD
    return CONTRADICTED if away - estimate.half_width > TOLERANCE else UNDECIDED
