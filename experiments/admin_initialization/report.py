"""The variants' losses, the spread of the profile, and what folding changes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from transformer_jax.tools.reports import intervals

BASELINE = "admin, trained"  # what the other variants are paired with


def report(runs: Sequence[Finished], out: Path) -> str:
    """Tables and figures of one sweep; its parts are told apart by the label `part`."""
    parts = {"variants": _variants, "gpu": _variants, "profile": _profile}
    texts = []
    for part, write in parts.items():
        if members := [run for run in runs if run.labels["part"] == part]:
            texts.append(write(members, out))
    return "\n\n".join(texts)


def _variants(runs: Sequence[Finished], out: Path) -> str:
    part = runs[0].labels["part"]
    rows = [
        {
            **run.labels,
            "variant": _variant(run),
            "status": run.results["status"],
            "loss": run.results.get("train/token_loss"),  # of the last logging window
            "validation_loss": run.results.get("validation/token_loss"),
            **({"bleu": run.results["test/bleu"]} if "test/bleu" in run.results else {}),
        }
        for run in runs
    ]
    results.write_csv(out / f"{part}.csv", rows)
    prefix = "" if part == "variants" else f"{part}/"
    lines, numbers = [], {}
    for (variant,), mine in results.group(rows, "variant").items():
        trained = sum(row["status"] == "finished" for row in mine)
        losses = [row["loss"] for row in mine]
        name = variant.replace(", ", "/")
        numbers[f"{prefix}trains/{name}"] = trained / len(mine)
        line = {"variant": variant, "train": f"{trained}/{len(mine)}"}
        if None not in losses:
            line["loss"] = results.interval(losses)
            line["validation loss"] = results.interval(row["validation_loss"] for row in mine)
            numbers[f"{prefix}loss/{name}"] = results.median(losses)
        if "bleu" in mine[0]:
            line["BLEU"] = results.interval(row["bleu"] for row in mine)
        pair = ("variant", variant, BASELINE)
        known = all(row["loss"] is not None for row in rows if row["variant"] in pair)
        if variant != BASELINE and known:
            gaps = results.paired_differences(rows, "loss", between=pair, on=["seed"])
            line[f"loss less that of {BASELINE}"] = f"{intervals.mean(gaps):+}"
            numbers[f"{prefix}difference/{name}"] = results.median(gaps)
        lines.append(line)
    results.write_summary(out, numbers)
    curves = [
        {"variant": _variant(run), **point}
        for run in runs
        for point in run.curve("train/token_loss")
    ]
    figure = figures.lines(
        curves, x="step", y="loss", by="variant", xlabel="step", ylabel="training loss (nats)"
    )
    description = "Training loss by step of the four variants"
    note = f"{results.convention(rows, 'variant')} Differences are of pairs of a seed."
    texts = [note, results.table(lines), figures.save(figure, out, f"{part}_curves", description)]
    folded = [row for run in runs for row in _measured(run)]
    return "\n\n".join([*texts, *([_folding(folded, out)] if folded else [])])


def _variant(run: Finished) -> str:
    return f"{run.labels['scheme']}, {run.labels['omega']}"


def _measured(run: Finished) -> list[Row]:
    return [{"variant": _variant(run), **row} for row in results.rows([run])]


def _folding(rows: list[Row], out: Path) -> str:
    results.write_csv(out / "folding.csv", rows)
    lines, numbers = [], {}
    for (variant,), mine in results.group(rows, "variant").items():
        pair = {name: members for (name,), members in results.group(mine, "model").items()}
        difference = max(row["largest_difference"] for row in mine)
        line = {"variant": variant, "largest difference of logits": f"{difference:.2g}"}
        name = variant.replace(", ", "/")
        numbers[f"folding/largest_difference/{name}"] = difference
        for label, column in (
            ("output change", "output_change"),
            ("loss", "loss"),
            ("loss after a step", "loss_after"),
        ):
            for model, members in pair.items():
                sample = [row[column] for row in members]
                line[f"{label}, {model}"] = results.interval(sample)
                numbers[f"folding/{column}/{model}/{name}"] = results.median(sample)
        line["omega's spread over channels"] = results.interval(
            row["omega_spread"] for row in pair["admin"]
        )
        lines.append(line)
    results.write_summary(out, numbers)
    return results.table(lines)


def _profile(runs: Sequence[Finished], out: Path) -> str:
    rows = results.rows(runs)
    results.write_csv(out / "profile.csv", rows)
    last = max(row["sublayer"] for row in rows)
    lines, numbers = [], {}
    for (size,), mine in results.group(rows, "size").items():
        # The deviation over batches for each sublayer and draw; then the mean of all.
        cells = [
            [row["omega"] for row in cell]
            for cell in results.group(mine, "seed", "sublayer").values()
        ]
        shares = [float(np.std(cell, ddof=1) / np.mean(cell)) for cell in cells]
        top = [row["omega"] for row in mine if row["sublayer"] == last]
        numbers[f"profile/deviation/{size}"] = float(np.mean(shares))
        numbers[f"profile/last_omega/{size}"] = float(np.mean(top))
        lines.append(
            {
                "rows in the batch": size,
                "deviation over batches, percent": 100 * float(np.mean(shares)),
                "largest, percent": 100 * max(shares),
                f"omega of sublayer {last}, mean": float(np.mean(top)),
                "least": min(top),
                "most": max(top),
            }
        )
    closed_form = rows[0]["closed_form"]
    numbers["profile/closed_form"] = closed_form
    results.write_summary(out, numbers)
    largest = max(row["size"] for row in rows)
    points = [
        *({**row, "line": f"rows: {row['size']}"} for row in rows if row["size"] in (1, largest)),
        *(
            {**row, "line": "closed form", "omega": row["closed_form"]}
            for row in rows
            if row["size"] == largest
        ),
    ]
    figure = figures.lines(
        points, x="sublayer", y="omega", by="line", xlabel="sublayer", ylabel="omega"
    )
    description = "Profiled omega by sublayer, from one row and from many, and the closed form"
    text = f"The closed form gives {closed_form:.3g} to every sublayer."
    picture = figures.save(figure, out, "profile", description)
    return "\n\n".join([results.table(lines), text, picture])
