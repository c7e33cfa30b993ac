"""Sinks, peaks and drains at the end of training by arm; when sinks came; the protocol's lines."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from transformer_jax.models.transformer.schemes import SCHEMES
from transformer_jax.tools.reports import intervals

_SINK, _DRAINED = 0.3, 0.3
_PEAK, _FLAT, _LONG = 0.5, 0.2, 3.0
_OTHERS = ("post_ln", "peri_ln", "admin", "branch_ln")
_TAKES_OVER = 0.1


def report(runs: Sequence[Finished], out: Path) -> str:
    """A table of arms at the end, what the lines say of them, and sinks over training."""
    rows = [{**row, "sink": row["sink"] - row["uniform"]} for row in results.rows(runs)]
    part = rows[0]["part"]
    results.write_csv(out / f"{part}.csv", rows)
    last = {}
    for row in rows:
        last[row["scheme"], row["arm"], row["seed"]] = row
    arms = results.group(last.values(), "scheme", "arm")
    numbers = {
        f"{part}/{scheme}/{arm}/{name}": float(np.mean([row[name] for row in cell]))
        for (scheme, arm), cell in arms.items()
        for name in ("sink", "peak_first", "norm_ratio", "value_ratio", "loss")
    }
    results.write_summary(out, numbers)
    table = results.table([_line(s, arm, cell, rows) for (s, arm), cell in arms.items()])
    line = _LINES.get(part, lambda arms: "")(arms)
    several = part in ("gate", "schemes", "words")
    curves = [row | {"of": row["scheme"] if several else row["arm"]} for row in rows]
    if part == "schemes":  # whose bands would hide one another
        cells = results.group(curves, "of", "step").values()
        curves = [cell[0] | {"sink": np.mean([row["sink"] for row in cell])} for cell in cells]
    figure = figures.lines(
        [row for row in curves if several or row["scheme"] == "pre_ln"],
        x="step",
        y="sink",
        by="of",
        xlabel="step",
        ylabel="weight on the first token, less uniform",
    )
    title = f"Weight on the first token over training, less that of uniform weights: {part}"
    title += {"schemes": ", the mean of three seeds", "remedies": ", Pre-LN"}.get(part, "")
    return "\n\n".join(filter(None, [table, line, figures.save(figure, out, part, title)]))


def peaks(row: Row) -> bool:
    """Whether first tokens have a massive entry, by the protocol's definition."""
    if row["peak_first"] >= _PEAK and row["peak_others"] <= _FLAT:
        return True
    return not SCHEMES[row["scheme"]].post_norm and row["norm_ratio"] >= _LONG


def _line(scheme: str, arm: str, last: Sequence[Row], rows: Sequence[Row]) -> Row:
    came = []
    for seed in (row["seed"] for row in last):
        curve = [r for r in rows if (r["scheme"], r["arm"], r["seed"]) == (scheme, arm, seed)]
        came.append(next((row["step"] for row in curve if row["sink"] > _SINK), None))
    known = [step for step in came if step is not None]
    return {
        "scheme": scheme,
        "arm": arm,
        "rate": f"{last[0]['rate']:g}",
        "loss": results.interval(row["loss"] for row in last),
        "sink": results.interval(row["sink"] for row in last),
        "0.3 at": ", ".join("never" if step is None else str(step) for step in came)
        if known
        else "never",
        "peak": f"{sum(map(peaks, last))} of {len(last)}",
        "largest share, first": f"{np.mean([row['peak_first'] for row in last]):.2f}",
        "others": f"{np.mean([row['peak_others'] for row in last]):.2f}",
        "norm ratio": f"{np.mean([row['norm_ratio'] for row in last]):.2f}",
        "value ratio": f"{np.mean([row['value_ratio'] for row in last]):.2f}",
    }


_Arms = Mapping[tuple[str, str], Sequence[Row]]


def _sinks(rows: Sequence[Row]) -> bool:
    return all(row["sink"] >= _SINK for row in rows)


def _schemes(arms: _Arms) -> str:
    pre = arms["pre_ln", "plain"]
    both = _sinks(pre) and all(map(peaks, pre))
    decoupled = [
        name
        for name in _OTHERS
        if (name, "plain") in arms
        and _sinks(arms[name, "plain"]) != all(map(peaks, arms[name, "plain"]))
    ]
    sinks, sizes = (
        [float(np.mean([row[name] for row in cell])) for cell in arms.values()]
        for name in ("sink", "peak_first")
    )
    rank = results.rank_correlation(sinks, sizes)
    held = both and len(decoupled) >= 2
    verdict = "held" if held else "contradicted" if rank >= 0.8 else "undecided"
    text = (
        f"*The scheme decides whether sinks come with massive activations*: **{verdict}**; one "
        f"without the other in {', '.join(decoupled) or 'none'} of {', '.join(_OTHERS)}; the rank "
        f"correlation over {len(arms)} schemes is {rank:+.2f}."
    )
    return f"{text}\n\n{_drained([row for cell in arms.values() for row in cell])}"


def _drained(rows: Sequence[Row]) -> str:
    sinks = [row for row in rows if row["sink"] > _SINK]
    drained = sum(row["value_ratio"] < _DRAINED for row in sinks)
    verdict = "undecided" if not sinks else "held" if drained == len(sinks) else "contradicted"
    return (
        f"*A sink drains its value*: **{verdict}**; in {drained} of {len(sinks)} trainings with a "
        "sink of 0.3."
    )


def _remedies(arms: _Arms) -> str:
    plain, gate, logit = (arms["pre_ln", name] for name in ("plain", "gate", "sink logit"))
    base = float(np.mean([row["sink"] for row in plain]))
    less = all(row["sink"] <= base / 4 for row in gate)
    both = [row["sink"] + row["added_mass"] for row in logit]
    over = abs(float(np.mean(both)) - base) <= _TAKES_OVER and all(
        row["added_mass"] > row["sink"] for row in logit
    )
    free = [row for (_, arm), cell in arms.items() if arm in ("sigmoid", "ReLU") for row in cell]
    none = not any(row["sink"] >= _SINK for row in free)
    said = {True: "held", False: "contradicted"}
    mean = intervals.mean([row["sink"] for row in plain])
    return "\n\n".join(
        [
            f"Plain attention with Pre-LN has a sink of {mean}.",
            f"*A gate prevents sinks*: **{said[less]}**; at most "
            f"{max(row['sink'] for row in gate):.2f}.",
            f"*A sink logit takes the sink over*: **{said[over]}**; both together "
            f"{np.mean(both):.2f}.",
            f"*Without a softmax there is none*: **{said[none]}**; at most "
            f"{max(row['sink'] for row in free):.2f}.",
            _drained([row for cell in arms.values() for row in cell]),
        ]
    )


_LINES: dict[str, Callable[[_Arms], str]] = {"schemes": _schemes, "remedies": _remedies}
