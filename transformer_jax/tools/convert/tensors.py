"""Tensors of theirs to parameters of ours and back, a layer at a time."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jaxtyping import PyTree

from transformer_jax.checkpoint import arrays
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert.family import Family, matches
from transformer_jax.tools.convert.rows import Row
from transformer_jax.tools.convert.safetensors import Tensor

_SHOWN = 4  # names in a message
# Masks and places that old files hold, and counts of batches: of any family, by glob patterns.
_EMPTY = """*.attn.bias *.attention.bias *.masked_bias *.inv_freq *.position_ids
    *.num_batches_tracked""".split()
_OLD = {".gamma": ".weight", ".beta": ".bias"}  # of norms, in checkpoints of before 2019


def named(tensors: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """The tensors by the names that the family's rows have; ValueError where one is there twice."""
    bare = not any(name.startswith(family.prefix) for name in tensors)
    by_name = {}
    for name, tensor in tensors.items():
        for old, new in _OLD.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        name = family.renamed(family.prefix + name if bare else name)
        if name in by_name:
            raise ValueError(f"{tensor.path}: {name!r} is there under an old name too: remove one")
        by_name[name] = tensor
    for name, other in family.aliases:
        if other in by_name:
            by_name.setdefault(name, by_name[other])
    return by_name


def read(
    tensors: Mapping[str, Tensor], family: Family, config: TransformerConfig, abstract: PyTree
) -> tuple[PyTree, list[str]]:
    """Our parameters, float32, each layer read and placed on its own.

    Args:
      tensors: as `named` names them.
      abstract: shapes and shardings of the parameters.

    Returns:
      The parameters, and what is to say of those that are not the checkpoint's, and of tensors that
      are not taken.

    Raises:
      ValueError: tensors are missing, left over, misshapen or contradict each other; the message
        names the first few.
    """
    rows, shapes = family.rows(config), arrays.flat(abstract)
    new = [path for path in shapes if matches(path, [family.optional])]
    optional = [row for row in rows if row.ours and row.ours[0] in new]
    if any(name in tensors for row in optional for name in row.theirs):
        new = optional = []
    rows = [row for row in rows if row not in optional]
    _check(tensors, family, rows, config, shapes)
    params = {path: _placed(_idle(path, shapes[path].shape), shapes[path].sharding) for path in new}
    for row in rows:
        for number, path in enumerate(row.ours):

            def layer(theirs: tuple[str, ...], row: Row = row, number: int = number) -> np.ndarray:
                return row.read(*(_finite(name, tensors[name]) for name in theirs))[number]

            leaf, layers = shapes[path], list(_names(row, config))
            if row.stack is None:
                params[path] = _placed(layer(layers[0]), leaf.sharding)
            else:
                ones = [lambda leaf=leaf: np.ones(leaf.shape[1:])] * row.first
                params[path] = _stacked(leaf, [*ones, *(lambda n=n: layer(n) for n in layers)])
    row_names = {name for row in rows for names in _names(row, config) for name in names}
    unread = [name for name in tensors if name not in row_names and matches(name, family.unread)]
    notes = [f"New, and without effect until trained: {', '.join(new)}."] * bool(new)
    notes += [f"Not taken, since nothing here reads it: {_some(unread)}."] * bool(unread)
    return arrays.map_paths(lambda path, _: params[path], abstract), notes


def _idle(path: str, shape: tuple[int, ...]) -> np.ndarray:
    """A new parameter that leaves what it is applied to as it is."""
    if len(shape) == 2:
        return np.eye(*shape)
    return np.full(shape, float(path.endswith("/scale")))


def _finite(name: str, tensor: Tensor) -> np.ndarray:
    values = tensor.read()
    # NumPy calls bfloat16, which is not its own, a void: V.
    if values.dtype.kind in "fV" and not np.isfinite(values).all():
        raise ValueError(f"{tensor.path}: {name!r} has values that are not finite")
    return values


