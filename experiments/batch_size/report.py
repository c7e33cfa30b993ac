"""Losses by size of a batch and arm, each at its best rate; critical sizes; the noise scale."""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.batch_size.sweep import AT, FIRST_TARGET, LENGTH
from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from transformer_jax.tools.reports.intervals import Estimate

_NEAR = 0.012  # nats, that resolve with three seeds
_LOST = 0.03  # nats, by which a fixed beta2 is worse
_LEFT = 0.25  # of SGD's gap at 256 rows, what is there at 1
_SLACK = 1.2  # times the least tokens, that a critical batch takes
_SLOPE, _FLAT = 0.3, 0.1  # of the log of a critical batch
_GUESS = math.log(256)  # nats of a byte, above which a training has diverged
_BEYOND = 50  # the log of a factor on tokens, from which on a curve is flat
_Said = tuple[str, dict[str, float]]


def report(runs: Sequence[Finished], out: Path) -> str:
    """The part's table, what its lines say, and its figure."""
    rows = results.rows(runs)
    part = rows[0]["part"]
    results.write_csv(out / f"{part}.csv", rows)
    return {"noise": _noise, "critical": _critical}.get(part, _tuned)(rows, out)


def _tuned(rows: Sequence[Row], out: Path) -> str:
    part = rows[0]["part"]
    rows = [row if _number(row["loss"]) <= _GUESS else row | {"loss": None} for row in rows]
    lines = []
    for (arm, batch), members in results.group(rows, "arm", "batch").items():
        fresh = [row for row in members if row["kind"] == "fresh"]
        lines.append(
            {
                "arm": arm,
                "rows": batch,
                "rate": rates.chosen_rate(members),
                "loss": results.interval(row["loss"] for row in fresh) or "diverged",
            }
        )
    fresh = [row for row in rows if row["kind"] == "fresh"]
    losses = {
        key: [math.nan if row["loss"] is None else row["loss"] for row in members]
        for key, members in results.group(fresh, "arm", "batch").items()
    }
    searched = {
        key: min(_number(row["loss"]) for row in members)
        for key, members in results.group(
            [row for row in rows if row["kind"] == "search"], "arm", "batch"
        ).items()
    }
    edges = {
        key
        for key, members in results.group(rows, "arm", "batch").items()
        if rates.at_edge(members)
    }
    text, numbers = _half_lives(losses, searched) if part == "beta2" else _gaps(losses, edges)
    means = {f"{part}/{arm}/{batch}": float(np.mean(x)) for (arm, batch), x in losses.items()}
    results.write_summary(out, means | numbers)
    figure = figures.lines(
        fresh,
        x="batch",
        y="loss",
        by="arm",
        xlabel="rows of 64 bytes a step",
        ylabel="validation loss (nats a byte)",
        xscale="log",
    )
    title = f"Loss after as many tokens by size of a batch, each arm at its best rate: {part}"
    return "\n\n".join([results.table(lines), text, figures.save(figure, out, part, title)])


_Losses = Mapping[tuple[str, int], Sequence[float]]


def _half_lives(losses: _Losses, searched: Mapping[tuple[str, int], float]) -> _Said:
    """Where the best half-life is by size; one row against 16; a fixed beta2 at one row.

    searched: the least loss of each search, whose seed chooses the half-life that others compare.
    """
    deviation = results.pooled_deviation(losses.values())
    batches = sorted({batch for _, batch in losses})
    half_lives = [arm for arm in dict.fromkeys(arm for arm, _ in losses) if arm != "0.95"]
    best: dict[int, int] = {}
    as_good: dict[int, list[int]] = {}
    for batch in batches:
        arms = [losses[arm, batch] for arm in half_lives]
        best[batch] = int(np.argmin([_number(float(np.mean(x))) for x in arms]))
        as_good[batch] = [
            place
            for place, x in enumerate(arms)
            if results.at_most(results.difference(x, arms[best[batch]], deviation))
            != "contradicted"
            and np.isfinite(x).all()
        ]
    apart = max(best.values()) - min(best.values())
    # No choice among those that are as good as the best lies within a step of the grid.
    never = not any(
        all(any(abs(place - at) <= 1 for place in as_good[batch]) for batch in batches)
        for at in np.arange(len(half_lives) + 1) - 0.5
    )
    known = len(half_lives) > 1 and np.isfinite(deviation.value)
    same = "held" if apart <= 1 else "contradicted" if never else "undecided"
    first = batches[0]
    chosen = {batch: min(half_lives, key=lambda x: searched[x, batch]) for batch in batches}
    one_row = losses[chosen[first], first]
    against = losses[chosen[AT], AT] if AT in chosen else [math.nan]
    smaller = results.difference(one_row, against, deviation)
    fixed = results.difference(one_row, losses.get(("0.95", first), [math.nan]), deviation)
    ends = "at the end of the grid "
    optima = ", ".join(
        f"{half_lives[place]} {ends * (place in (0, len(half_lives) - 1))}at {batch}"
        for batch, place in best.items()
    )
    worse = sum(len(half_lives) - len(places) for places in as_good.values())
    text = (
        f"*The best half-life in tokens is the same for all sizes*: "
        f"**{same if known else 'undecided'}**; {optima}. Worse than the best of their size by two "
        f"errors: {worse} of {len(batches) * (len(half_lives) - 1)}.\n\n"
        f"*A batch of one row is as good as one of 16*: **{results.at_most(smaller, _NEAR)}**; "
        f"{smaller:+} nats.\n\n"
        f"*A fixed beta2 of 0.95 is worse there*: **{results.at_most(fixed, -_LOST)}**; with the "
        f"best half-life {fixed:+} nats."
    )
    return text, {
        "half_life/steps_apart": apart,
        "one_row/difference": smaller.value,
        "one_row/fixed": fixed.value,
    }


