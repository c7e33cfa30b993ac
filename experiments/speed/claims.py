"""What the project wants to show, each a number that the measured rows give, or leave open."""

import dataclasses
from collections.abc import Callable, Sequence

from experiments.harness import results
from experiments.harness.results import Row
from experiments.speed import table

_FIRST, _STEPS = 100, 2000  # what compiles counts as no step; over how many steps are flat
_SETTLED = 1000  # steps after which memory has to stay what it is

Numbers = Callable[[Sequence[Row]], list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A number, one a round, that is at least or at most a bound."""

    text: str
    numbers: Numbers
    least: float | None = None
    most: float | None = None

    @property
    def bound(self) -> str:
        """The bound in words."""
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"

    def holds(self, values: Sequence[float]) -> str:
        """Whether all of the range keeps within the bound: "yes", "no" or "not clear"."""
        spread = results.spread(values)
        ends = (spread.median,) if spread.low is None else (spread.low, spread.high)
        verdicts = {self._keeps(end) for end in ends if end is not None}
        return "not clear" if len(verdicts) > 1 else "yes" if True in verdicts else "no"

    def _keeps(self, value: float) -> bool:
        if self.least is not None:
            return value >= self.least
        return self.most is not None and value <= self.most


def faster(work: str, program: str, least: float) -> Claim:
    """A program's seconds over ours."""
    return Claim(
        text=f"{work}: times as fast as {table.title(program)}",
        numbers=lambda rows: table.ratios(table.of_work(rows, work), program, "ours"),
        least=least,
    )


def memory(work: str, program: str, most: float) -> Claim:
    """Our peak memory over a program's."""
    return Claim(
        text=f"{work}: peak memory over {table.title(program)}'s",
        numbers=lambda rows: table.ratios(table.of_work(rows, work), "ours", program, "peak_bytes"),
        most=most,
    )


def share(work: str, least: float) -> Claim:
    """The time of a work's products alone over all of its time."""

    def shares(rows: Sequence[Row]) -> list[float]:
        members = [row for row in table.of_work(rows, work) if row["program"] == "ours"]
        return [row["limit"] / row["seconds"] for row in members if "limit" in row]

    return Claim(text=f"{work}: share of the limit", numbers=shares, least=least)


def over(text: str, work: str, program: str, other: str, most: float) -> Claim:
    """A program's seconds over another's."""
    return Claim(
        text=f"{work}: {text}",
        numbers=lambda rows: table.ratios(table.of_work(rows, work), program, other),
        most=most,
    )


def _started(state: str, most: float) -> Claim:
    """Seconds from the start of a process to its first step."""

    def seconds(rows: Sequence[Row]) -> list[float]:
        members = [row for row in table.of_work(rows, "start") if row["program"] == "ours"]
        return [row[state] for row in members]

    return Claim(text=f"start: seconds to the first step, {state}", numbers=seconds, most=most)


def seconds_grow(rows: Sequence[Row]) -> list[float]:
    """Median time of a step in the second half of the first 2,000, over that in the first half."""
    log = table.of_work(rows, "training")
    laps = [
        (new["step"], (new["seconds"] - old["seconds"]) / (new["step"] - old["step"]))
        for old, new in zip(log, log[1:], strict=False)
        if _FIRST <= old["step"] and new["step"] <= _STEPS
    ]
    halves = [
        [seconds for step, seconds in laps if (step > _STEPS // 2) == late]
        for late in (False, True)
    ]
    if not all(halves):
        return []
    first, second = map(results.median, halves)
    return [second / first]


def memory_grows(rows: Sequence[Row]) -> list[float]:
    """Memory held at the end of training, before the last evaluation, over that at step 1,000."""
    log = [row for row in table.of_work(rows, "training") if row["held_bytes"]][:-1]
    settled = [row["held_bytes"] for row in log if row["step"] >= _SETTLED]
    return [settled[-1] / settled[0]] if settled else []


def rate(row: Row) -> float:
    """Tokens a second of a turn."""
    return row["tokens"] / (row["seconds"] * row["calls"])


def _tokens(rows: Sequence[Row]) -> list[float]:
    rates = [{**row, "rate": rate(row)} for row in table.of_work(rows, "epoch")]
    return table.ratios(rates, "ours", "flax", "rate")


def _full(rows: Sequence[Row]) -> list[float]:
    return [row["tokens"] / row["slots"] for row in table.of_work(rows, "pipeline")]


def _ahead(rows: Sequence[Row]) -> list[float]:
    """Tokens a second that the pipeline delivers, over those that training takes."""
    training = [rate(row) for row in table.of_work(rows, "epoch") if row["program"] == "ours"]
    pipeline = [rate(row) for row in table.of_work(rows, "pipeline")]
    return [each / results.median(training) for each in pipeline] if training else []


CLAIMS = (
    faster("step_small", "torch", 1.3),
    faster("step_small", "flax", 1.5),
    share("step_small", 0.5),
    faster("step_base", "torch", 1.25),
    faster("step_base", "flax", 1.25),
    share("step_base", 0.6),
    memory("step_base", "torch_compiled", 1),
    faster("step_base_bfloat16", "ours_float32", 1.7),
    faster("step_decoder", "nanogpt", 1.3),
    memory("step_decoder", "nanogpt", 1.2),
    *(
        faster(f"step_{size}", program, 1.5)
        for size in ("xs", "s", "m")
        for program in ("nanogpt", "nanogpt_fused")
    ),
    faster("beam", "hugging_face", 4),
    faster("beam", "flax", 3),
    faster("greedy", "hugging_face", 4),
    faster("greedy_decoder", "hugging_face", 4),
    faster("sample_decoder", "hugging_face", 4),
    over("60 layers over 6", "compile", "ours_60_layers", "ours", 1.3),
    _started("cold", 8),
    over("over importing alone", "generate", "generate", "importing alone", 1.3),
    over("in one process over a process each", "sweep", "one process", "a process each", 0.5),
    Claim(text="training: time of a step, 2nd over 1st 1,000", numbers=seconds_grow, most=1.05),
    Claim(text="training: memory at the end over step 1,000", numbers=memory_grows, most=1.02),
    Claim(text="epoch: real tokens a second over google/flax wmt's", numbers=_tokens, least=1.5),
    Claim(text="pipeline: share of places that hold a token", numbers=_full, least=0.95),
    Claim(text="pipeline: tokens delivered over tokens trained on", numbers=_ahead, least=10),
)


def medians(rows: Sequence[Row]) -> dict[Claim, float]:
    """The median of each claim that these rows can say something about."""
    return {claim: results.median(values) for claim, values in _values(rows)}


def lines(rows: Sequence[Row]) -> list[Row]:
    """Their lines of a table."""
    return [
        {
            "claim": claim.text,
            "asked": claim.bound,
            "found": results.median_interval(values, ".2f"),
            "holds": claim.holds(values),
        }
        for claim, values in _values(rows)
    ]


def _values(rows: Sequence[Row]) -> list[tuple[Claim, list[float]]]:
    each = [(claim, claim.numbers(rows)) for claim in CLAIMS]
    return [(claim, values) for claim, values in each if values]