def written(
    params: PyTree, family: Family, config: TransformerConfig, length: int
) -> dict[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]:
    """Their tensors, as `safetensors.write` takes them: each is made when it is asked for.

    length: the most tokens of a text. Raises ValueError for a parameter that has none there, and is
    not what it stands for.
    """
    ours = arrays.flat(params)
    fixed = family.fixed(config, length).items()
    parts: dict[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]] = {
        name: (table.shape, functools.partial(np.asarray, table)) for name, table in fixed
    }
    for row in family.rows(config):
        if not row.theirs:
            row.write(*(np.asarray(ours[path]) for path in row.ours))
            continue
        shapes = _shapes(row, ours)
        for layer, theirs in enumerate(_names(row, config), start=row.first):
            for number, name in enumerate(theirs):

                def make(row: Row = row, layer: int = layer, number: int = number) -> np.ndarray:
                    leaves = (ours[path] for path in row.ours)
                    weights = [np.asarray(x if row.stack is None else x[layer]) for x in leaves]
                    return row.write(*weights)[number]

                parts[name] = shapes[number], make
    return parts


def _check(
    tensors: Mapping[str, Tensor],
    family: Family,
    rows: Sequence[Row],
    config: TransformerConfig,
    ours: Mapping[str, Any],
) -> None:
    expected = {}
    for row in rows:
        for names in _names(row, config):
            expected |= zip(names, _shapes(row, ours), strict=True)
    missing = [name for name in expected if name not in tensors]
    known = (*_EMPTY, *family.ignored, *family.unread, *(name for name, _ in family.copies))
    extra = [name for name in tensors if name not in expected and not matches(name, known)]
    faults = [f"lacks {_some(missing)}"] * bool(missing)
    faults += [f"has {_some(extra)}, which the model does not"] * bool(extra)
    if faults:
        folder = next((f"{tensor.path.parent}: " for tensor in tensors.values()), "")
        raise ValueError(f"{folder}the checkpoint, a {family.name}, {' and '.join(faults)}")
    for copy, name in family.copies:
        is_copy = copy in tensors and copy not in expected and name in expected
        if is_copy and not np.array_equal(tensors[copy].read(), tensors[name].read()):
            raise ValueError(
                f"{tensors[copy].path}: {copy} and {name} are one tensor by config.json, but "
                "differ: remove the one that is not meant from the weights"
            )
    for name, shape in expected.items():
        # BERT's table of token types may have any number of rows.
        if tensors[name].shape != shape and not name.endswith("token_type_embeddings.weight"):
            raise ValueError(
                f"{tensors[name].path}: {name!r} has the shape {tensors[name].shape}, expected "
                f"{shape} by config.json"
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more tensors" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _names(row: Row, config: TransformerConfig) -> Iterator[tuple[str, ...]]:
    """The names of a row's tensors, for each layer."""
    layers = 1 if row.stack is None else getattr(config, f"num_{row.stack}_layers")
    for layer in range(row.first, layers):
        yield tuple(name.format(layer) for name in row.theirs)


def _shapes(row: Row, ours: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The shapes of a row's tensors of one layer, by our parameters or their shapes."""
    if not row.theirs:
        return []
    shapes = [ours[path].shape[0 if row.stack is None else 1 :] for path in row.ours]
    return [x.shape for x in row.write(*(np.broadcast_to(np.float32(0), s) for s in shapes))]


def _placed(x: np.ndarray, sharding: Sharding) -> jax.Array:
    """On the devices, of which each is given what it holds and no more."""

    def piece(index: Any) -> np.ndarray:
        return np.ascontiguousarray(x[index], np.float32)

    return jax.make_array_from_callback(x.shape, sharding, piece)


def _stacked(leaf: Any, layers: list[Callable[[], np.ndarray]]) -> jax.Array:
    """Layers along the first axis, each placed before the next one is read."""
    sharding = leaf.sharding
    if isinstance(sharding, NamedSharding):
        assert not sharding.spec or sharding.spec[0] is None, "layers are not sharded"
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    update = jax.jit(  # a function that stays, so that parameters of one shape share a program
        jax.lax.dynamic_update_index_in_dim,
        static_argnums=3,
        donate_argnums=0,
        out_shardings=leaf.sharding,
    )
    stack = jnp.zeros(leaf.shape, jnp.float32, device=leaf.sharding)
    for number, layer in enumerate(layers):
        stack = update(stack, _placed(layer(), sharding), number, 0)
    return stack
