"""What measures share: batches and parameters that are drawn, steps, trained parameters, losses."""

import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from transformer_jax.checkpoint.checkpoints import load_parameters, whole
from transformer_jax.data.prepare import recipe
from transformer_jax.inspection import losses
from transformer_jax.inspection.kernels import is_kernel
from transformer_jax.models import family
from transformer_jax.models.family import Batch, Model, Params
from transformer_jax.models.transformer.initialisation import initialise
from transformer_jax.run import Run
from transformer_jax.runs.workdir import CHECKPOINTS
from transformer_jax.training.state import StateMaker

# Compiler options where most of the time is compilation, which this halves; programs run as fast.
QUICKLY = {"xla_backend_optimization_level": 1}
# Factors on query, key and value, for Xavier's draw of each; of the three as one matrix (fairseq).
EACH, FUSED = 1.0, 0.5**0.5


def draw(run: Run, key: Key[Array, ""], batch: Batch, model: Model | None = None) -> Params:
    """The parameters that a training run would begin with. model: another than the run's."""
    init = run.init if model is None else functools.partial(initialise, model)
    states = StateMaker(init, run.transform, metrics=(), ema=False, mesh=run.mesh)
    return states.create(key, batch).params


def trained(run: Run, workdir: Path) -> Params | None:
    """The parameters after the last step; None where training became non-finite before it."""
    folder = workdir / CHECKPOINTS / str(run.train.steps)
    if not folder.exists():
        return None
    return load_parameters([whole(folder)], run.abstract_state.params)


def mean_loss(run: Run, model: Model, params: Params, batch: Batch) -> Float[Array, ""]:
    """The run's loss without dropout, nats a target."""
    return losses.mean_loss(model, run.loss, params, batch)


def roles(model: Model, batch: Batch) -> dict[str, family.Role]:
    """What each parameter of a model is, by its path; nothing is computed."""
    init = functools.partial(initialise, model)
    return family.roles(jax.eval_shape(init, jax.random.key(0), batch))


def random_sign_step(
    key: Key[Array, ""], params: Params, size: float, roles: Mapping[str, family.Role]
) -> Params:
    """W + size * sign(N(0, 1)) for all kernels (see `inspection.kernels`).

    Every kernel has a key by its path, so that two schemes draw alike for kernels that they share.
    """

    def moved(path, leaf):
        name = family.parameter_name(path)
        if not is_kernel(roles[name]):
            return leaf
        kernel_key = jax.random.fold_in(key, np.uint32(zlib.crc32(name.encode())))
        return leaf + size * jax.random.rademacher(kernel_key, leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map_with_path(moved, params)


def gradient_sign_step(
    gradient: Params, params: Params, size: float, roles: Mapping[str, family.Role]
) -> Params:
    """W - size * sign(gradient) for all kernels: a step like Adam's."""

    def moved(path, leaf, gradient):
        kernel = is_kernel(roles[family.parameter_name(path)])
        return leaf - size * jnp.sign(gradient) if kernel else leaf

    return jax.tree_util.tree_map_with_path(moved, params, gradient)


def scale_attention(params: Params, gain: float | Float[Array, ""]) -> Params:
    """The parameters with this factor on all kernels that make queries, keys and values."""

    def scaled(path, leaf):
        return gain * leaf if path[-1].key in ("query", "key", "value") else leaf

    return jax.tree_util.tree_map_with_path(scaled, params)


def joined(batches: Sequence[recipe.Batch]) -> dict[str, Shaped[np.ndarray, "N *shape"]]:
    """The columns of all rows of some batches."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def epochs(
    rows: Mapping[str, Shaped[np.ndarray, "N *shape"]], size: int, seed: int
) -> Iterator[recipe.Batch]:
    """Batches without end, at no cost: each row once an epoch at most, in an order drawn anew; what
    fills no batch is left out."""
    count = len(next(iter(rows.values())))
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(count)[: count // size * size]
        for places in order.reshape(-1, size):
            yield {name: column[places] for name, column in rows.items()}


def random_batch(key: Key[Array, ""], vocab_size: int, rows: int, length: int) -> Batch:
    """Random tokens as inputs and targets, (rows, length), one text a row; a 0 would be no target.

    An encoder alone reads the targets at each of its tokens.
    """
    size = (rows, length)
    batch = {}
    for side, side_key in zip(("inputs", "targets"), jax.random.split(key), strict=True):
        batch[side] = jax.random.randint(side_key, size, 1, vocab_size)
        batch[f"{side}_segment_ids"] = jnp.ones(size, jnp.int32)
        batch[f"{side}_positions"] = jnp.broadcast_to(jnp.arange(length)[None], size)
    return batch
