"""What the series of one training say: how often its loss jumps, before and after the odd batch,
whether large ratios come before, and how long the odd batch is felt."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from transformer_jax.inspection.spikes import spike_score

# Steps after the warm-up in which losses still fall too fast to be judged.
DESCENT = 100
# Nats above the running median that count, and the steps of that median, in whose middle one is.
ABOVE, WINDOW = 0.1, 201
# A spike lasts: of the four steps after its first, so many are above, too. What begins within
# `APART` steps of such a step belongs to the same spike.
LASTING, APART = 2, 10
# A large ratio (2304.13013, from memory), and how many steps before a spike it may be.
LARGE, LEAD = 2.3, 8
# Before the odd batch, what is the level; after it, how long its effect may take to show.
LEVEL, SHOWN = 200, 20
# Steps of the running median by which a loss has recovered; of the mean effect of the odd batch.
MEDIAN, HARM = 11, 10


@dataclasses.dataclass(frozen=True)
class Series:
    """Of a training, by step from 1; NaN from the step on at which it diverged.

    Attributes:
      losses: on each step's batch.
      ratios: the largest ratio of gradient and second moments.
      start: the steps until losses are judged.
      injected: the step whose batch is the odd one, which is itself not judged.
    """

    losses: Float[np.ndarray, " N"]
    ratios: Float[np.ndarray, " N"]
    start: int
    injected: int

    @property
    def before(self) -> slice:
        """The judged steps before the odd batch."""
        return slice(self.start, self.injected - 1)

    @property
    def after(self) -> slice:
        """The steps after the odd batch."""
        return slice(self.injected, None)

    @property
    def trained(self) -> bool:
        """Whether all steps were made."""
        return bool(np.isfinite(self.losses).all())


class Led(NamedTuple):
    """How many spikes a large ratio precedes, and how many it would by chance.

    Attributes:
      spikes: all.
      led: those with a large ratio in the `LEAD` steps before.
      expected, variance: of `led`, over all circular shifts of ratios against losses.
    """

    spikes: int
    led: int
    expected: float
    variance: float


def scores(series: Series) -> dict[str, Any]:
    """Percent of the steps that jump, in each piece; None where training diverged before it. All
    steps from the one at which a training diverged count as jumps.

    jumps: as of `spike_score`; NaN where too few steps come before.
    above: by more than `ABOVE` over the running median. below: under it, which batches alone do.
    """
    shares = {}
    for name, piece in (("before", series.before), ("after", series.after)):
        began = np.isfinite(series.losses[piece.start - 1])
        losses = series.losses[piece]
        # A score needs some losses before the first that it judges.
        lead_in = series.losses[series.before][-100:] if name == "after" else losses[:0]
        over = excess(losses)
        values = {
            "jumps": spike_score(np.concatenate([lead_in, losses])),
            "above": _percent(_is_above(over)),
            "below": _percent(over < -ABOVE),
        }
        shares |= {f"{kind}_{name}": value if began else None for kind, value in values.items()}
    return shares


def excess(losses: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Over the running median of the `WINDOW` steps around each, as far as there are so many."""
    finite = losses[np.isfinite(losses)]
    median = running_median(np.pad(finite, WINDOW // 2, constant_values=np.nan), WINDOW)
    return losses - np.pad(median, (0, losses.size - finite.size), constant_values=np.nan)


def running_median(losses: Float[np.ndarray, " N"], window: int) -> Float[np.ndarray, " M"]:
    """Of each `window` losses that follow each other, those that are NaN left out."""
    if losses.size < window:
        return np.zeros(0)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(losses, window), axis=1)


def spikes(over: Float[np.ndarray, " N"]) -> Int[np.ndarray, " S"]:
    """Where losses begin to be above by more than `ABOVE`, and stay there for more than a batch.

    over: losses over their running median, or their level. Where NaN begins, at the step at which
      training diverged, a spike does.
    """
    above = _is_above(over)
    following = np.array([above[at + 1 : at + 5].sum() for at in range(above.size)])
    # Of one that diverged at the end, nothing follows.
    lasting = np.flatnonzero(above & ((following >= LASTING) | np.isnan(over)))
    return lasting[np.diff(lasting, prepend=-APART - 1) > APART]


def lead(losses: Float[np.ndarray, " N"], ratios: Float[np.ndarray, " N"]) -> Led:
    """Counts the spikes of one piece that come 1 to `LEAD` steps after a large ratio.

    The piece is taken as a circle, up to the step at which training diverged.
    """
    size = min(losses.size, int(np.isfinite(losses).sum()) + 1)
    begin = spikes(excess(losses))
    large = ratios[:size] >= LARGE
    led = np.any([np.roll(large, offset) for offset in range(1, LEAD + 1)], axis=0)
    shifted = [int(np.roll(led, shift)[begin].sum()) for shift in range(size)]
    if not shifted:
        return Led(0, 0, 0.0, 0.0)
    return Led(begin.size, shifted[0], float(np.mean(shifted)), float(np.var(shifted)))


def leads(series: Series) -> Led:
    """`lead` of both pieces together, without the steps at which the odd batch shows itself."""
    pieces = [series.before, slice(series.injected + SHOWN, None)]
    counts = [lead(series.losses[piece], series.ratios[piece]) for piece in pieces]
    spikes, led, expected, variance = map(sum, zip(*counts, strict=True))
    return Led(spikes, led, expected, variance)


def harm(series: Series) -> float | None:
    """Nats by which the median of the `HARM` losses after the odd batch is above the level before.

    None where training diverged by then.
    """
    after = series.losses[series.after][:HARM]
    return float(np.median(after) - level(series)) if np.isfinite(after).all() else None


def level(series: Series) -> float:
    """The median of the `LEVEL` losses before the odd batch."""
    return float(np.median(series.losses[series.before][-LEVEL:]))


def recovery(series: Series) -> int | None:
    """The steps after the odd batch until losses are again as before; None: never.

    They are where their running median is no more than the largest of the `LEVEL` steps before.
    It is followed from where it is largest, among those that begin within `SHOWN` steps; by chance
    alone that is above it in about one of ten trainings.
    """
    after = series.losses[series.after]
    medians = running_median(after[np.isfinite(after)], MEDIAN)
    if medians.size < SHOWN:
        return None
    limit = running_median(series.losses[series.before][-LEVEL:], MEDIAN).max(initial=-np.inf)
    peak = int(medians[:SHOWN].argmax())
    if medians[peak] <= limit:
        return 0
    back = np.flatnonzero(medians[peak:] <= limit)
    return peak + int(back[0]) if back.size else None


def _is_above(excess: Float[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Also where there is no loss."""
    return ~(excess <= ABOVE)


def _percent(marked: Bool[np.ndarray, " N"]) -> float:
    return float(100 * marked.mean()) if marked.size else float("nan")
