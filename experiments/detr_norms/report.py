"""Losses of placements and schemes, the differences that the lines ask for, curves over rates."""

import math
from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Deviation, Finished, Row
from transformer_jax.tools.reports import intervals
from transformer_jax.tools.reports.intervals import Estimate

BEST = 4  # schemes that are tried at depth
ARM = ("encoder", "decoder")
CELL = (*ARM, "learning_rate", "warmup")


def report(runs: Sequence[Finished], out: Path) -> str:
    """Tables and figures of the parts of one sweep, told apart by the label `part`."""
    rows = [_row(run) for run in runs]
    write = {"placement": _placement, "schemes": _schemes, "depth": _depth}
    return "\n\n".join(
        write[part](members, out) for (part,), members in results.group(rows, "part").items()
    )


def _row(run: Finished) -> Row:
    metrics = run.results
    loss = metrics.get("validation/loss")
    return {
        **run.labels,
        "status": metrics["status"],
        "loss": loss,
        "log_loss": math.log(loss) if loss and math.isfinite(loss) else None,
        "ap50": metrics.get("validation/ap50"),
    }


def _finished(rows: Sequence[Row]) -> bool:
    return all(row["status"] == "finished" and row["log_loss"] is not None for row in rows)


def _logs(rows: Sequence[Row]) -> list[float]:
    return [row["log_loss"] for row in rows]


def _deviation(cells: Sequence[Sequence[Row]]) -> Deviation:
    """Of the log of the loss within cells all of whose runs finished."""
    return results.pooled_deviation([_logs(cell) for cell in cells if _finished(cell)])


def _line(cell: Sequence[Row]) -> Row:
    if not _finished(cell):
        states = [row["status"] for row in cell]
        return {"runs": ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))}
    return {
        "runs": f"{len(cell)} finished",
        "loss": intervals.mean([row["loss"] for row in cell]).value,
        "AP50": intervals.mean([row["ap50"] for row in cell]).value,
    }


def _placement(rows: Sequence[Row], out: Path) -> str:
    results.write_csv(out / "placement.csv", rows)
    cells = results.group(rows, *CELL)
    deviation = _deviation([*cells.values()])
    best = {arm: _best(members) for arm, members in results.group(rows, *ARM).items()}
    lines = [
        dict(zip(ARM, map(figures.title, arm), strict=True))
        | {"learning rate": cell[0]["learning_rate"], "warm-up": cell[0]["warmup"], **_line(cell)}
        for arm, cell in best.items()
    ]
    differences = {
        f"a Post-LN decoder less a Pre-LN one, encoder {figures.title(encoder)}": _less(
            best[encoder, "post_ln"], best[encoder, "pre_ln"], deviation
        )
        for encoder in ("post_ln", "pre_ln")
    }
    for scheme in ("post_ln", "pre_ln"):
        rate = best[scheme, scheme][0]["learning_rate"]
        without, with_it = (
            next(
                cell
                for (encoder, decoder, peak, steps), cell in cells.items()
                if (encoder, decoder, peak) == (scheme, scheme, rate) and bool(steps) == warm
            )
            for warm in (False, True)
        )
        name = f"without warm-up less with it, both stacks {figures.title(scheme)}, at {rate:g}"
        differences[name] = _less(without, with_it, deviation)
    at = {
        (encoder, decoder): cell
        for (encoder, decoder, rate, warmup), cell in cells.items()
        if rate == 1e-3 and warmup
    }
    differences["Pre-LN in both stacks less Post-LN in both, at 1e-3 with warm-up"] = _less(
        at["pre_ln", "pre_ln"], at["post_ln", "post_ln"], deviation
    )
    _summary("placement", differences, out)
    points = [
        row | {"norms": f"{figures.title(row['encoder'])}/{figures.title(row['decoder'])}"}
        for row in rows
        if row["loss"] is not None
    ]
    figure = figures.lines(
        points,
        x="learning_rate",
        y="loss",
        by="norms",
        panel="warmup",
        xscale="log",
        yscale="log",
        xlabel="learning rate",
        ylabel="validation loss",
    )
    return "\n\n".join(
        [
            "### Placement\n\nEach arm at its best rate with warm-up, means over seeds.",
            results.table(lines),
            _table(differences),
            figures.save(
                figure, out, "placement", "Validation loss by rate; norms of encoder/decoder"
            ),
        ]
    )


def _best(rows: Sequence[Row]) -> list[Row]:
    """The cell with warm-up that has the lowest mean loss of those that finished."""
    cells = results.group([row for row in rows if row["warmup"]], *CELL).values()
    cells = [cell for cell in cells if _finished(cell)]
    return min(cells, key=lambda cell: intervals.mean(_logs(cell)).value)


def _less(rows: Sequence[Row], others: Sequence[Row], deviation: Deviation) -> Estimate | None:
    """The log of the loss, less that of others; None where one of them did not finish."""
    if not (_finished(rows) and _finished(others)):
        return None
    return results.difference(_logs(rows), _logs(others), deviation)


def _table(differences: dict[str, Estimate | None]) -> str:
    lines = [
        {"log of the loss": name, "difference": f"{gap:+}" if gap else "one did not finish"}
        for name, gap in differences.items()
    ]
    return results.table(lines)


def _summary(part: str, differences: dict[str, Estimate | None], out: Path) -> None:
    numbers = {}
    for name, gap in differences.items():
        numbers[f"{part}/{name}"] = gap.value if gap else None
        numbers[f"{part}/{name}/half_width"] = gap.half_width if gap else None
    results.write_summary(out, numbers)


def _schemes(rows: Sequence[Row], out: Path) -> str:
    results.write_csv(out / "schemes.csv", rows)
    cells = {scheme: cell for (scheme,), cell in results.group(rows, "scheme").items()}
    deviation = _deviation([*cells.values()])
    order = sorted(
        (scheme for scheme, cell in cells.items() if _finished(cell)),
        key=lambda scheme: intervals.mean(_logs(cells[scheme])).value,
    )
    lines = []
    for scheme in dict.fromkeys([*order, *cells]):
        less = _less(cells[scheme], cells["post_ln"], deviation) if "post_ln" in cells else None
        gap = f"{less:+}" if less and scheme != "post_ln" else ""
        line = {"scheme": figures.title(scheme), **_line(cells[scheme])}
        lines.append(line | {"log of the loss less Post-LN's": gap})
    results.write_summary(out, {"schemes/best": order[:BEST]})
    return "\n\n".join(["### Schemes\n\nMeans over seeds.", results.table(lines)])


def _depth(rows: Sequence[Row], out: Path) -> str:
    results.write_csv(out / "depth.csv", rows)
    cells = results.group(rows, "layers", "scheme")
    deviation = _deviation([*cells.values()])
    lines, differences = [], {}
    for (layers, scheme), cell in cells.items():
        lines.append({"layers": layers, "scheme": figures.title(scheme), **_line(cell)})
        if scheme != "post_ln":
            name = f"{figures.title(scheme)} less Post-LN, {layers} layers"
            differences[name] = _less(cell, cells[layers, "post_ln"], deviation)
    _summary("depth", differences, out)
    return "\n\n".join(
        ["### Depth\n\nMeans over seeds.", results.table(lines), _table(differences)]
    )
