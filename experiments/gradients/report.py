"""Relative gradient norms by layer, and how many times the first layer's is below the last's."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row

COLUMNS = ("norms", "layers", "stack", "kind", "gain")


def report(runs: Sequence[Finished], out: Path) -> str:
    """A table of first, middle and last layers, and figures of the stacks together and alone."""
    rows = [{**row, "norms": _norms(row)} for row in results.rows(runs)]
    csv, lines, numbers = [], {}, {}
    for key, mine in results.group(rows, *COLUMNS).items():
        norms, layers, stack, kind, gain = key
        medians = {
            layer: results.spread(row["norm"] for row in here)
            for (layer,), here in results.group(mine, "layer").items()
        }
        labels = dict(zip(COLUMNS, key, strict=True))
        for layer, spread in medians.items():
            interval = {"norm": spread.median, "low": spread.low, "high": spread.high}
            csv.append({**labels, "layer": layer, **interval, "draws": spread.count})
        ratios = _ratios(mine, layers)
        fused = "/fused" * (gain != 1)
        names = "/".join(filter(None, (mine[0]["encoder"], mine[0]["decoder"])))
        numbers[f"ratio/{names}/{layers}/{stack}/{kind}{fused}"] = results.median(ratios)
        line = lines.setdefault((norms, layers, stack, kind), {})
        if gain == 1:
            at = {"first": 1, "middle": layers // 2, "last": layers}
            line |= {"norms": norms, "layers": layers, "stack": stack, "sublayers": kind}
            line |= {name: medians[layer].median for name, layer in at.items()}
        line["last / first" + ", drawn as one" * (gain != 1)] = results.median_interval(ratios)
    results.write_csv(out / "gradients.csv", csv)
    results.write_summary(out, numbers)
    table = [line for (*_, kind), line in lines.items() if kind != "feed_forward"]
    return "\n\n".join([results.table(table), *_figures(rows, out)])


def _norms(row: Row) -> str:
    """What stands where, as "Post-LN / Pre-LN" of encoder and decoder."""
    names = [figures.title(row[stack]) for stack in ("encoder", "decoder") if row[stack]]
    alone = "" if len(names) == 2 else f", {row['architecture'].partition('_')[0]} alone"
    return " / ".join(names) + alone


def _ratios(rows: list[Row], last: int) -> list[float]:
    """The last layer's norm over the first's, for each draw."""
    norms = {(row["draw"], row["layer"]): row["norm"] for row in rows}
    return [norms[draw, last] / norms[draw, 1] for draw, layer in norms if layer == 1]


def _figures(rows: list[Row], out: Path) -> list[str]:
    """Draws the self-attention sublayers; the others of a layer lie close to it."""
    points = [
        {**row, "line": f"{row['stack']}, {row['layers']} layers"}
        for row in rows
        if row["kind"] == "self_attention" and row["gain"] == 1
    ]
    links = []
    for name, together in (("together", True), ("alone", False)):
        figure = figures.lines(
            [row for row in points if (row["architecture"] == "encoder_decoder") == together],
            x="layer",
            y="norm",
            by="line",
            panel="norms",
            yscale="log",
            xlabel="layer",
            ylabel="gradient norm / largest",
        )
        description = f"Gradient norms with respect to self-attention's outputs, stacks {name}"
        links.append(figures.save(figure, out, name, description))
    return links
