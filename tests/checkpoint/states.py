"""States, small ones, and checkpoints of them that the tests of this room share."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_jax.checkpoint import arrays
from transformer_jax.checkpoint import checkpoints as checkpoint
from transformer_jax.checkpoint.checkpoints import Checkpoints, Origin, Restored

STREAMS = {"0": {"next": 3, "buffer": [1, 2]}, "1": {"next": 4, "buffer": []}}
ORIGIN = Origin(
    config={"seed": 0, "model": {"heads": [2, 4]}},
    data="data-1",
    tokenizer="tokenizer-1",
    labels=("no", "yes"),
)


class State(NamedTuple):
    step: Any
    params: Any
    opt_state: Any
    rng: Any
    window: Any


@jax.jit
def make_state(seed: int) -> State:
    keys = jax.random.split(jax.random.key(seed), 3)
    params = {
        "decoder": {"query": jax.random.normal(keys[0], (2, 3, 4))},
        "embedding": {"table": jax.random.normal(keys[1], (5, 3), jnp.bfloat16)},
    }
    return State(
        step=jnp.asarray(seed, jnp.int32),
        params=params,
        opt_state=optax.chain(optax.clip(1.0), optax.adam(1e-3)).init(params),
        rng=keys[2],
        window={"loss": (jnp.float32(1.5), jnp.float32(2.0))},
    )


def abstract(state):
    return jax.eval_shape(lambda: state)


def bits(tree) -> list[tuple]:
    """Everything there is to know of a tree's leaves: kind, shape and bytes."""

    def describe(leaf):
        kind = str(leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return kind, leaf.shape, np.asarray(leaf).tobytes()

    return [describe(leaf) for leaf in jax.tree.leaves(tree)]


def arrays_of(folder: Path) -> dict[str, bytes]:
    """The bytes of all arrays of a checkpoint, by path."""

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    tree = arrays.load(folder, jax.tree.map(shape, arrays.saved(folder)))
    return {path: np.asarray(leaf).tobytes() for path, leaf in arrays.flat(tree).items()}


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, make_state(step), STREAMS, ORIGIN, {}, scheduled=True, records=step)


def restore(checkpoints: Checkpoints, which: Any, abstract_state) -> Restored:
    folder = checkpoints.find(which)
    assert folder is not None
    return checkpoint.restore(folder, abstract_state)


# The parameters that `save_powers` saves
POWERS = {"table": jax.ShapeDtypeStruct((2,), jnp.float32)}


def save_powers(checkpoints: Checkpoints, step: int, metrics, *, scheduled=True, averaged=False):
    """Saves 2^step alone, which takes little time and tells which steps a mean is of.

    averaged: as the moving average of parameters that are 0.
    """
    state = {"params": {"table": np.full(2, 2.0**step, np.float32)}}
    if averaged:
        state = {"params": {"table": np.zeros(2, np.float32)}, "ema_params": state["params"]}
    checkpoints.save(step, state, {}, ORIGIN, metrics, scheduled=scheduled, records=0)


def folder_with(directory: Path, *steps: int, keep_last: int = 9) -> Checkpoints:
    """Whole checkpoints of these steps, seen by a fresh process."""
    checkpoints = Checkpoints(directory, keep_last=keep_last, best_metric="")
    for step in steps:
        save(checkpoints, step)
    checkpoints.close()
    return Checkpoints(directory, keep_last=keep_last, best_metric="")


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def flip_a_bit(folder: Path) -> None:
    path = max((folder / "state").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