def _gaps(losses: _Losses, edges: Collection[tuple[str, int]] = ()) -> _Said:
    """What SGD and Adafactor have more than AdamW, by size.

    edges: whose rate is at the edge of its search, so that they may be better than they are here.
    """
    deviation = results.pooled_deviation(losses.values())
    batches = sorted({batch for _, batch in losses})
    gaps = {
        (name, batch): results.difference(losses[name, batch], losses["adamw", batch], deviation)
        for name in ("sgd", "adafactor")
        for batch in batches
    }
    small, large = gaps["sgd", batches[0]], gaps["sgd", batches[-1]]
    error = math.hypot(small.error, _LEFT * large.error)
    excess = Estimate(small.value - _LEFT * large.value, error, small.freedom)
    verdict = results.at_most(excess) if large.counts and large.value > 0 else "undecided"
    doubtful = {
        "held": {("adamw", batches[0]), ("sgd", batches[-1])},
        "contradicted": {("sgd", batches[0]), ("adamw", batches[-1])},
    }
    if doubtful.get(verdict, set()) & {*edges}:
        verdict = "undecided"
    listing = "; ".join(
        f"{name} {', '.join(f'{gaps[name, batch]:+} at {batch}' for batch in batches)}"
        for name in ("sgd", "adafactor")
    )
    text = (
        f"*Of what SGD loses to AdamW, at most a quarter is left with one row*: **{verdict}**; "
        f"nats above AdamW: {listing}."
    )
    return text, {f"gap/{name}/{batch}": gap.value for (name, batch), gap in gaps.items()}


def _noise(rows: Sequence[Row], out: Path) -> str:
    by_step = {
        step: sum(row["trace"] for row in members) / sum(row["square"] for row in members)
        for (step,), members in results.group(rows, "step").items()
    }
    lines = [
        {
            "step": step,
            "trace": results.interval(row["trace"] for row in members),
            "squared gradient": results.interval(row["square"] for row in members),
            "rows": f"{by_step[step]:.0f}" if by_step[step] > 0 else "not resolved",
        }
        for (step,), members in results.group(rows, "step").items()
    ]
    results.write_summary(out, {f"noise/{step}": scale for step, scale in by_step.items()})
    figure = figures.lines(
        [{"step": step, "scale": x, "arm": "simple"} for step, x in by_step.items() if x > 0],
        x="step",
        y="scale",
        by="arm",
        xlabel="step",
        ylabel="noise scale (rows of 64 bytes)",
        yscale="log",
    )
    title = "Simple noise scale on the way of a training with 16 rows a step"
    return "\n\n".join([results.table(lines), figures.save(figure, out, "noise", title)])


def critical_batch(tokens: Mapping[Any, float]) -> float:
    """The largest batch that takes at most 1.2 times the least tokens, of those by size.

    Between that and the next size it is interpolated, on logarithms; NaN where there is no next.
    """
    sizes = sorted(tokens)
    least = min(tokens.values())
    within = [size for size in sizes if tokens[size] <= _SLACK * least]
    after = sizes.index(within[-1]) + 1
    if after == len(sizes):
        return math.nan
    pair = sizes[after - 1], sizes[after]
    x, y = np.log2(pair), np.log([tokens[size] / least for size in pair])
    if not np.isfinite(y[1]):  # it does not get there
        return float(pair[0])
    return float(2 ** np.interp(math.log(_SLACK), y, x))


