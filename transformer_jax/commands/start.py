"""The state that training starts from: a new one, another run's parameters, or a checkpoint."""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax import progress
from transformer_jax.checkpoint.checkpoints import Checkpoints, Restored
from transformer_jax.checkpoint.init_from import InitReport, format_report, init_from
from transformer_jax.commands.files import save
from transformer_jax.data.streams import TrainStreams
from transformer_jax.devices import mesh
from transformer_jax.inspection import diagnostics
from transformer_jax.models.transformer.config import scheme, stacks
from transformer_jax.run import Params, Run
from transformer_jax.training.losses import Batch
from transformer_jax.training.state import State, split_key
from transformer_jax.workdir import INIT_FROM, PROFILE


class Beginning(NamedTuple):
    """A new state.

    drawn: its parameters before those of another run replaced some, which `report` tells. batch:
    the first one; the streams stand before it.
    """

    state: State
    drawn: Params
    report: InitReport | None
    batch: Batch


def start(run: Run, workdir: Path, checkpoints: Checkpoints, streams: TrainStreams) -> State:
    """The state of the newest checkpoint, or a new one; the streams stand where it left them."""
    with progress.phase("Restoring the last checkpoint"):
        restored = checkpoints.restore("last", run.abstract_state())
    if restored is not None:
        return continued(restored, streams)
    state, drawn, report, batch = begin(run, streams)
    if report is not None:
        print(format_report(report))
        save(workdir / INIT_FROM, json.dumps(report._asdict(), indent=1))
    config = run.model.config
    if any(scheme(config, stack).profiled for stack in stacks(config)):
        # Of the draws, with their key: so of what the omegas were measured on.
        key, _ = split_key(jax.random.key(run.seed))
        profile = diagnostics.profile(run.model, drawn, batch, key)
        save(workdir / PROFILE, json.dumps(profile, indent=1))
    return state


def begin(run: Run, streams: TrainStreams) -> Beginning:
    """A new state, with the parameters that `checkpoint.init_from` names."""
    beginning = streams.get_state()
    batch = mesh.place(run.mesh, next(streams))
    streams.set_state(beginning)
    with progress.phase("Initialising the model"):
        state = run.new_state(batch)
    if not run.checkpoint.init_from:
        return Beginning(state, state.params, None, batch)
    drawn = state.params
    label_paths = {row.path for row in run.parameter_table() if "labels" in row.axes}
    params, report = init_from(
        run.checkpoint.init_from, drawn, labels=run.data.labels, label_paths=label_paths
    )
    # A copy for the moving average: the training step donates both.
    ema_params = None if state.ema_params is None else jax.tree.map(jnp.copy, params)
    state = dataclasses.replace(state, params=params, ema_params=ema_params)
    return Beginning(state, drawn, report, batch)


def continued(restored: Restored, streams: TrainStreams) -> State:
    """The state of a checkpoint, with the streams set to where it left them.

    Raises:
      ValueError: it was trained on other data.
    """
    if restored.fingerprint != streams.fingerprint:
        raise ValueError(
            f"the checkpoint of step {restored.step} was trained on other data, or on batches that "
            f"another version of this code made: its fingerprint is {restored.fingerprint[:12]}, "
            f"that of the files and tokenizer at hand {streams.fingerprint[:12]}; restore the "
            "data, or choose another --workdir"
        )
    streams.set_state(restored.streams)
    return restored.state
