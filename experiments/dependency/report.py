"""Heatmaps of beta_ij, and what is read off them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row

COLUMNS = ("model", "moment", "gain", "layers", "scheme")


def report(runs: Sequence[Finished], out: Path) -> str:
    """A table of readings, and for each depth the heatmaps at initialisation and after training."""
    outcomes = {tuple(run.labels.values()): run.results.get("status", "") for run in runs}
    csv, lines, numbers, maps = [], [], {}, {}
    for key, mine in results.group(results.rows(runs), *COLUMNS).items():
        betas = _betas(mine)
        median = np.median(betas, axis=0)
        labels = dict(zip(COLUMNS, key, strict=True))
        readings = _readings(betas)
        outcome = outcomes[labels["model"], labels["layers"], labels["scheme"]]
        draw = "each" if labels["gain"] == 1 else "as one"
        line = {**labels, "gain": draw, "scheme": figures.title(labels["scheme"])}
        lines.append(
            {**line, **readings, "training": outcome if labels["moment"] == "trained" else ""}
        )
        moment = "fused" if draw == "as one" else labels["moment"]
        place = f"{labels['model']}/{moment}/{labels['layers']}/{labels['scheme']}"
        numbers |= {f"{name}/{place}".replace(" ", "_"): value for name, value in readings.items()}
        csv += [
            {**labels, "sublayer": i, **{f"a{j}": row[j] for j in range(i + 1)}}
            for i, row in enumerate(median, start=1)
        ]
        if draw == "each":
            place = (labels["model"], labels["moment"], labels["layers"])
            maps.setdefault(place, {})[labels["scheme"]] = median
    results.write_csv(out / "dependency.csv", csv)
    results.write_summary(out, numbers)
    lines = [
        {name.replace("gain", "q, k, v"): value for name, value in line.items()} for line in lines
    ]
    return "\n\n".join([results.table(lines), *_heatmaps(maps, out)])


def _betas(rows: list[Row]) -> np.ndarray:
    """(draws, n, n + 1), with 0 above the diagonal."""
    draws = results.group(rows, "draw").values()
    n = max(row["sublayer"] for row in rows)
    betas = np.zeros((len(draws), n, n + 1))
    for draw, mine in enumerate(draws):
        for row in mine:
            i = row["sublayer"]
            betas[draw, i - 1, : i + 1] = [row[f"a{j}"] for j in range(i + 1)]
    return betas


def _readings(betas: np.ndarray) -> Row:
    """Medians over draws: the diagonal's ends, the last row, and sums of squares."""
    diagonals = np.diagonal(betas, 1, 1, 2)
    diagonal = np.median(diagonals, axis=0)
    last = np.median(betas[:, -1], axis=0)[1:]  # without the embedding, as in the paper's figure
    return {
        "diagonal_min": diagonal.min(),
        "diagonal_max": diagonal.max(),
        "last_row_first": last[0],
        "last_row_last": last[-1],
        "last_row_min": last.min(),
        "last_row_max": last.max(),
        "sum_of_squares": np.median(np.sum(diagonals**2, axis=1)),
        "row_sum_of_squares": np.median(np.sum(betas[:, -1] ** 2, axis=1)),
    }


def _heatmaps(maps: dict[tuple[str, str, int], dict[str, np.ndarray]], out: Path) -> list[str]:
    links = []
    for (model, moment, layers), matrices in maps.items():
        figure = figures.heatmaps(
            matrices,
            xlabel="component",
            ylabel="sublayer",
            label="dependency",
            limits=(0.0, 0.7),
        )
        name = f"{model}_{moment}_{layers}".replace(" ", "_")
        description = f"Dependencies in the {model} of {layers} layers, {moment}"
        links.append(figures.save(figure, out, name, description))
    return links
