"""Shows what a run needs of devices that need not be there."""

from pathlib import Path
from typing import Any

from transformer_jax.config.build import build
from transformer_jax.config.load import replace
from transformer_jax.configs.default import Config
from transformer_jax.run import Run
from transformer_jax.tools.preflight import report


def preflight(config: Config, workdir: Path | None, search: bool, explain: bool) -> int:
    """Prints what the run needs of the devices of mesh.topology, without having or using them.

    Args:
      search: instead which meshes and remat policies fit, fastest first.
      explain: also what moves the memory.

    Raises:
      ValueError: both are asked for.
    """
    if search and explain:
        raise ValueError("--search compiles many programs and --explain one: leave one of them out")
    target = report.target(config.mesh.topology)

    def make(changes: dict[str, Any]) -> Run:
        return build(replace(config, changes), workdir, target.devices)

    texts = report.search(make, target)
    if not search:
        texts = report.report(make, target, explained=explain)
    for text in texts:
        print(text, flush=True)
    return 0
