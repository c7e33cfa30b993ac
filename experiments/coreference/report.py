"""For each seed the heads that tell both nouns apart best, and the scores without heads."""

import math
from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row


def report(runs: Sequence[Finished], out: Path) -> str:
    """Tables of where heads look and of what is lost without them; csv files have all heads."""
    rows = results.rows(runs)
    looks = [row for row in rows if row["what"] == "look"]
    ablations = [row for row in rows if row["what"] == "ablation"]
    results.write_csv(out / "looks.csv", looks)
    results.write_csv(out / "ablations.csv", ablations)
    best, without, numbers = [], [], {}
    for (seed, stack), mine in results.group(looks, "seed", "stack").items():
        heads = [row for row in mine if row["head"]]
        means = [row for row in mine if not row["head"]]
        for name, candidates in (("best head", heads), ("best layer's mean", means)):
            top = max(candidates, key=lambda row: row["prefers_right"])
            columns = ("layer", "head", "prefers_right", "right", "other")
            values = {column: top[column] or "mean" for column in columns}
            best.append({"seed": seed, "from": stack, "what": name, **values})
            key = f"prefers_right/{stack}/{name}/{seed}".replace(" ", "_").replace("'", "")
            numbers[key] = top["prefers_right"]
    for (seed, stack), mine in results.group(looks, "seed", "stack").items():
        that = max((row for row in mine if row["head"]), key=lambda row: row["prefers_right"])
        place = that["layer"], that["head"]
        scores = {
            (row["layer"], row["head"]): row["pronoun_accuracy"]
            for row in ablations
            if row["seed"] == seed and row["stack"] in (stack, "none")
        }
        others = [scores[key] for key in scores if key[1] and key != place]
        accuracies = {
            "nothing": scores[0, 0],
            "that head": scores[place],
            "another (median)": results.median(others),
            "another (worst)": min(others, default=math.nan),
            "its layer": scores[place[0], 0],
        }
        head = f"layer {place[0]}, head {place[1]}"
        without.append({"seed": seed, "stack": stack, "that head is": head, **accuracies})
        numbers |= {
            f"pronoun_accuracy/{stack}/without/{what}/{seed}".replace(" ", "_"): value
            for what, value in accuracies.items()
        }
    results.write_summary(out, numbers)
    ranked = [
        {"seed": f"seed {seed}", "rank": rank, "prefers_right": share}
        for (seed,), mine in results.group(looks, "seed").items()
        for rank, share in enumerate(_shares(mine), start=1)
    ]
    figure = figures.lines(
        ranked,
        x="rank",
        y="prefers_right",
        by="seed",
        xlabel="head of cross-attention, by rank",
        ylabel="sentences where it prefers the right noun",
    )
    description = "Share of the sentences in which each head prefers the right noun, by rank"
    picture = figures.save(figure, out, "heads", description)
    return "\n\n".join([results.table(best), picture, results.table(without)])


def _shares(rows: list[Row]) -> list[float]:
    """Those of the decoder's heads, the largest first."""
    heads = (row for row in rows if row["head"] and row["stack"] == "decoder")
    return sorted((row["prefers_right"] for row in heads), reverse=True)
