"""Ratios and shares of the limit are taken within rounds."""

import pytest

from experiments.speed import limit, sweep, table

# The machine is ten times as slow in round 1; the peer takes twice our time in every round, and the
# products alone half of it.
ROWS = [
    {"program": name, "round": number, "seconds": seconds * load}
    for number, load in enumerate((1.0, 10.0, 1.0))
    for name, seconds in (("ours", 1.0), ("torch", 2.0), ("products", 0.5))
]


def test_a_ratio_is_that_of_one_round():
    assert table.ratios(ROWS, "torch", "ours") == [2, 2, 2]
    assert table.ratios(ROWS, "flax", "ours") == []


def test_the_limit_is_the_time_of_the_products_in_the_same_round():
    run = next(run for run in sweep.cpu(quick=True) if run.labels["work"] == "step_base")
    work = limit.step(run.resolved) / limit.products(limit.PRODUCTS)
    for row in table.with_limits(run, ROWS):
        if row["program"] == "products":
            assert "limit" not in row
        else:
            expected = {"ours": 0.5 * work, "torch": 0.25 * work}[row["program"]]
            assert row["limit"] / row["seconds"] == pytest.approx(expected)
