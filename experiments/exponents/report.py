"""Best sizes by budget, what the data's exponent is, and whether curves of sizes are one."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.exponents import fits
from experiments.exponents.fits import Size
from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from transformer_jax.tools.reports.intervals import Estimate

_HALF, _LARGE = 0.5, 0.6  # exponents of the best size
_NEAR = 0.05  # of the data's exponent
_LAST = 0.5  # share of the steps, from which on curves are compared
_ONE, _APART = 1.0, 2.0  # of the deviation between sizes over that between seeds
_DRAWS = 1_000


class Interval(NamedTuple):
    """A number, and where 95 % of it lie when the losses are drawn anew; NaN where unknown."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return "not known"
        known = math.isfinite(self.low)
        bounds = f"{self.low:.2f} to {self.high:.2f}" if known else "interval not known"
        return f"{self.value:.2f} ({bounds})"


def report(runs: Sequence[Finished], out: Path) -> str:
    """The part's table, what its lines say, and its figure."""
    rows = results.rows(runs)
    if rows[0]["part"] == "ladder":
        results.write_csv(out / "ladder.csv", rows)
        return _ladder(rows, out)
    name = "grid" if len({row["a"] for row in rows}) == 1 else "data"
    results.write_csv(out / f"{name}.csv", rows)
    return (_grid if name == "grid" else _data)(rows, out)


# {(arm, ...): {tokens: excess of each fresh seed}}, of positive ones.
_Excess = Mapping[tuple, Mapping[int, np.ndarray]]


def _excess(rows: Sequence[Row], *columns: str) -> dict[tuple, dict[int, np.ndarray]]:
    fresh = [row for row in rows if row["kind"] == "fresh"]
    return {
        key: {
            tokens: np.array([math.nan if r["excess"] is None else r["excess"] for r in cell])
            for (tokens,), cell in results.group(of_arm, "tokens").items()
        }
        for key, of_arm in results.group(fresh, *columns).items()
    }


