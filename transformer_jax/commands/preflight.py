"""Shows what a run needs of devices that need not be there."""

from pathlib import Path
from typing import Any

from configs.default import Config
from transformer_jax import overrides
from transformer_jax.build import build
from transformer_jax.preflight import report
from transformer_jax.run import Run


def preflight(config: Config, workdir: Path | None, search: bool) -> int:
    """Prints what the run needs of the devices of mesh.topology, without having or using them.

    search: instead which meshes and remat policies fit, fastest first.
    """
    target = report.target(config.mesh.topology)

    def make(changes: dict[str, Any]) -> Run:
        return build(overrides.replace(config, changes), workdir, target.devices)

    for text in (report.search if search else report.report)(make, target):
        print(text, flush=True)
    return 0
