"""What observes training: the type, and when one is due. `inspection.probes` has the table."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from transformer_jax.models.family import Batch, Params
from transformer_jax.training.state import State


class Observation(NamedTuple):
    """A step's batch, the state after it, and the parameters before it.

    These are None where no probe that is due needs them.
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
      measure: numbers, vectors or texts by name. All hosts call it alike.
      needs_before: whether it reads `Observation.before`, a copy of the parameters.
      last: a step at which it is due in any case (0: none).
    """

    name: str
    every: int
    measure: Callable[[Observation], dict[str, Any]]
    needs_before: bool = False
    last: int = 0

    def due(self, step: int) -> bool:
        """Whether it measures after this step, counted from 1."""
        return step == self.last or is_due(step, self.every)


def is_due(step: int, every: int) -> bool:
    """Whether a step, counted from 1, is one of every so many (0: none)."""
    return every > 0 and step % every == 0
