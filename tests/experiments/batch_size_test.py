"""Searches of rates, tokens to a loss, critical batches, the noise of made gradients, verdicts."""

import itertools
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments.batch_size import measure, report
from experiments.harness import rates, results
from tests.experiments import tiny
from transformer_jax.tools.reports.intervals import Estimate


@pytest.mark.parametrize("best", [0.25, 1.0, 3.0, 9.0, 1_000.0])
def test_a_search_goes_on_until_the_best_rate_lies_inside_and_leaves_the_rest_to_fresh_seeds(best):
    trained = []

    def train(rate, seed):
        trained.append((rate, seed))
        return math.nan if rate > 64 else math.log(rate / best) ** 2 + seed

    rows = rates.searched(train, 1.0, 6, 2)
    assert [(row["learning_rate"], row["seed"]) for row in rows] == trained
    search, fresh = ([row for row in rows if row["kind"] == kind] for kind in ("search", "fresh"))
    octaves = np.diff(sorted(math.log2(row["learning_rate"]) for row in search))
    np.testing.assert_allclose(octaves, 1)
    nearest = min((row["learning_rate"] for row in search), key=lambda r: abs(math.log(r / best)))
    assert {row["learning_rate"] for row in fresh} == {nearest}
    assert [row["seed"] for row in fresh] == [1, 2]
    assert rates.at_edge(rows) == (best == 1_000)
    assert len(search) == {0.25: 5, 1.0: 3, 3.0: 5, 9.0: 6, 1_000.0: 6}[best]


def test_where_every_rate_diverges_a_search_goes_down_and_its_seeds_have_no_loss():
    rows = rates.searched(lambda rate, seed: math.nan, 1.0, 4, 1)
    assert [row["learning_rate"] for row in rows] == [1, 0.5, 2, 0.25, 0.25]


def test_a_fresh_seed_that_diverges_after_a_reading_has_no_loss():
    """Seed 0 takes all four steps, and the other two of them."""
    trainings: Any = SimpleNamespace(
        batches=lambda seed: iter([{"targets": np.zeros(8)}]),
        steps=lambda rate, seed: [
            SimpleNamespace(step=step, state=SimpleNamespace(evaluated=abs(rate - 1) + 1))
            for step in range(3 if seed else 5)
        ],
        validation_loss=lambda loss: loss,
    )
    rows = measure._critical(trainings, start=1.0, most=3, fresh=1, at=[16, 32])
    (fresh,) = [row for row in rows if row["kind"] == "fresh"]
    assert math.isnan(fresh["loss"]) and fresh["loss_16"] == 1 and "loss_32" not in fresh


def test_a_verdict_is_undecided_within_two_errors_beyond_the_line():
    for value, said in ((-1, "held"), (0.5, "held"), (0.6, "undecided"), (0.8, "contradicted")):
        assert results.at_most(Estimate(value, 0.1, 5), 0.5) == said
    assert results.at_most(Estimate(math.nan, math.nan, 0)) == "undecided"
    assert results.at_most(Estimate(0.4, math.nan, 0), 0.5) == "undecided"


def test_a_critical_batch_takes_a_fifth_more_tokens_than_the_best():
    # tokens = 100 (1 + batch / 80): those of 16 are 1.2 times those of 0, and 1.2 / 1.05 of 4.
    sizes = [2.0**n for n in range(-4, 9)]
    batch = report.critical_batch({size: 100 * (1 + size / 80) for size in sizes})
    assert batch == pytest.approx(80 * (1.2 * (1 + sizes[0] / 80) - 1), rel=0.05)
    assert math.isnan(report.critical_batch({4: 100, 16: 110}))
    assert report.critical_batch({4: 100, 16: 110, 64: math.inf}) == 16
    assert report.critical_batch({4: 150, 16: 100, 64: 120.0001}) == pytest.approx(64, rel=1e-3)


def test_tokens_to_a_loss_lie_between_readings_on_the_log():
    losses = {1_000: 3.0, 2_000: 2.5, 4_000: 2.0}
    assert report.tokens_to(losses, 2.5) == 2_000
    assert report.tokens_to(losses, 2.25) == pytest.approx(2_000 * 2**0.5)
    assert report.tokens_to(losses, 3.5) == 1_000
    assert report.tokens_to(losses, 1.75) == pytest.approx(4_000 * 2**0.5)
    assert report.tokens_to({1_000: 2.0, 2_000: 2.1}, 1.9) == report.tokens_to({}, 1.9) == math.inf
    assert report.tokens_to({1_000: 2.0, 1_414: 1.9999}, 1.7) == math.inf  # too flat to go on


def test_a_seed_that_diverges_leaves_the_lines_on_other_arms_decided():
    known = losses(sgd={1: 2.0, 256: 2.4}, adamw={1: 2.0, 256: 2.0}, adafactor={1: 2.1, 256: 2.1})
    known["adafactor", 256] = [math.nan, 2.1]
    assert "**held**" in report._gaps(known)[0]
    arms = {"0.95": {1: 2.1, 16: 2.0}, "3e+03 tokens": {1: 2.0, 16: 2.0}}
    known = losses(**arms | {"3e+04 tokens": {1: 2.2, 16: 2.2}})
    known["3e+04 tokens", 1] = [math.nan, math.nan]
    assert "**undecided**" not in half_lives(known)[0]


def losses(**means):
    """Of arms by size, with a deviation of 0.001."""
    return {
        (arm, batch): [mean - 0.001, mean + 0.001]
        for arm, by_batch in means.items()
        for batch, mean in by_batch.items()
    }


