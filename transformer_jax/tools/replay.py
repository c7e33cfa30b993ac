"""Repeats steps of a run in float32, and finds the first tensor of a bad one that is not finite."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from transformer_jax.commands.opening import lock, save
from transformer_jax.commands.restore import check
from transformer_jax.commands.start import begin, start
from transformer_jax.config.build import built
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import Streams, place
from transformer_jax.inspection import memory
from transformer_jax.inspection.observed import (
    Observed,
    no_perturbations,
    observe,
    output_gradients,
    sublayers,
)
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import Batch, Model, Params, parameter_name, with_memory
from transformer_jax.models.transformer.config import TransformerConfig, stacks
from transformer_jax.models.transformer.schemes import Kind, Stack
from transformer_jax.process import hosts, progress
from transformer_jax.run import Run
from transformer_jax.runs.workdir import CONFIG, REPLAY, is_writable, read_fork
from transformer_jax.training.losses import Loss
from transformer_jax.training.state import State
from transformer_jax.training.step import TrainSettings, is_finite, micro_batches

# A tensor under its name
Named = tuple[str, Array | np.ndarray]


class BadStep(NamedTuple):
    """The first step whose loss, gradient norm or new parameters are not finite.

    `tensor` is what `first_non_finite` finds. It is None where the step's parts are finite when
    each is computed on its own, but the step compiled as one is not.
    """

    step: int
    loss: float
    gradient_norm: float
    tensor: str | None


def replay(config: Config, workdir: Path, step: int | None) -> int:
    """Trains again up to a step, in float32, and names what became non-finite first.

    Starts from the last checkpoint before the step, or where there is none from the beginning.
    What it finds is kept in replay.json, if the work directory can be written.
    """
    if not (workdir / CONFIG).exists():
        raise FileNotFoundError(f"there is no run in {workdir} to replay: train there first")
    if not FAMILIES[config.model.family].inspected:
        raise ValueError(
            "replay names sublayers of a Transformer, which a model of model.family="
            f"{config.model.family!r} does not have; metrics.jsonl has its gradient norms"
        )
    if writable := hosts.first(lambda: is_writable(workdir)):
        lock(workdir)
    with built(config, workdir) as run:
        if step is None or not 1 <= step <= run.train.steps:
            raise ValueError(f"replay needs a --step=N of 1 to {run.train.steps}, got {step}")
        memory.check(run, memory.replay(run))
        checkpoints = run.checkpoints(workdir)
        before = [saved for saved in checkpoints.steps() if saved < step]
        newest = checkpoints.find(before[-1]) if before else None
        if newest is None and (trunk := read_fork(workdir)):
            raise FileNotFoundError(
                f"this run is a fork, of step {trunk['step']} of {trunk['run']}, and has no "
                f"checkpoint before step {step}: give a later --step, or fork anew elsewhere"
            )
        if newest is not None:
            check(run, workdir, newest)
        streams = run.train_streams()
        if newest is not None:
            state = start(run, workdir, newest, streams, bad=step)
        else:
            state = begin(run, streams, workdir, keep=False)
        print(f"Replaying from step {int(state.step)} to {step} in float32.")
        finding = _finding(run, train_again(run, state, streams, step))
        print(finding)
        if writable:
            save(workdir / REPLAY, json.dumps({"step": step, "found": finding}, indent=1) + "\n")
        return 0


def _finding(run: Run, bad: BadStep | None) -> str:
    if bad is None:
        return (
            "Everything is finite. If training was not, at these steps, then it ran on another "
            f"machine or version, or range or rounding of {run.model.config.dtype} is to blame."
        )
    tensor = bad.tensor or "none, when its parts are computed one by one"
    return (
        f"Step {bad.step} is bad: loss {bad.loss}, gradient norm {bad.gradient_norm}.\n"
        f"Its first tensor that is not finite: {tensor}"
    )


def train_again(run: Run, state: State, streams: Streams, step: int) -> BadStep | None:
    """Trains in float32 from `state` to `step`, or to the first bad step before it.

    Batches and dropout are the run's own; `streams` must stand where `state` left them. Returns
    None where everything stays finite. The state passed in is gone after the call.
    """
    model = run.model.clone(config=dataclasses.replace(run.model.config, dtype="float32"))
    steps = step - int(state.step)
    # By default GPUs and TPUs multiply in lower precision.
    with jax.default_matmul_precision("highest"):
        train_step = memory.compiled_step(
            run, run.train_step(functools.partial(with_memory, model))
        )
        with progress.bar("Training again", total=steps, unit="steps") as advance:
            for _ in range(steps):
                batch = place(run.mesh, next(streams))
                before = jax.tree.map(jnp.copy, state)  # the step takes its state
                state, metrics = train_step(state, batch)
                if not is_finite(metrics):
                    loss, gradient_norm = float(metrics["loss"]), float(metrics["gradient_norm"])
                    parts = tensors(model, run.loss, run.transform, run.train, before, batch)
                    return BadStep(int(state.step), loss, gradient_norm, first_non_finite(parts))
                advance(1)
    return None


def first_non_finite(tensors: Iterable[Named]) -> str | None:
    """The name of the first tensor with a value that is not finite, and how many it has."""
    for name, tensor in tensors:
        if bad := int(np.sum(~np.isfinite(tensor))):
            return f"{name} ({bad:,} of {tensor.size:,} values)"
    return None


def tensors(
    model: Model,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    settings: TrainSettings,
    state: State,
    batch: Batch,
) -> Iterator[Named]:
    """The tensors of the step that follows `state`, each under its name, in order of computation.

    They are the parameters; then, for each micro-batch in turn, the tensors of `_in_order`; and
    then the mean loss, the mean gradient, its norm, the updates and the new parameters. Nothing is
    computed before it is asked for, and all hosts must ask alike.
    """
    yield from _by_path("parameter", hosts.whole(state.params))

    count = settings.accumulation_steps
    whole = loss.with_totals(batch)
    parts = micro_batches(whole, state.dropout_key, state.memory, count)
    sums = []
    for number in range(count):
        part, key, memory = jax.tree.map(lambda rows, number=number: rows[number], parts)
        passes = _examine(model, loss, state.params, part, key, memory)
        sums.append((passes.loss_sum, passes.weight, passes.gradient))
        where = f"micro-batch {number + 1} of {count}: " if count > 1 else ""
        for name, tensor in _in_order(model.config, hosts.whole(passes)):
            yield where + name, tensor

    loss_sum, weight, gradient = jax.tree.map(lambda *parts: sum(parts), *sums)
    yield "mean loss", hosts.whole(loss_sum / weight)
    gradient = jax.tree.map(lambda total: total / weight, gradient)
    yield from _by_path("mean gradient of parameter", hosts.whole(gradient))
    yield "gradient norm", hosts.whole(optax.tree.norm(gradient))
    updates, _ = jax.jit(optimizer.update)(gradient, state.opt_state, state.params)
    yield from _by_path("update of parameter", hosts.whole(updates))
    new = optax.apply_updates(state.params, updates)
    yield from _by_path("new parameter", hosts.whole(new))


class _Passes(NamedTuple):
    """What the passes of a micro-batch showed; the loss and its gradients are sums over tokens."""

    observed: dict[Stack, Observed]
    outputs: Any  # the model's, as arrays
    loss_sum: Float[Array, ""]
    weight: Float[Array, ""]
    output_gradients: dict[Stack, Float[Array, "n B T D"]]  # with respect to sublayers' outputs
    gradient: Params


@functools.partial(jax.jit, static_argnames=("model", "loss"))
def _examine(
    model: Model, loss: Loss, params: Params, batch: Batch, key: Key[Array, ""], memory: Any
) -> _Passes:
    def summed(params, perturbations):
        outputs, observed = observe(model, params, batch, key, perturbations, memory)
        loss_sum, weight, _ = loss(outputs, batch)
        return loss_sum, (weight, outputs.arrays(), observed)

    differentiate = jax.value_and_grad(summed, argnums=(0, 1), has_aux=True)
    (loss_sum, (weight, outputs, observed)), (gradient, perturbed) = differentiate(
        params, no_perturbations(model, params, batch)
    )
    by_stack = output_gradients(model.config, perturbed)
    return _Passes(observed, outputs, loss_sum, weight, by_stack, gradient)


def _in_order(config: TransformerConfig, passes: _Passes) -> Iterator[Named]:
    """The tensors of a micro-batch, on the host; layers count from 1.

    For each sublayer its input, the largest attention logit of each query, what its branch adds,
    and its output; for each stack what leaves it; the logits; the loss; the gradients with respect
    to the sublayers' outputs, from the top down; the gradients of the parameters.
    """
    for stack in stacks(config):
        observed = passes.observed[stack]
        for number, (layer, kind) in enumerate(sublayers(config, stack)):
            name = _name(stack, layer, kind)
            yield f"{name}/input", observed.inputs[number]
            if kind in observed.largest_logit:
                yield f"{name}/largest attention logits", observed.largest_logit[kind][layer]
            yield f"{name}/branch", observed.branches[number]
            yield f"{name}/output", observed.outputs[number]
        yield f"{stack}/output", observed.final
    yield "logits", passes.outputs
    yield "loss", passes.loss_sum
    for stack in reversed(stacks(config)):
        gradients = zip(sublayers(config, stack), passes.output_gradients[stack], strict=True)
        for at, gradient in reversed(list(gradients)):
            yield f"gradient of {_name(stack, *at)}/output", gradient
    yield from _by_path("gradient of parameter", passes.gradient)


def _name(stack: Stack, layer: int, kind: Kind) -> str:
    return f"{stack}/layer {layer + 1}/{kind}"


def _by_path(what: str, tree: Any) -> Iterator[Named]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield f"{what} {parameter_name(path)}", leaf