def bootstrap(number: Callable[[dict], float], excess: _Excess) -> Interval:
    """A number of mean losses, and its interval where these are drawn anew.

    The log of each is drawn with the deviation of seeds that all cells have together: two seeds of
    a cell know too little to be drawn from themselves.
    """
    logs = {(key, n): np.log(cell) for key, cells in excess.items() for n, cell in cells.items()}
    deviation = results.pooled_deviation(logs.values()).value
    rng = np.random.default_rng(0)

    def once(scale: float) -> float:
        means: dict[tuple, dict[int, float]] = {}
        for (key, n), cell in logs.items():
            noise = scale * rng.standard_normal() / math.sqrt(cell.size) if scale else 0.0
            means.setdefault(key, {})[n] = math.exp(cell.mean() + noise)
        return number(means)

    value = once(0.0)
    if not math.isfinite(deviation):
        return Interval(value, math.nan, math.nan)
    values = np.array([once(deviation) for _ in range(_DRAWS)])
    known = values[np.isfinite(values)]
    if known.size < 0.9 * _DRAWS:
        return Interval(value, math.nan, math.nan)
    low, high = np.quantile(known, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def _grid(rows: Sequence[Row], out: Path) -> str:
    excess = _excess(rows, "corrected", "width")
    of_width = {row["width"]: row for row in rows}

    def sizes(
        means: Mapping[tuple, Mapping[int, float]], corrected: bool, head: bool
    ) -> list[Size]:
        models = []
        for (which, width), curve in means.items():
            row = of_width[width]
            # Of the head alone, as the authors count: embeddings have parameters and no products.
            parameters = row["layers"] + (row["vocabulary"] * width if head else 0)
            flops = row["flops"] - (0 if head else row["head"])
            if which == corrected:
                models.append(Size(parameters, flops, curve))
        return models

    exponents, lines = {}, []
    for corrected in (False, True):
        arm = {key: cells for key, cells in excess.items() if key[0] == corrected}
        for head in (False, True):
            exponent = bootstrap(lambda m, c=corrected, h=head: fits.exponent(sizes(m, c, h)), arm)
            best = fits.best_sizes(sizes(_means(arm), corrected, head))
            exponents[corrected, head] = exponent
            lines.append(
                {
                    "warm-up and rate": "in proportion, tuned" if corrected else "fixed, one",
                    "head": "counted" if head else "left out",
                    "exponent": str(exponent),
                    "budgets": len(best),
                    "best sizes": ", ".join(f"{n:,.0f}" for n in best.values()),
                }
            )
    before, after, counted = exponents[False, False], exponents[True, True], exponents[False, True]
    verdict = _put_right(before, counted, after)
    results.write_summary(
        out,
        {
            f"exponent/{'corrected' if corrected else 'as it is'}/{'head' if head else 'layers'}": x
            for (corrected, head), (x, *_) in exponents.items()
        },
    )
    points = [
        {
            "tokens": row["tokens"],
            "excess": row["excess"],
            "arm": f"{'tuned' if row['corrected'] else 'one rate'}, d_model {row['width']}",
        }
        for row in rows
        if row["kind"] == "fresh" and row["corrected"]
    ]
    edges = _edges(rows)
    text = (
        f"*The exponent of the best size is that of Chinchilla once warm-up, rate and head are put "
        f"right*: **{verdict}**; {before} before, {counted} where the head alone is, and {after} "
        f"after.\n\n"
        f"At the edge of its search: {', '.join(edges) or 'none'}."
        f"{_without(excess, 'corrected', 'width')}"
    )
    figure = _falling(points)
    title = "Loss above the floor over tokens, by width, tuned and with a warm-up in proportion"
    return "\n\n".join([results.table(lines), text, figures.save(figure, out, "grid", title)])


def _put_right(before: Interval, counted: Interval, after: Interval) -> str:
    if not all(math.isfinite(x) for x in (*before, *counted, *after)):
        return "undecided"
    held = after.low <= _HALF <= after.high and before.value > _LARGE and before.low > _HALF
    held &= not after.low <= counted.value <= after.high
    alike = before.low <= after.value <= before.high and after.low <= before.value <= after.high
    if held == alike:
        return "undecided"
    return "held" if held else "contradicted"


def _edges(rows: Sequence[Row]) -> list[str]:
    """The widths and tokens whose best rate is at the edge of its search."""
    tuned = [row for row in rows if row["corrected"]]
    return [
        f"d_model {width}, {tokens:,} tokens, a = {a}"
        for (width, tokens, a), cell in results.group(tuned, "width", "tokens", "a").items()
        if rates.at_edge(cell)
    ]


def _without(excess: _Excess, *columns: str) -> str:
    """The cells that have no logarithm, so that budgets beside them are left out."""
    named = [
        f"{' '.join(f'{x}={y}' for x, y in zip(columns, key, strict=True))} after {tokens:,} tokens"
        for key, cells in excess.items()
        for tokens, cell in cells.items()
        if not (cell > 0).all()
    ]
    return f" A seed diverged, or fell to the floor: {', '.join(named)}." if named else ""


def _means(excess: _Excess) -> dict[tuple, dict[int, float]]:
    """Of the logarithms, as intervals are."""
    return {
        key: {n: math.exp(np.log(x).mean()) for n, x in cells.items()}
        for key, cells in excess.items()
    }


def _falling(rows: Sequence[Row]) -> figures.Figure:
    return figures.lines(
        rows,
        x="tokens",
        y="excess",
        by="arm",
        xlabel="tokens",
        ylabel="loss above the floor (nats a word)",
        xscale="log",
        yscale="log",
    )


def _data(rows: Sequence[Row], out: Path) -> str:
    lines, verdicts, numbers = [], [], {}
    for (a,), cells in _excess(rows, "a").items():
        law = float(a) / (1 + float(a))

        def power(means: Mapping[tuple, Mapping[int, float]]) -> float:
            ((curve),) = means.values()
            return -float(np.polyfit(np.log([*curve]), np.log([*curve.values()]), 1)[0])

        interval = bootstrap(power, {(a,): cells})
        fresh = [
            row
            for row in rows
            if row["a"] == a and row["kind"] == "fresh" and row["loss"] is not None
        ]
        floor = fresh[0]["loss"] - fresh[0]["excess"]
        losses = {n: x + floor for n, x in _means({(a,): cells})[a,].items()}
        fitted, of_fit = fits.with_floor([*losses], [*losses.values()])
        lines.append(
            {"a": a, "law": f"{law:.2f}", "power": str(interval), "floor": f"{floor:.4f}"}
            | {"floor, fitted": f"{fitted:.4f}", "power with it": f"{of_fit:.2f}"}
        )
        numbers |= {f"data/{a}": interval.value, f"data/{a}/with_fitted_floor": of_fit}
        verdicts.append(_within(interval, law, _NEAR))
    said = [x for x in ("contradicted", "undecided", "held") if x in verdicts]
    verdict = said[0] if len(verdicts) > 1 else "undecided"
    results.write_summary(out, numbers)
    text = (
        f"*The loss falls with the data by a / (1 + a)*: **{verdict}**; of each exponent: "
        f"{', '.join(verdicts)}.\n\nAt the edge of its search: {', '.join(_edges(rows)) or 'none'}."
        f"{_without(_excess(rows, 'a'), 'a')}"
    )
    figure = _falling([row | {"arm": f"a = {row['a']}"} for row in rows if row["kind"] == "fresh"])
    title = "Loss above the floor over tokens, by the exponent of the keys' frequencies"
    return "\n\n".join([results.table(lines), text, figures.save(figure, out, "data", title)])


def _within(interval: Interval, line: float, most: float) -> str:
    if not all(map(math.isfinite, interval)):
        return "undecided"
    if abs(interval.value - line) <= most:
        return "held"
    outside = interval.low > line + most or interval.high < line - most
    return "contradicted" if outside else "undecided"


def _ladder(rows: Sequence[Row], out: Path) -> str:
    ratios, lines, points = {}, [], []
    widths, shares, seeds = (
        sorted({row[name] for row in rows}) for name in ("width", "share", "seed")
    )
    for (arm,), members in results.group(rows, "arm").items():
        curves = results.group(members, "width", "seed")
        table = {
            key: [math.nan if row["excess"] is None else row["excess"] for row in curve]
            for key, curve in curves.items()
        }
        # A seed that diverges before the first reading has no curve at all.
        ended = len(table) == len(widths) * len(seeds)
        ended &= all(len(curve) == len(shares) for curve in table.values())
        ratios[arm] = Estimate(math.nan, math.nan, 0)
        if not ended:
            lines.append({"arm": arm, "sizes over seeds": "a seed diverged"})
            continue
        excess = np.array([[x for (w, _), x in table.items() if w == width] for width in widths])
        late = (np.array(shares) >= _LAST) & (np.array(shares) < 1)
        ratios[arm] = ratio(excess, late)
        of_sizes, of_seeds = fits.collapse(excess)[:, late].mean(axis=1)
        lines.append(
            {
                "arm": arm,
                "of sizes": f"{of_sizes:.4f}",
                "of seeds": f"{of_seeds:.4f}",
                "sizes over seeds": f"{ratios[arm].value:.2f} (error {ratios[arm].error:.2f})",
            }
        )
        points += [
            {"share": share, "height": height, "width": width, "arm": arm}
            for width, curve in zip(widths, excess.mean(axis=1), strict=True)
            for share, height in zip(shares, curve / curve[-1], strict=True)
        ]
    verdict = _alone(*ratios.values())
    results.write_summary(out, {f"ladder/{arm}": x.value for arm, x in ratios.items()})
    text = (
        f"*Curves of all sizes are one, with muP and a line to 0 alone*: **{verdict}**; the "
        f"deviation of sizes over that of seeds, from half of the steps on."
    )
    figure = figures.lines(
        points or [{"share": 1.0, "height": 1.0, "width": 0, "arm": "none"}],
        x="share",
        y="height",
        by="width",
        panel="arm",
        xlabel="share of the steps",
        ylabel="loss above the floor, over its last",
        yscale="log",
    )
    title = "Curves of all widths, each above the floor and over its own end, by arm"
    return "\n\n".join([results.table(lines), text, figures.save(figure, out, "ladder", title)])


def _alone(one: Estimate, *others: Estimate) -> str:
    """Whether the curves of one arm alone are as near as their seeds."""
    if not others or not all(math.isfinite(x.error) for x in (one, *others)):
        return "undecided"
    margins = [
        (other.value - _APART * one.value, 2 * math.hypot(other.error, _APART * one.error))
        for other in others
    ]
    if one.value < _ONE and all(margin > most for margin, most in margins):
        return "held"
    return "contradicted" if any(margin < -most for margin, most in margins) else "undecided"


def ratio(excess: np.ndarray, late: np.ndarray) -> Estimate:
    """The mean deviation of sizes over that of seeds, of these points; its error by the jackknife
    over seeds."""

    def number(curves: np.ndarray) -> float:
        of_sizes, of_seeds = fits.collapse(curves)
        return float(np.mean(of_sizes[late] / of_seeds[late]))

    seeds = excess.shape[1]
    if seeds < 3 or len(excess) < 2:
        return Estimate(math.nan if seeds < 2 else number(excess), math.nan, 0)
    without = np.array([number(np.delete(excess, seed, axis=1)) for seed in range(seeds)])
    error = math.sqrt((seeds - 1) / seeds * float(np.sum((without - without.mean()) ** 2)))
    return Estimate(number(excess), error, seeds - 1)
