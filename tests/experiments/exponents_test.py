"""Fits on made losses of known exponents, curves that are one or not, verdicts."""

import math

import numpy as np
import pytest

from experiments.exponents import fits, measure, report
from transformer_jax.data.corpora import zipf
from transformer_jax.tools.reports.intervals import Estimate

ALPHA, BETA = 0.34, 0.28  # of Hoffmann et al. 2022, 2203.15556, as remembered: any do here


def chinchilla(alpha=ALPHA, beta=BETA):
    """A / N^alpha + B / D^beta by tokens, at 6 N FLOPs a token."""
    parameters = [10_000 * 2.0**n for n in range(7)]
    return [
        fits.Size(n, 6 * n, {2**k: 20 / n**alpha + 20 / 2.0 ** (k * beta) for k in range(12, 25)})
        for n in parameters
    ]


def test_pieces_cost_who_knows_the_language_what_keys_and_answers_do():
    keys, answers = zipf.language(0.5)
    one, other = 3 * 256 + 1, 5
    probabilities = keys[one] * answers[one, 7] * keys[other] * answers[other, 2]
    (cost,) = measure.nats(np.array([[3, 1, 7, 0, 5, 2]]), 0.5)
    assert cost == pytest.approx(-math.log(probabilities))


@pytest.mark.parametrize(("alpha", "beta"), [(0.34, 0.28), (0.3, 0.3), (0.4, 0.3)])
def test_the_best_size_grows_with_the_budget_as_the_two_exponents_say(alpha, beta):
    exponent = fits.exponent(chinchilla(alpha, beta))
    assert exponent == pytest.approx(beta / (alpha + beta), abs=0.02)


def test_a_best_size_is_that_of_the_formula_and_budgets_without_four_sizes_are_left_out():
    for budget, best in fits.best_sizes(chinchilla()).items():
        g = (ALPHA / BETA) ** (1 / (ALPHA + BETA))
        assert best == pytest.approx(g * (budget / 6) ** (BETA / (ALPHA + BETA)), rel=0.12)
    assert fits.best_sizes(chinchilla()[:3]) == {}
    assert math.isnan(fits.exponent(chinchilla()[:3]))


def test_a_fit_without_the_floor_finds_it_where_the_law_is_exact():
    tokens = [2.0**k for k in range(10, 16)]
    floor, power = fits.with_floor(tokens, [1.8 + 30 * n**-0.4 for n in tokens])
    assert floor == pytest.approx(1.8, abs=0.01)
    assert power == pytest.approx(0.4, abs=0.01)


def curves(shapes):
    """Of sizes whose heights differ, seeds and points."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.05, 1, 20)
    return np.array(
        [
            [height * x**-power * np.exp(rng.normal(0, 0.01, 20)) for _ in range(5)]
            for height, power in zip((1.0, 0.5, 0.2, 0.1), shapes, strict=True)
        ]
    )


def test_curves_of_one_shape_are_as_near_as_their_seeds_and_others_are_not():
    late = np.linspace(0.05, 1, 20) >= 0.5
    late[-1] = False
    same = curves([0.3] * 4)
    of_sizes, of_seeds = fits.collapse(same)
    slow = [[same[s, :, k].std(ddof=1) / same[s, :, k].mean() for s in range(4)] for k in range(20)]
    np.testing.assert_allclose(of_seeds, np.mean(slow, axis=1))
    assert of_sizes[-1] == pytest.approx(0, abs=1e-9)
    one, apart = report.ratio(same, late), report.ratio(curves([0.2, 0.3, 0.4, 0.5]), late)
    assert one.value + 2 * one.error < 1.5 < 2 < apart.value - 2 * apart.error
    assert math.isnan(report.ratio(same[:, :2], late).error)


def test_an_interval_holds_the_slope_that_the_losses_have():
    rng = np.random.default_rng(1)
    cells = {2**k: 2.0 ** (-0.3 * k) * np.exp(rng.normal(0, 0.02, 2)) for k in range(10, 16)}

    def power(means):
        ((losses),) = means.values()
        return -float(np.polyfit(np.log([*losses]), np.log([*losses.values()]), 1)[0])

    interval = report.bootstrap(power, {("a",): cells})
    expected = 0.02 / math.sqrt(2) / (math.log(2) * math.sqrt(17.5))  # of least squares
    assert interval.low < 0.3 < interval.high
    assert (interval.high - interval.low) / 3.92 == pytest.approx(expected, rel=0.5)
    assert math.isnan(report.bootstrap(power, {("a",): {n: x[:1] for n, x in cells.items()}}).low)


def test_a_number_is_beside_a_line_where_all_of_its_interval_is():
    for value, low, high, said in (
        (0.35, 0.2, 0.5, "held"),
        (0.45, 0.35, 0.55, "undecided"),
        (0.45, 0.40, 0.5, "contradicted"),
        (0.33, math.nan, math.nan, "undecided"),
    ):
        assert report._within(report.Interval(value, low, high), 1 / 3, 0.05) == said


@pytest.mark.parametrize(
    ("before", "counted", "after", "said"),
    [
        ((0.7, 0.65, 0.75), (0.65, 0.6, 0.7), (0.5, 0.45, 0.55), "held"),
        ((0.7, 0.65, 0.75), (0.54, 0.5, 0.58), (0.5, 0.45, 0.55), "undecided"),  # bookkeeping
        ((0.62, 0.51, 0.75), (0.7, 0.6, 0.8), (0.55, 0.45, 0.65), "undecided"),  # both
        ((0.62, 0.55, 0.7), (0.6, 0.5, 0.7), (0.6, 0.55, 0.7), "contradicted"),
        ((0.7, 0.65, 0.75), (0.65, 0.6, 0.7), (0.5, math.nan, math.nan), "undecided"),
    ],
)
def test_an_exponent_is_put_right_by_more_than_counting_the_head(before, counted, after, said):
    assert report._put_right(*(report.Interval(*each) for each in (before, counted, after))) == said


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ([(0.8, 0.1), (3, 0.2), (4, 0.3)], "held"),
        ([(0.8, 0.1), (3, 1.0), (4, 0.3)], "undecided"),
        ([(1.2, 0.3), (5, 1.5), (4, 1.5)], "undecided"),
        ([(0.8, 0.1), (1, 0.1), (4, 0.3)], "contradicted"),
        ([(0.8, 0.1), (1, math.nan), (4, 0.3)], "undecided"),
    ],
)
def test_curves_of_one_arm_alone_are_one(ratios, said):
    assert report._alone(*(Estimate(value, error, 4) for value, error in ratios)) == said


def test_cells_without_a_logarithm_are_named():
    excess = {(True, 16): {1024: np.array([0.5, 0.4]), 2048: np.array([0.5, math.nan])}}
    text = report._without(excess, "corrected", "width")
    assert "corrected=True width=16 after 2,048 tokens" in text and "1,024" not in text


@pytest.mark.parametrize("readings", [0, 5])
def test_a_ladder_tells_of_a_seed_that_diverged(tmp_path, undrawn, readings):
    """Also before its first reading, so that it has no row."""
    rows = [
        {"part": "ladder", "arm": arm, "width": width, "seed": seed, "share": share / 20}
        | {"excess": math.exp(-share / 20) * (1 + 0.01 * seed)}
        for arm in ("one", "other")
        for width in (16, 32)
        for seed in range(3)
        for share in range(1, 21)
        if (arm, width, seed) != ("other", 32, 2) or share <= readings
    ]
    text = report._ladder(rows, tmp_path)
    assert text.count("a seed diverged") == 1 and "**undecided**" in text
