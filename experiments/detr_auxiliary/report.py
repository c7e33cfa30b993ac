"""Average precision by decoder layer, with auxiliary losses and without."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished
from transformer_jax.tools.reports import intervals


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes layers.csv, a figure and the numbers; returns the text."""
    rows = results.rows(runs)
    results.write_csv(out / "layers.csv", rows)
    cells = {
        key: [row["ap"] for row in members]
        for key, members in results.group(rows, "layers", "auxiliary", "layer").items()
    }
    deviation = results.pooled_deviation([*cells.values()])
    lines, differences = [], {}
    for layers, auxiliary in dict.fromkeys(key[:2] for key in cells):
        line = {"decoder layers": layers, "auxiliary losses": auxiliary}
        for layer in range(1, layers + 1):
            line[f"layer {layer}"] = intervals.mean(cells[layers, auxiliary, layer]).value
        lines.append(line)
        if auxiliary == "no":
            with_them, without = (cells[layers, arm, layers] for arm in ("yes", "no"))
            name = f"with auxiliary losses less without, {layers} layers"
            differences[name] = results.difference(with_them, without, deviation)
        elif layers > 1:
            last, first = (cells[layers, "yes", layer] for layer in (layers, 1))
            name = f"the last layer less the first, {layers} layers with auxiliary losses"
            differences[name] = results.difference(last, first, deviation)
    numbers = {name: less.value for name, less in differences.items()}
    halves = {f"{name}/half_width": less.half_width for name, less in differences.items()}
    results.write_summary(out, numbers | halves)
    figure = figures.lines(
        rows,
        x="layer",
        y="ap",
        by="auxiliary",
        panel="layers",
        xlabel="decoder layer",
        ylabel="AP",
    )
    return "\n\n".join(
        [
            "AP on validation, means over seeds; differences with their 95 % interval by t, the "
            "deviation pooled over all arms.",
            results.table(lines),
            results.table([{"AP": n, "difference": f"{d:+}"} for n, d in differences.items()]),
            figures.save(figure, out, "layers", "AP of what each decoder layer tells"),
        ]
    )
