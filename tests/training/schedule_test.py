"""Schedules against their formulas."""

import math

import pytest

from tests.defaults import optimizer_settings
from transformer_jax.training.schedule import DECAY_SHAPES, SCHEDULES, make_schedule


def schedule_of(name, **changes):
    fields = {"learning_rate": 0.5, "warmup_steps": 4, "decay_steps": 5, "final_learning_rate": 0.1}
    fields |= {"stable_steps": 6, "steps": 20, "width": 64}
    return make_schedule(optimizer_settings(schedule=name, **(fields | changes)))


def rate(schedule, s):
    """The learning rate of update number s, the first being 1."""
    return float(schedule(s - 1))


def test_noam_is_the_papers():
    schedule = schedule_of("noam", learning_rate=1.0, warmup_steps=4000, width=512)
    for s in (1, 2, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(s**-0.5, s * 4000**-1.5)
        assert rate(schedule, s) == pytest.approx(expected, rel=1e-5)
    assert rate(schedule, 4000) == pytest.approx(6.99e-4, rel=1e-3)  # the base model's peak


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [4, 0])
def test_warmup_is_a_line_through_zero_that_meets_the_peak(name, steps):
    """Without warm-up the first update has the peak."""
    schedule, first = schedule_of(name, warmup_steps=steps), max(steps, 1)
    peak = 0.5 * (64 * first) ** -0.5 if name == "noam" else 0.5
    for s in range(1, first + 1):
        assert rate(schedule, s) == pytest.approx(peak * s / first, rel=1e-6)


def test_decay_follows_the_formula():
    for s in range(4, 21):
        done = (s - 4) / 16
        expected = {
            "inverse_sqrt": 0.5 * math.sqrt(4 / s),
            "cosine": 0.1 + 0.4 * (1 + math.cos(math.pi * done)) / 2,
            "linear": 0.5 - 0.4 * done,
            "constant": 0.5,
            "warmup_stable_decay": 0.5 - 0.4 * max(s - 15, 0) / 5,
            "halving": 0.5 / 2 ** sum(s > first for first in (6, 11, 16)),
        }
        for name, value in expected.items():
            assert rate(schedule_of(name), s) == pytest.approx(value, rel=1e-5), (name, s)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_ends_has_the_final_rate_and_no_other_depends_on_the_end(name):
    schedule = schedule_of(name)
    if SCHEDULES[name].ends:
        assert rate(schedule, 20) == rate(schedule, 50) == pytest.approx(0.1)
        # Of 0 it is a step that moves nothing, as docs/training.md says, and the only one.
        to_nothing = schedule_of(name, final_learning_rate=0.0)
        assert rate(to_nothing, 20) == 0 < rate(to_nothing, 19)
    else:
        longer = schedule_of(name, steps=99, final_learning_rate=0.3)
        assert all(rate(schedule, s) == rate(longer, s) for s in range(1, 60))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_burn_in_comes_before_all_that(name):
    schedule, later = schedule_of(name), schedule_of(name, steps=23, burn_in_steps=3)
    assert [rate(later, s) for s in (1, 2, 3)] == [0, 0, 0]
    for s in range(1, 21):
        assert rate(later, s + 3) == pytest.approx(rate(schedule, s), rel=1e-6)


def test_halving_begins_after_the_warm_up_and_needs_steps_between():
    early = schedule_of("halving", stable_steps=0)
    assert [rate(early, s) for s in (4, 5, 9, 10)] == pytest.approx([0.5, 0.25, 0.25, 0.125])
    with pytest.raises(ValueError, match="'halving' needs a decay of 1 to 16 .*decay_steps=0"):
        schedule_of("halving", decay_steps=0)


# What is left of a peak of 0.5 after a quarter and a half of a decay to 0.1
LEFT = {
    "linear": (0.1 + 0.4 * 3 / 4, 0.1 + 0.4 / 2),
    "one_minus_sqrt": (0.1 + 0.4 / 2, 0.1 + 0.4 * (1 - 2**-0.5)),
    "cosine": (0.1 + 0.4 * (1 + 2**-0.5) / 2, 0.1 + 0.4 / 2),
    "square": (0.1 + 0.4 * 15 / 16, 0.1 + 0.4 * 3 / 4),
    "exponential": (0.5 / 5**0.25, (0.5 * 0.1) ** 0.5),
}


@pytest.mark.parametrize("shape", DECAY_SHAPES)
def test_a_decay_has_its_shape_between_the_peak_and_the_final_rate(shape):
    schedule = schedule_of("warmup_stable_decay", decay_steps=4, decay_shape=shape)
    rates = [rate(schedule, s) for s in (4, 16, 17, 18, 20)]
    assert rates == pytest.approx([0.5, 0.5, *LEFT[shape], 0.1], rel=1e-6)
