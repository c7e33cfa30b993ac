"""The tasks: a file each, with everything about it. This table is the list of them."""

from transformer_jax.tasks import causal_lm, classification, masked_lm, tagging, translation
from transformer_jax.tasks.task import Task

_ALL = (translation, masked_lm, causal_lm, classification, tagging)
# The first task that fits an architecture is the architecture's own.
TASKS: dict[str, Task] = {module.TASK.recipe.name: module.TASK for module in _ALL}