def half_lives(known):
    """With a search whose seed says what the others do."""
    means = {
        key: math.inf if math.isnan(sum(cell)) else sum(cell) / 2 for key, cell in known.items()
    }
    return report._half_lives(known, means)


def test_what_ends_above_a_guess_has_diverged(tmp_path, undrawn):
    """Its losses, however large, say nothing of how far the others' seeds are apart."""
    rows = [
        {"part": "beta2", "kind": kind, "arm": arm, "batch": batch, "seed": seed}
        | {
            "learning_rate": rate,
            "loss": 500.0 + 1e5 * seed if (arm, batch) == ("s", 16) else loss + seed,
        }
        for arm, loss in (("0.95", 2.1), ("s", 2.0), ("m", 2.05))
        for batch in (1, 16)
        for kind, rate, seed in (
            *(("search", rate, 0) for rate in (1.0, 2.0, 4.0)),
            *(("fresh", 2.0, seed / 1_000) for seed in (1, 2)),
        )
    ]
    text = report._tuned(rows, tmp_path)
    errors = [float(word) for word in re.findall(r"± ([\d.,]+\d)", text)]
    assert "| s | 16 | 2 | diverged |" in text and errors and max(errors) < 0.1


def test_the_half_life_that_is_compared_is_the_best_one_of_the_search():
    known = losses(**{"0.95": {1: 2.1, 16: 2.0}, "s": {1: 2.0, 16: 2.0}, "m": {1: 1.9, 16: 2.0}})
    searched = {(arm, batch): 2.0 - (arm == "s") for arm, batch in known}
    assert report._half_lives(known, searched)[1]["one_row/fixed"] == pytest.approx(-0.1)


def test_verdicts_of_half_lives_follow_the_lines_of_the_protocol():
    short, middle, long = {1: 2.1, 16: 2.0}, {1: 2.0, 16: 2.1}, {1: 2.2, 16: 2.2}
    arms = {"0.95": {1: 2.06, 16: 2.0}, "s": short, "m": middle, "l": long}
    text, numbers = half_lives(losses(**arms))
    assert text.count("**held**") == 3 and numbers["half_life/steps_apart"] == 1
    far = {"0.95": {1: 2.01, 16: 2.0}, "s": short, "m": long, "l": {1: 2.05, 16: 2.3}}
    text, _ = half_lives(losses(**far))
    assert text.count("**contradicted**") == 3
    # Far apart, but what lies between is as good as either.
    text, _ = half_lives(losses(**far | {"m": {1: 2.0505, 16: 2.0005}}))
    assert "all sizes*: **undecided**" in text
    alone = {key: [mean] for key, (mean, _) in losses(**arms).items()}
    assert half_lives(alone)[0].count("contradicted") == 0


def test_what_sgd_loses_has_to_count_where_batches_are_large():
    arms = {"adamw": {1: 2.0, 256: 2.2}, "adafactor": {1: 2.0, 256: 2.2}}
    for sgd, said in (({1: 2.1, 256: 3.0}, "held"), ({1: 2.5, 256: 3.0}, "contradicted"),
                      ({1: 2.0, 256: 2.2}, "undecided")):  # fmt: skip
        assert f"**{said}**" in report._gaps(losses(sgd=sgd, **arms))[0]
    better = losses(sgd={1: 2.0, 256: 2.1}, **arms)
    assert "**undecided**" in report._gaps(better)[0]
    # What may be better than it is here does not turn the line the other way.
    for sgd, at_edge in (({1: 2.1, 256: 3.0}, ("sgd", 256)), ({1: 2.5, 256: 3.0}, ("sgd", 1))):
        assert "**undecided**" in report._gaps(losses(sgd=sgd, **arms), {at_edge})[0]


def trainings(tokens):
    """Rows of `critical` that reach a loss of 1 / T after tokens(size, width, T) tokens."""
    targets = [2**n * 1_000 for n in range(6)]
    for width, seed, batch in itertools.product((16, 32, 64), (1, 2), (1, 4, 16, 64)):
        readings = {t: tokens(batch, width, t) * (1 + 0.001 * seed) for t in targets}
        at = np.log([*readings.values()])
        curve = {f"loss_{t}": float(np.exp(-np.interp(math.log(t), at, np.log(targets))))
                 for t in targets}  # fmt: skip
        row = {"width": width, "seed": seed, "batch": batch, "kind": "fresh", "learning_rate": 2.0}
        yield row | curve
        yield from (row | {"kind": "search", "learning_rate": rate} for rate in (1.0, 2.0, 4.0))


def test_lines_on_critical_batches(tmp_path, undrawn):
    def said(tokens):
        text = report._critical(list(trainings(tokens)), tmp_path)
        return [line.split("**")[1] for line in text.split("\n\n")[1:3]]

    # Of 1 row too few are left in the average: the least is at 4 or 16.
    def best_inside(batch, width, t):
        return t * (1 + batch / (0.3 * t**0.5)) * (1 + 2 / batch)

    def smallest(batch, width, t):
        return t * (1 + batch / 20)

    grows, flat = said(best_inside)
    assert grows == "held" and flat == "held"
    assert said(smallest) == ["undecided", "undecided"]


@pytest.mark.long
def test_a_batch_of_copies_of_one_row_has_no_noise(tmp_path):
    config = tiny.config(tmp_path, 10, {}, "abcdefgh" * 200)
    rows = measure.measure(config, tmp_path, part="noise", rate=0.01, batches=2, fresh=2)
    expected = [(seed, step) for seed in (0, 1) for step in (1, 3, 6, 10)]
    assert [(row["seed"], row["step"]) for row in rows] == expected
    for row in rows:
        assert abs(row["trace"]) < 1e-3 * row["square"]
