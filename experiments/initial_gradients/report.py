"""How the norm of the last layer's gradient follows the depth, and what the theorem foretells."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Estimate, Finished, Row

# The slopes of theorem 1 of Xiong et al. 2020, and how far from them one may lie.
FORETOLD = {"post_ln": 0.0, "pre_ln": -0.5}
TOLERANCE = 0.1
HELD, CONTRADICTED, UNDECIDED = "held", "contradicted", "undecided"


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes the csv, the figure and the numbers of a sweep; returns the text."""
    rows = results.rows(runs)
    name = "theorem" if len({row["architecture"] for row in rows}) > 1 else "schemes"
    results.write_csv(out / f"{name}.csv", rows)
    lines, numbers = [], {}
    for (architecture, scheme), own in results.group(rows, "architecture", "scheme").items():
        line = {"architecture": architecture, "scheme": figures.title(scheme)}
        for (layers,), cell in results.group(own, "layers").items():
            line[f"{layers} layers"] = results.median(row["down"] for row in cell)
        for matrix, title in (("down", "slope of W2"), ("up", "slope of W1")):
            found = slope(own, matrix)
            line[title] = "" if found is None else f"{found:+.3f}"
            if found is not None:
                at = f"slope/{architecture}/{scheme}/{matrix}"
                numbers |= {at: found.value, f"{at}/half_width": found.half_width}
        if name == "theorem":
            line["foretold"] = f"{FORETOLD[scheme]:g}"
            line["W2"] = verdict(slope(own, "down"), FORETOLD[scheme])
        lines.append(line)
    results.write_summary(out, numbers)
    figure = figures.lines(
        [row for row in rows if row["down"] > 0],
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
            "Medians over draws of the norm of the last W2's gradient; slopes of logs over the log "
            "of the depth, mean over draws with its 95 % interval by t.",
            results.table(lines),
            figures.save(figure, out, name, description),
        ]
    )


def slope(rows: Sequence[Row], matrix: str) -> Estimate | None:
    """Of the log of a gradient's norm over the log of the depth, mean over draws.

    None where a gradient is 0, as where branches begin at 0.
    """
    if not all(row[matrix] for row in rows):
        return None
    draws = results.group(rows, "draw").values()
    return results.mean(
        [
            results.log_log_slope([row["layers"] for row in own], [row[matrix] for row in own])
            for own in draws
        ]
    )


def verdict(found: Estimate | None, foretold: float) -> str:
    """Whether the whole interval lies within the tolerance, or the whole of it outside."""
    if found is None:
        return UNDECIDED
    away = abs(found.value - foretold)
    if away + found.half_width <= TOLERANCE:
        return HELD
    return CONTRADICTED if away - found.half_width > TOLERANCE else UNDECIDED
