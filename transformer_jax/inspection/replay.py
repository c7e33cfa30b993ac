"""Steps of a run again, in float32, and which tensor of a bad one stopped being finite first."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from transformer_jax.devices import hosts
from transformer_jax.devices.mesh import Streams, place
from transformer_jax.models.transformer.schemes import Kind, Stack, depth, stacks
from transformer_jax.models.transformer.shapes import Model
from transformer_jax.run import Params, Run
from transformer_jax.training.losses import Batch, Loss
from transformer_jax.training.state import State
from transformer_jax.training.step import TrainSettings, micro_batches

Named = tuple[str, np.ndarray]


class BadStep(NamedTuple):
    """The first step whose loss, gradient norm or new parameters are not finite.

    `tensor` is what `first_non_finite` finds, None where the step's parts, each on its own, do not
    repeat what their compilation as one step did.
    """

    step: int
    loss: float
    gradient_norm: float
    tensor: str | None


def replay(run: Run, state: State, streams: Streams, step: int) -> BadStep | None:
    """Trains in float32 from `state` to `step`, or to the first bad step before it.

    Batches and dropout are those of the run; `streams` must stand where `state` left them. Returns
    None where everything stays finite. The state passed in is gone after the call.
    """
    model = run.model.clone(config=dataclasses.replace(run.model.config, dtype="float32"))

    def apply(params, batch, rng) -> Any:
        return model.apply({"params": params}, batch, deterministic=False, rngs={"dropout": rng})

    train_step = run.train_step(apply)
    # Products of GPUs and TPUs are of lower precision otherwise.
    with jax.default_matmul_precision("highest"):
        while int(state.step) < step:
            batch = place(run.mesh, next(streams))
            before = jax.tree.map(jnp.copy, state)  # the step takes its state
            state, metrics = train_step(state, batch)
            loss, gradient_norm = float(metrics["loss"]), float(metrics["gradient_norm"])
            if not (math.isfinite(loss + gradient_norm) and metrics["finite_parameters"]):
                parts = tensors(model, run.loss, run.optimizer, run.train, before, batch)
                return BadStep(int(state.step), loss, gradient_norm, first_non_finite(parts))
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

    They are the parameters; of each micro-batch in turn those of `_in_order`; and then the mean
    loss, the mean gradient, its norm, the updates and the new parameters. Nothing is computed
    before it is asked for, which all hosts have to do alike.
    """
    yield from _by_path("parameter", state.params)

    count = settings.accumulation_steps
    parts, keys = micro_batches(batch, state.dropout_key, count)
    sums = []
    for number in range(count):
        part = jax.tree.map(lambda rows, number=number: rows[number], parts)
        observed, loss_sum, weight, gradient = _examine(
            *(model, loss, state.params, part, keys[number])
        )
        sums.append((loss_sum, weight, gradient))
        where = f"micro-batch {number + 1} of {count}: " if count > 1 else ""
        shown = hosts.whole((observed, loss_sum, gradient))
        yield from ((where + name, tensor) for name, tensor in _in_order(model, *shown))

    loss_sum, weight, gradient = jax.tree.map(lambda *parts: sum(parts), *sums)
    yield "mean loss", hosts.whole(loss_sum / weight)
    gradient = jax.tree.map(lambda total: total / weight, gradient)
    yield from _by_path("mean gradient of parameter", gradient)
    yield "gradient norm", hosts.whole(optax.tree.norm(gradient))
    updates, _ = jax.jit(optimizer.update)(gradient, state.opt_state, state.params)
    yield from _by_path("update of parameter", updates)
    yield from _by_path("new parameter", optax.apply_updates(state.params, updates))


@functools.partial(jax.jit, static_argnames=("model", "loss"))
def _examine(model: Model, loss: Loss, params: Params, batch: Batch, key: Key[Array, ""]):
    """(what the sublayers show, logits, gradients of the sublayers' outputs), the loss, its weight
    and the gradient of the parameters, of a micro-batch; sums over tokens."""
    apply = functools.partial(model.apply, deterministic=False, rngs={"dropout": key})

    def summed(params, perturbations) -> Any:
        variables = {"params": params, "perturbations": perturbations}
        outputs, shown = apply(variables, batch, mutable=["intermediates"])
        loss_sum, weight, _ = loss(outputs, batch)
        return loss_sum, (weight, shown["intermediates"], outputs)

    def no_perturbations(params) -> Any:
        _, variables = apply({"params": params}, batch, mutable=["perturbations"])
        return variables["perturbations"]

    shapes = jax.eval_shape(no_perturbations, params)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    differentiate = jax.value_and_grad(summed, argnums=(0, 1), has_aux=True)
    (loss_sum, (weight, shown, logits)), (gradient, of_outputs) = differentiate(params, zeros)
    return (shown, logits, of_outputs), loss_sum, weight, gradient


def _in_order(model: Model, observed: tuple, loss_sum: Any, gradient: Params) -> Iterator[Named]:
    """The tensors of a micro-batch, on the host; layers count from 1.

    Of each sublayer its input, the largest attention logit of each query, what its branch adds, and
    its output; of each stack what leaves it; the logits; the loss; the gradients with respect to
    the sublayers' outputs, from the top down; those of the parameters.
    """
    shown, logits, of_outputs = observed
    for stack in stacks(model.config):
        for layer, kind in _sublayers(model, stack):
            name, attention = f"{stack}/layer {layer + 1}/{kind}", shown[stack].get(kind)
            sublayer = shown[stack][f"{kind}_residual"]
            yield f"{name}/input", sublayer["input"][layer]
            if attention:
                yield f"{name}/largest attention logits", attention["largest_logit"][layer]
            yield f"{name}/branch", sublayer["branch"][layer]
            yield f"{name}/output", sublayer["output"][layer]
        yield f"{stack}/output", shown[f"{stack}_output"]
    yield "logits", logits
    yield "loss", loss_sum
    for stack in reversed(stacks(model.config)):
        for layer, kind in reversed(_sublayers(model, stack)):
            gradients = of_outputs[stack][f"{kind}_residual"]["output"]
            yield f"gradient of {stack}/layer {layer + 1}/{kind}/output", gradients[layer]
    yield from _by_path("gradient of parameter", gradient)


def _sublayers(model: Model, stack: Stack) -> list[tuple[int, Kind]]:
    """Layer and kind of a stack's sublayers, in the order in which they run."""
    at = depth(model.config, stack)
    return [(layer, kind) for layer in range(at.layers) for kind in at.kinds]


def _by_path(what: str, tree: Any) -> Iterator[Named]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        yield f"{what} {name}", hosts.whole(leaf)
