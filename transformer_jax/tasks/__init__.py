"""The tasks: a file each, with everything about it. This table is the list of them."""

from transformer_jax.tasks import (
    causal_lm,
    classification,
    detection,
    image_classification,
    masked_lm,
    span_corruption,
    tagging,
    text_to_text,
    translation,
)
from transformer_jax.tasks.task import Task

_ALL = (translation, masked_lm, causal_lm, classification, tagging, text_to_text, span_corruption)
_ALL += (image_classification, detection)
# The first task that fits an architecture is the architecture's own.
TASKS: dict[str, Task] = {module.TASK.recipe.name: module.TASK for module in _ALL}


def choose(name: str | None, architecture: str) -> Task:
    """The task of this name, which fits the architecture; without a name the architecture's own.

    Raises:
      ValueError: it does not fit.
    """
    fitting = [name for name, task in TASKS.items() if architecture in task.heads]
    if name is None:
        return TASKS[fitting[0]]
    if name not in fitting:
        others = " or ".join(map(repr, TASKS[name].heads))
        raise ValueError(
            f"task.name={name!r} does not fit model.architecture={architecture!r}, which does "
            f"{', '.join(fitting)}: set the architecture to {others}, or the task to None for the "
            "architecture's own"
        )
    return TASKS[name]
