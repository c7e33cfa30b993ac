"""What training logged, against what its checkpoints show once they were exported and imported."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoint.checkpoints import load_parameters, whole
from transformer_jax.config.build import built
from transformer_jax.config.load import load
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import place
from transformer_jax.inspection.measures import Step, diagnose
from transformer_jax.inspection.probes import ROWS
from transformer_jax.run import Run
from transformer_jax.runs.workdir import CHECKPOINTS, read_metrics
from transformer_jax.tools.convert import commands

_PLACE = "diagnostics/"


def measure(config: Config, workdir: Path, *, steps: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each diagnostic, step and layer: "logged" and "measured"."""
    folders, back = workdir / "revisions", workdir / "imported"
    for step in (step + more for step in steps for more in (-1, 0)):
        target = folders / f"step{step}"
        if not target.exists():
            commands.export(config, workdir, str(step), str(target))
    if not back.exists():
        commands.import_(back, str(folders), revision_folders=True)
    logged = {record["step"]: record for record in read_metrics(workdir) if "step" in record}
    rows = []
    with built(config, workdir) as trained, built(load(str(back / "config.json")), back) as run:
        batches = _batches(trained, max(steps))
        program = jax.jit(lambda *parts: diagnose(Step(run.model, run.loss, run.roles, *parts)))
        for step in steps:
            before, after = (_parameters(run, back, step + more) for more in (-1, 0))
            batch = place(run.mesh, {name: part[:ROWS] for name, part in batches[step].items()})
            for name, values in jax.device_get(program(before, after, batch)).items():
                pairs = zip(np.ravel(logged[step][_PLACE + name]), np.ravel(values), strict=True)
                rows += [
                    {"step": step, "name": name, "layer": layer, "logged": a, "measured": float(b)}
                    for layer, (a, b) in enumerate(pairs, start=1)
                ]
    return rows


def _parameters(run: Run, workdir: Path, step: int) -> Any:
    return load_parameters([whole(workdir / CHECKPOINTS / str(step))], run.abstract_state.params)


def _batches(run: Run, steps: int) -> dict[int, Any]:
    """The training's batches by the step that they made."""
    streams = run.train_streams()
    return {step: next(streams) for step in range(1, steps + 1)}