def tokens_to(losses: Mapping[int, float], target: float) -> float:
    """Tokens until the loss is the target, between readings on the log of tokens.

    Where it never is, as the last two readings go on; infinite where these do not fall.

    losses: by tokens.
    """
    readings = sorted(losses.items())
    if not readings:
        return math.inf
    if readings[0][1] <= target:
        return float(readings[0][0])
    pairs = list(itertools.pairwise(readings))
    reaching = [pair for pair in pairs if pair[1][1] <= target] or pairs[-1:]
    for (first, higher), (second, lower) in reaching[:1]:
        if lower < higher:
            log = math.log(second / first) * (higher - target) / (higher - lower)
            return first * math.exp(log) if log < _BEYOND else math.inf
    return math.inf


def _critical(rows: Sequence[Row], out: Path) -> str:
    fresh = [row for row in rows if row["kind"] == "fresh"]
    points, lines, floored = [], [], 0
    for (width, seed), members in results.group(fresh, "width", "seed").items():
        curves = {row["batch"]: _curve(row) for row in members}
        for target in sorted(set().union(*curves.values()))[FIRST_TARGET::2]:
            loss = min(curve.get(target, math.inf) for curve in curves.values())
            tokens = {batch: tokens_to(curve, loss) for batch, curve in curves.items()}
            floored += min(tokens, key=tokens.__getitem__) == min(tokens)
            batch = critical_batch(tokens) * LENGTH
            # Of the layers, without embeddings.
            point = {"width": width, "seed": seed, "tokens": target, "parameters": 36 * width**2}
            points.append(point | {"batch": batch})
            lines.append(
                {"d_model": width, "seed": seed, "tokens": f"{target:,}", "loss": f"{loss:.3f}"}
                | {f"{size} rows": f"{x / target:.2f}" for size, x in tokens.items()}
                | {"critical": "beyond" if math.isnan(batch) else f"{batch:,.0f} tokens"}
            )
    known = [point for point in points if math.isfinite(point["batch"])]
    by_tokens = _slope(known, "tokens", "width")
    # The targets of a training are not independent: a point for each.
    trained = [
        members[0] | {"batch": math.exp(np.mean([math.log(point["batch"]) for point in members]))}
        for members in results.group(known, "width", "seed").values()
    ]
    by_size = _slope(trained, "parameters")
    grows = results.at_most(by_tokens._replace(value=-by_tokens.value), -_SLOPE)
    grows = "undecided" if grows == "held" and not by_tokens.counts else grows
    flat = results.at_most(by_size._replace(value=abs(by_size.value)), _FLAT)
    if len(known) < len(points):
        grows = flat = "undecided"
    # A critical batch below the smallest size is read as one beyond it: slopes are too near to 0.
    if floored > len(points) / 2:
        grows, flat = (
            "undecided" if verdict == bent else verdict
            for verdict, bent in ((grows, "contradicted"), (flat, "held"))
        )
    numbers = {"tokens": by_tokens.value, "parameters": by_size.value}
    results.write_summary(out, {f"critical/slope/{x}": value for x, value in numbers.items()})
    edges = [
        f"{batch} rows at d_model {width}"
        for (width, batch), members in results.group(rows, "width", "batch").items()
        if rates.at_edge(members)
    ]
    text = (
        f"*The critical batch grows with data*: **{grows}**; slope {by_tokens:+} on the log of "
        f"tokens.\n\n*It does not with the model's size*: **{flat}**; slope {by_size:+} on the log "
        f"of parameters.\n\n{len(points) - len(known)} of {len(points)} lie beyond the largest "
        f"batch and are left out; of {floored} the smallest takes the least tokens. The best rate "
        f"is at the edge of its search for: {', '.join(edges) or 'none'}."
    )
    figure = figures.lines(
        known,
        x="tokens",
        y="batch",
        by="width",
        xlabel="tokens that the best batch takes",
        ylabel="critical batch (tokens)",
        xscale="log",
        yscale="log",
    )
    title = "Critical batch over the tokens that the best batch takes to the same loss, by d_model"
    return "\n\n".join([results.table(lines), text, figures.save(figure, out, "critical", title)])


def _curve(row: Row) -> dict[int, float]:
    """The losses of a training by tokens, as far as it has some."""
    return {
        int(name.removeprefix("loss_")): loss
        for name, loss in row.items()
        if name.startswith("loss_") and loss is not None
    }


def _slope(points: Sequence[Row], x: str, *within: str) -> Estimate:
    """Of the log of a critical batch on that of x, at equal values of `within` and equal seeds."""
    groups = results.group(points, *within, "seed").values()
    logs = [
        (np.log([point[x] for point in group]), np.log([point["batch"] for point in group]))
        for group in groups
        if len({point[x] for point in group}) > 1
    ]
    if sum(len(xs) - 1 for xs, _ in logs) < 2:
        return Estimate(math.nan, math.nan, 0)
    return results.common_slope(logs)


def _number(loss: float | None) -> float:
    return math.inf if loss is None or math.isnan(loss) else float(loss)
