"""Which runs trained, how far they came, and when paired runs part."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from transformer_jax.tools.reports import intervals

BASELINE = "pre_ln"  # what the others are paired with
TITLES = {
    "as_one": "Depth: logits by a kernel of their own; query, key and value drawn as one matrix",
    "depth": "Depth: logits by a kernel of their own; query, key and value drawn each for itself",
    "tied": "Depth: logits by the token table",
    "long": "Depth, 2000 steps: logits by a kernel of their own; drawn as one matrix",
    "grid": "Learning rate and beta2, 6 layers, logits by the token table",
    "multi30k": "Multi30k",
    "multi30k_long": "Multi30k, 1200 steps by its config's recipe",
    "gpu": "Multi30k, 18-18 layers, d_model 512",
}


def report(runs: Sequence[Finished], out: Path) -> str:
    """Tables and figures of one sweep; its parts are told apart by the label `part`."""
    parts: dict[str, list[Finished]] = {}
    for run in runs:
        parts.setdefault(run.labels["part"], []).append(run)
    return "\n\n".join(
        f"### {TITLES[name]}\n\n{_part(name, members, out)}" for name, members in parts.items()
    )


def _part(part: str, runs: list[Finished], out: Path) -> str:
    rows = [_row(run) for run in runs]
    results.write_csv(out / f"{part}.csv", rows)
    if part == "grid":
        return _grid(rows, out)
    text = _by_depth(part, runs, rows, out)
    curves = [point for run in runs for point in run.curve("train/token_loss")]
    figure = figures.lines(
        curves,
        x="step",
        y="loss",
        by="scheme",
        panel="layers",
        xlabel="step",
        ylabel="training loss (nats a token)",
    )
    unigram = runs[0].results["unigram_entropy"]
    for ax in figure.axes:
        ax.axhline(unigram, color="grey", linestyle=":", linewidth=1)
    description = f"Training loss by step and depth; dotted: unigram entropy, {unigram:.2f} nats"
    return f"{text}\n\n{figures.save(figure, out, f'{part}_curves', description)}"


def _row(run: Finished) -> Row:
    metrics = run.results
    scores = {"validation_loss": metrics.get("validation/token_loss")}
    if "validation/bleu" in metrics or "test/bleu" in metrics:
        scores["bleu"] = metrics.get("test/bleu", metrics.get("validation/bleu"))
    return {
        **run.labels,
        "status": metrics["status"],
        "first_bad_step": metrics.get("first_bad_step"),
        "spikes": len(metrics.get("spikes", [])),
        "loss": metrics.get("train/token_loss"),  # of the last logging window
        **scores,
    }


def _by_depth(part: str, runs: list[Finished], rows: list[Row], out: Path) -> str:
    """A line for each depth and scheme, paired by seed with `BASELINE`."""
    partings = _partings(runs)
    prefix = "" if part == "as_one" else f"{part}/"
    lines, numbers = [], {}
    for (layers,), members in results.group(rows, "layers").items():
        for (scheme,), mine in results.group(members, "scheme").items():
            finished = sum(row["status"] == "finished" for row in mine)
            line = {
                "layers": layers,
                "scheme": figures.title(scheme),
                "outcome": _outcomes(mine),
                "loss": results.interval(row["loss"] for row in mine),
                "validation loss": results.interval(row["validation_loss"] for row in mine),
            }
            if "bleu" in mine[0]:
                line["BLEU"] = results.interval(row["bleu"] for row in mine)
            name = f"{scheme}/{layers}"
            numbers[f"{prefix}trains/{name}"] = finished / len(mine)
            numbers[f"{prefix}loss/{name}"] = results.median(row["loss"] for row in mine)
            if scheme != BASELINE:
                pair = ("scheme", scheme, BASELINE)
                if all(row["loss"] is not None for row in members if row["scheme"] in pair):
                    gaps = results.paired_differences(members, "loss", between=pair, on=["seed"])
                    line[f"loss less {figures.title(BASELINE)}'s"] = f"{intervals.mean(gaps):+}"
                    numbers[f"{prefix}difference/{name}"] = results.median(gaps)
                line["parts at step"] = _range(partings[layers, scheme])
            lines.append(line)
    results.write_summary(out, numbers)
    paired = f"Differences to {figures.title(BASELINE)} are of pairs of a seed."
    return f"{results.convention(rows, 'layers', 'scheme')} {paired}\n\n{results.table(lines)}"


def _partings(runs: list[Finished]) -> dict[tuple, list[int | None]]:
    """By depth and scheme, for each seed: the first logged step at which the loss is another."""
    baselines = {
        (run.labels["layers"], run.labels["seed"]): run.metrics
        for run in runs
        if run.labels["scheme"] == BASELINE
    }
    partings: dict[tuple, list[int | None]] = {}
    for run in runs:
        layers, seed = run.labels["layers"], run.labels["seed"]
        step = results.parting(run.metrics, baselines[layers, seed])
        partings.setdefault((layers, run.labels["scheme"]), []).append(step)
    return partings


def _grid(rows: list[Row], out: Path) -> str:
    figure = figures.statuses(
        rows,
        x="learning_rate",
        y="beta2",
        status="status",
        panel="scheme",
        xlabel="learning rate",
        ylabel="beta2",
    )
    lines, numbers = [], {}
    for (scheme,), mine in results.group(rows, "scheme").items():
        cells = {f"{row['learning_rate']:g}, {row['beta2']:g}": _cell(row) for row in mine}
        trained = sum(row["status"] == "finished" for row in mine)
        numbers[f"grid/trains/{scheme}"] = trained / len(mine)
        lines.append({"scheme": figures.title(scheme), "train": f"{trained}/{len(mine)}", **cells})
    # A column for each scheme, a line for each cell, since there are more cells than schemes.
    names = [name for name in lines[0] if name != "scheme"]
    turned = [
        {"learning rate, beta2": name, **{line["scheme"]: line[name] for line in lines}}
        for name in names
    ]
    results.write_summary(out, numbers)
    description = "What became of the runs of the grid, by learning rate and beta2"
    return f"{results.table(turned)}\n\n{figures.save(figure, out, 'grid', description)}"


def _cell(row: Row) -> str:
    loss = "" if row["loss"] is None else f"{row['loss']:.3g}"
    return loss if row["status"] == "finished" else f"{row['status']} {loss}".strip()


def _outcomes(rows: list[Row]) -> str:
    statuses = [row["status"] for row in rows]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


def _range(steps: list[int | None]) -> str:
    known = sorted({step for step in steps if step is not None})
    text = " to ".join(str(step) for step in dict.fromkeys([*known[:1], *known[-1:]]))
    return text if len(known) and None not in steps else f"{text} (some never)".strip()
