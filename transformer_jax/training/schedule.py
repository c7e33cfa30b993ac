"""The learning rate's schedule: SCHEDULES is the list, DECAY_SHAPES that of its decays."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from transformer_jax.training.update_rules import OptimizerSettings


class Span(NamedTuple):
    """Steps count from 1.

    peak: where warm-up ends; last: the last one; decay, stable: how many; shape: of the decay.
    """

    peak: int
    last: int
    decay: int
    stable: int
    shape: Callable[[Any], Any]


def _inverse_sqrt(s, span):
    return jnp.sqrt(span.peak / s)


def _done(s, first, last):
    """0 until step `first`, then a line to 1 at the last step."""
    return jnp.clip((s - first) / max(last - first, 1), 0, 1)


def _linear(s, span):
    return 1 - _done(s, span.peak, span.last)


def _final_decay(s, span):
    return span.shape(_done(s, span.last - span.decay, span.last))


def _halved(s, span):
    first = max(span.stable, span.peak)
    return 0.5 ** jnp.ceil(jnp.maximum(s - first, 0) / span.decay)


class Schedule(NamedTuple):
    """One row.

    Attributes:
      remains: (step, span) -> how much is left of the peak, from 1 on.
      ends: whether it comes down to the final learning rate at the last step; otherwise the rate at
        a step does not depend on the number of steps to come.
      reads: `decay_steps`, and `stable_steps`, where it reads them.
      by_width: whether the learning rate is a factor on (width * peak step)^-0.5.
    """

    remains: Callable[[Any, Span], Any]
    ends: bool = False
    reads: tuple[str, ...] = ()
    by_width: bool = False


# How much is left of what lies between the floor, the final learning rate, and the peak, when the
# share x of the decay is done, from 0 to 1 (Haegele et al. 2024, 2405.18392, and their code):
DECAY_SHAPES: dict[str, Callable[..., Any]] = {
    "linear": lambda x, floor, peak: 1 - x,
    "one_minus_sqrt": lambda x, floor, peak: 1 - jnp.sqrt(x),
    "cosine": lambda x, floor, peak: (1 + jnp.cos(jnp.pi * x)) / 2,
    "square": lambda x, floor, peak: 1 - x**2,
    # peak * (floor / peak)^x, so of a floor above 0
    "exponential": lambda x, floor, peak: (peak * (floor / peak) ** x - floor) / (peak - floor),
}

# With s = 1 for the first update, s = `steps` for the last one, and w = `warmup_steps`:
SCHEDULES = {
    # learning_rate * width^-0.5 * min(s^-0.5, s * w^-1.5) (Vaswani et al. 2017, equation 3, which
    # is learning_rate = 1)
    "noam": Schedule(_inverse_sqrt, by_width=True),
    # learning_rate * sqrt(w / s): the peak is at s = w (fairseq's)
    "inverse_sqrt": Schedule(_inverse_sqrt),
    # half a cosine from learning_rate at s = w to final_learning_rate at `steps`
    "cosine": Schedule(lambda s, span: (1 - jnp.cos(jnp.pi * _linear(s, span))) / 2, ends=True),
    # a line between the same two points
    "linear": Schedule(_linear, ends=True),
    "constant": Schedule(lambda s, span: jnp.ones_like(s)),
    # learning_rate until s = steps - decay_steps, then down to final_learning_rate at `steps` in a
    # shape of DECAY_SHAPES (Hu et al. 2024; Haegele et al. 2024)
    "warmup_stable_decay": Schedule(_final_decay, ends=True, reads=("decay_steps", "decay_shape")),
    # learning_rate up to s = stable_steps (at least w), half of it for decay_steps, half of that
    # for as many, and so on (Zaremba et al. 2014, 1409.2329)
    "halving": Schedule(_halved, reads=("decay_steps", "stable_steps")),
}


def make_schedule(settings: OptimizerSettings) -> optax.Schedule:
    """Returns count -> learning rate, where `count` updates have been made before this one.

    Each row of `SCHEDULES` grows linearly as s / w while s = count + 1 is less than w =
    `warmup_steps`, so that the first update moves the parameters; 0 means that there is no warm-up.
    With `burn_in_steps` all this begins so many steps later, of which each has a rate of 0.

    Raises ValueError for a burn-in as long as the training, or a decay that is empty or longer than
    what the warm-up leaves.
    """
    row = SCHEDULES[settings.schedule]
    burn_in, warm_up = settings.burn_in_steps, settings.warmup_steps
    if burn_in >= settings.steps:
        raise ValueError(
            f"optimizer.burn_in_steps={burn_in} is not less than train.steps={settings.steps}"
        )
    last, decay = settings.steps - burn_in, settings.decay_steps
    if "decay_steps" in row.reads and not 0 < decay <= last - warm_up:
        raise ValueError(
            f"optimizer.schedule={settings.schedule!r} needs a decay of 1 to {last - warm_up} "
            f"steps, what is left of train.steps={settings.steps} after {burn_in} of burn-in and "
            f"{warm_up} of warm-up; got optimizer.decay_steps={decay}"
        )
    peak = peak_rate(settings)
    floor = settings.final_learning_rate if row.ends else 0.0
    shape = functools.partial(DECAY_SHAPES[settings.decay_shape], floor=floor, peak=peak)
    # Without warm-up the peak is the first step.
    span = Span(max(warm_up, 1), last, decay, settings.stable_steps, shape)

    def schedule(count):
        s = jnp.asarray(count, jnp.float32) + 1 - burn_in
        decayed = floor + (peak - floor) * row.remains(s, span)
        rate = jnp.where(s < span.peak, peak * s / span.peak, decayed)
        return jnp.where(s < 1, 0.0, rate) if burn_in else rate

    return schedule


def peak_rate(settings: OptimizerSettings) -> Any:
    """The learning rate at which the schedule's warm-up ends."""
    factor = (settings.width * max(settings.warmup_steps, 1)) ** -0.5
    rate = settings.learning_rate
    return rate * factor if SCHEDULES[settings.schedule].by_width else rate
