"""What claims read off measured rows."""

import pytest

from experiments.speed import claims


def _training(seconds_of, bytes_of, steps=5000):
    seconds, rows = 0.0, []
    for step in range(100, steps + 1, 100):
        seconds += 100 * seconds_of(step)
        row = {"work": "training", "step": step, "seconds": seconds}
        rows.append(row | {"held_bytes": bytes_of(step)})
    return rows


def test_what_stays_the_same_does_not_grow():
    """But compiling, before the first line, and the evaluation at the end are no part of it."""
    rows = _training(
        lambda step: 9.0 if step == 100 else 0.5, lambda step: 9e9 if step == 5000 else 1e9
    )
    assert claims.seconds_grow(rows) == pytest.approx([1])
    assert claims.memory_grows(rows) == [1]
    short = _training(lambda step: 0.5, lambda step: 1e9, steps=600)
    assert claims.seconds_grow(short) == claims.memory_grows(short) == []


def test_what_grows_is_seen():
    rows = _training(lambda step: 0.5 + step / 4000, lambda step: 1e9 + 1e6 * step)
    (seconds,), (memory,) = claims.seconds_grow(rows), claims.memory_grows(rows)
    assert 1.3 < seconds < 1.6
    assert memory == pytest.approx(5.9 / 2)


def test_only_what_was_measured_is_claimed_and_bounds_have_two_sides():
    rows = [
        {"work": work, "program": program, "round": 0, "seconds": seconds}
        for work, program, seconds in [
            ("beam", "ours", 1.0),
            ("beam", "hugging_face", 4.5),
            ("compile", "ours", 10.0),
            ("compile", "ours_60_layers", 14.0),
            ("sweep", "one process", 4.0),
            ("sweep", "a process each", 10.0),
        ]
    ]
    holds = {line["claim"]: line["holds"] for line in claims.lines(rows)}
    assert holds == {
        "beam: times as fast as Hugging Face": "yes",
        "compile: 60 layers over 6": "no",
        "sweep: in one process over a process each": "yes",
    }


@pytest.mark.parametrize(
    "values, holds",
    [([2.5, 2.6, 2.4], "yes"), ([1.5, 1.6, 1.4], "no"), ([1.0, 2.5, 2.6], "not clear")],
)
def test_a_claim_holds_where_its_whole_interval_does(values, holds):
    assert claims.faster("beam", "hugging_face", 2).holds(values) == holds
