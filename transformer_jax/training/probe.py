"""What observes training: the type, and when one is due. `inspection.probes` has the table."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.models.family import Batch, Params
from transformer_jax.training.state import State

# Steps that are listed, or the name of a list.
Steps = tuple[int | str, ...]
# What lists hold a step: 0 is the start.
LISTS: Mapping[str, Callable[[int], bool]] = {"log2": lambda step: step & (step - 1) == 0}


class Observation(NamedTuple):
    """A step's batch, the state after it, and the parameters before it.

    These are None where no probe that is due needs them. The batch is empty before the first step.
    """

    state: State
    before: Params | None
    batch: Batch


@dataclasses.dataclass(frozen=True)
class Probe:
    """A measurement that is repeated in training.

    Attributes:
      name: its values are logged as "NAME/...".
      every: steps from one measurement to the next (0: none).
      at: steps at which it is due besides; 0 is the start, unless it needs what was before.
      measure: numbers, vectors or texts by name. All hosts call it alike.
      needs_before: whether it reads `Observation.before`, a copy of the parameters.
      last: a step at which it is due in any case (0: none).
    """

    name: str
    every: int
    measure: Callable[[Observation], dict[str, Any]]
    needs_before: bool = False
    last: int = 0
    at: Steps = ()

    def due(self, step: int) -> bool:
        """Whether it measures after this step, counted from 1; 0: before the first one."""
        if step == 0:
            return is_listed(step, self.at) and not self.needs_before
        return step == self.last or is_due(step, self.every) or is_listed(step, self.at)


def is_due(step: int, every: int) -> bool:
    """Whether a step, counted from 1, is one of every so many (0: none)."""
    return every > 0 and step % every == 0


def is_listed(step: int, at: Steps) -> bool:
    """Whether a step is one of those, or in a list that they name."""
    return step in at or any(name in at and holds(step) for name, holds in LISTS.items())
