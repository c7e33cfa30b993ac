"""The arrays of a checkpoint, FOLDER/state/: pytrees saved and loaded. The only importer of Orbax.

Stored are nested dicts with plain keys, such as params/decoder/self_attention/query, free of the
classes of Flax and Optax. Random keys are stored as their uint32 words. All hosts of a job save and
load together; each writes and reads what its own devices hold.
"""

import contextlib
import logging as python_logging
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from jaxtyping import Float, PyTree

from transformer_jax.process import hosts

STATE = "state"


def _show_unless_late(unraisable: Any, show: Callable[[Any], None] = sys.unraisablehook) -> None:
    # The default is bound here: as the interpreter ends, a module's own names are gone.
    if str(unraisable.exc_value) != "Event loop is closed":
        show(unraisable)


# A full disk fails many writes at once. Orbax raises one of the errors. No traceback of the others,
# some of which come late, may follow: Orbax and asyncio log them, and TensorStore prints them:
# it finds the event loop closed.
logging.get_absl_logger().addFilter(
    lambda record: record.levelname != "ERROR" or "orbax" not in Path(record.pathname).parts
)
python_logging.getLogger("asyncio").addFilter(
    lambda record: "exception was never retrieved" not in record.getMessage()
)
warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
sys.unraisablehook = _show_unless_late


def save(folder: Path, tree: PyTree) -> Callable[[], None]:
    """Copies a tree's arrays off the devices, then writes them in the background.

    Returns a function, to be called once, that returns when all hosts have written their part.
    """
    writer = ocp.AsyncCheckpointer(_handler(), multiprocessing_options=_all_hosts())
    writer.save(folder.absolute() / STATE, ocp.args.PyTreeSave(_nested(_keys_to_data(tree))))

    def finish() -> None:
        with contextlib.closing(writer):
            writer.wait_until_finished()

    return finish


def saved(folder: Path) -> dict[str, Any]:
    """The nested dict that a checkpoint holds, with shapes and dtypes for arrays."""
    with ocp.Checkpointer(_handler()) as reader:
        return reader.metadata(folder.absolute() / STATE).item_metadata.tree


def load(folder: Path, abstract: PyTree, dtype: str | None = None) -> PyTree:
    """The leaves of `abstract`, all of which must be saved, in its structure and shardings.

    A leaf without a sharding goes to the default device.

    dtype: what each is rounded to as it is read; None: those that were saved.
    """
    item, target = _nested(_stored(abstract)), None if dtype is None else jnp.dtype(dtype)
    arguments = ocp.args.PyTreeRestore(
        item=item,
        restore_args=jax.tree.map(
            lambda leaf: ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=target), item
        ),
        partial_restore=True,
    )
    with ocp.Checkpointer(_handler(), multiprocessing_options=_all_hosts()) as reader:
        arrays = flat(reader.restore(folder.absolute() / STATE, arguments))
    return map_paths(lambda path, leaf: _as_key(arrays[path], leaf), abstract)


def check_match(folder: Path, tree: PyTree, abstract: PyTree) -> None:
    """Raises ValueError, with paths, where shapes, dtypes or structure of the two trees differ.

    tree: what `saved` says that the checkpoint `folder` holds, or a part of that.
    """

    def describe(leaf: Any) -> str:
        return "nothing" if leaf is None else f"{tuple(leaf.shape)} {np.dtype(leaf.dtype)}"

    differences = []
    there, leaves = flat(tree), flat(_stored(abstract))
    for path in sorted(there.keys() | leaves.keys()):
        actual, wanted = describe(there.get(path)), describe(leaves.get(path))
        if actual != wanted:
            differences.append(f"{path}: saved {actual}, expected {wanted}")
    if differences:
        more = f"\n  and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise ValueError(
            f"the checkpoint {folder} does not fit the model and optimizer of this config, or is "
            "of another version of this code:\n  " + "\n  ".join(differences[:8]) + more
        )


def mean(trees: Iterable[PyTree], abstract: PyTree, dtype: str | None = None) -> PyTree:
    """The mean of each leaf over the trees, computed in float64.

    It has the shardings of `abstract`, and so has each tree, and its dtypes, or else this one.
    """
    count, total = 0, None
    for tree in trees:
        pieces = jax.tree.map(_pieces, tree)
        total = pieces if total is None else jax.tree.map(np.add, total, pieces)
        count += 1

    def divide(leaf: Any, pieces: dict[str, Float[np.ndarray, "..."]]) -> jax.Array:
        def piece(index: Any) -> np.ndarray:
            return (pieces[str(index)] / count).astype(dtype or leaf.dtype)

        return jax.make_array_from_callback(leaf.shape, _sharding(leaf), piece)

    return jax.tree.map(divide, abstract, total)


def flat(tree: PyTree) -> dict[str, Any]:
    """Leaves by path, such as params/decoder/self_attention/query."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def map_paths(f: Callable[[str, Any], Any], tree: PyTree) -> PyTree:
    """The tree with f(path, leaf) in place of every leaf; paths are those of `flat`."""
    return jax.tree.unflatten(
        jax.tree.structure(tree), [f(path, leaf) for path, leaf in flat(tree).items()]
    )


def _handler() -> ocp.PyTreeCheckpointHandler:
    # Numbers of a model hardly get smaller by compression, which takes six times as long and as
    # much memory again as they have.
    return ocp.PyTreeCheckpointHandler(multiprocessing_options=_all_hosts(), use_compression=False)


def _all_hosts() -> ocp.options.MultiprocessingOptions:
    # Hosts that are named meet at barriers of the coordination service. Otherwise they would meet
    # in a computation on the devices, from the background and so in any order with training's.
    return ocp.options.MultiprocessingOptions(active_processes=set(range(hosts.count())))


def _nested(tree: PyTree) -> dict[str, Any]:
    """The same leaves in dicts with plain keys."""
    return ocp.tree.from_flat_dict(flat(tree), sep="/")


def _stored(abstract: PyTree) -> PyTree:
    """What is stored for each leaf: shape, dtype and sharding, for a random key of its words."""

    def stored(leaf: Any) -> jax.ShapeDtypeStruct:
        words = jax.eval_shape(_keys_to_data, leaf)
        return jax.ShapeDtypeStruct(words.shape, words.dtype, sharding=_sharding(leaf))

    return jax.tree.map(stored, abstract)


def _sharding(leaf: Any) -> jax.sharding.Sharding:
    return leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _pieces(array: jax.Array) -> dict[str, Float[np.ndarray, "..."]]:
    """The shards of an array that this host's devices hold, by their place, each once."""
    return {str(s.index): np.asarray(s.data, np.float64) for s in array.addressable_shards}


def _keys_to_data(tree: PyTree) -> PyTree:
    """The tree with typed random keys as their uint32 words."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)


def _as_key(array: jax.Array, leaf: Any) -> jax.Array:
    """The array, or the random key of these words where `leaf` is a key."""
    if not _is_key(leaf):
        return array
    implementation = jax.random.key_impl(jnp.empty((), leaf.dtype))
    return jax.random.wrap_key_data(array, impl=implementation)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
