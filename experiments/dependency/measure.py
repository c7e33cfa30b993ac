"""The dependencies beta_ij of drawn parameters, and of those that training has left."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.inspection.dependency import post_norm, skips_and_norms
from transformer_jax.inspection.observed import Observed, observe, variances
from transformer_jax.models.family import Batch, Params
from transformer_jax.models.transformer.config import TransformerConfig, depth, scheme, stacks
from transformer_jax.models.transformer.residual import variance
from transformer_jax.models.transformer.schemes import Stack
from transformer_jax.run import Run


def measure(
    config: Config, workdir: Path, *, draws: int, gains: Sequence[float]
) -> list[dict[str, Any]]:
    """A row for each sublayer i: beta_ij in the column "a{j}".

    At the moment "initial", for each draw and each factor on its queries, keys and values; and
    "trained", where there is a checkpoint. The training run begins with the first draw.
    """
    run = build.build(config, workdir)
    batch = _random_batch(run) if config.model.vocab_size else _first_batch(run)

    @jax.jit
    def draw_one(key):
        return lab.draw(run, key, batch)

    @jax.jit
    def betas(params):
        (stack,) = stacks(run.model.config)
        _, observed = observe(run.model, params, batch)
        return dependency(run.model.config, params, stack, observed[stack])

    rows = []
    for draw in range(draws):
        params = draw_one(jax.random.key(run.seed + draw))
        for gain in gains:
            labels = {"moment": "initial", "draw": draw, "gain": gain}
            rows += _rows(labels, betas(lab.scale_attention(params, gain)))
    params = lab.trained(run, workdir)
    if params is not None:
        labels = {"moment": "trained", "draw": 0, "gain": 1.0}
        rows += _rows(labels, betas(params))
    return rows


def dependency(
    config: TransformerConfig, params: Params, stack: Stack, activations: Observed
) -> Float[Array, "n n+1"]:
    """beta_ij = std of component j / std of x_i, over all entries of real tokens.

    Row i - 1 holds beta_ij for j = 0 .. n; 0 for j > i. Squares of a row sum to 1 where the
    components are uncorrelated, which they are nearly.

    In ResiDual this follows the stream x, not the sum of branches next to it. Time and memory grow
    with n^2 and n; where the diagonal is enough, `own_dependency` is cheap.

    Raises:
      ValueError: POST does not divide (`divides`), or layers read the stack's input again.
    """
    row, at = scheme(config, stack), depth(config, stack)
    if row.stream or row.input:
        name = f"model.{stack}_residual={getattr(config, f'{stack}_residual')!r}"
        raise ValueError(f"{name} mixes the stack's input into each layer, which no component is")
    n, kinds = at.sublayers, len(at.kinds)

    def layer(parts, leaves):
        bottom, betas = parts, []
        for index in range(kinds):
            number, branch, sublayer = jax.tree.map(lambda leaf, at=index: leaf[at], leaves)
            parts = sublayer.skip[None, None, None] * parts
            if row.layer_shortcut and index == kinds - 1:
                parts = parts + bottom
            parts = parts.at[number].add(branch)
            if row.post_norm:
                whole = jnp.sum(parts, axis=0, keepdims=True)
                parts = post_norm(config, sublayer, parts, whole)
                bias = jnp.where(sublayer.normed, sublayer.bias, 0.0)
                parts = parts.at[-1].add(bias[None, None])
            whole = variance(jnp.sum(parts, axis=0), activations.real)
            betas.append(jnp.sqrt(variances(parts[:-1], activations.real) / whole))
        return parts, jnp.stack(betas)

    sublayers = (jnp.arange(1, n + 1), activations.branches, skips_and_norms(config, params, stack))
    layers = jax.tree.map(lambda leaf: leaf.reshape(-1, kinds, *leaf.shape[1:]), sublayers)
    # a_0 .. a_n, and what the norms' biases add
    start = jnp.zeros((n + 2, *activations.inputs.shape[1:])).at[0].set(activations.inputs[0])
    _, betas = jax.lax.scan(layer, start, layers)
    return betas.reshape(n, n + 1)


def _rows(labels: dict[str, Any], beta: Float[Array, "n n+1"]) -> Iterator[dict[str, Any]]:
    for number, betas in enumerate(np.asarray(beta), start=1):
        components = {f"a{j}": float(value) for j, value in enumerate(betas[: number + 1])}
        yield {**labels, "sublayer": number, **components}


def _first_batch(run: Run) -> Batch:
    """The batch that training begins with."""
    return jax.device_put(next(run.data.train_streams()))


def _random_batch(run: Run) -> Batch:
    """Random tokens, one text a row, in the shapes of a training batch."""
    shape, _ = run.data.batch_shapes()["inputs"]
    tokens = jax.random.randint(jax.random.key(run.seed), shape, 0, run.model.config.vocab_size)
    positions = jnp.broadcast_to(jnp.arange(shape[1])[None], shape)
    ones = jnp.ones(shape, jnp.int32)
    return {"inputs": tokens, "inputs_segment_ids": ones, "inputs_positions": positions}
