"""Attention that never holds all of its weights: JAX's splash attention, a kernel for TPUs."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as kernels
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from transformer_jax.devices.mesh import shards, spec
from transformer_jax.models.layers.masks import Segments

# Lengths are filled up to a multiple of the least, and cut into the largest that divides them.
_BLOCKS = (512, 256, 128)


def splash_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H K"],
    segments: Segments,
    softcap: float | None = None,
    *,
    interpret: bool = False,
) -> Float[Array, "B T H K"]:
    """softmax(Q K^T) V among the tokens of a segment, block by block (Dao et al. 2022, 2205.14135).

    Blocks that causality or a window empties are not computed. Under a mesh each device has its own
    rows, heads and queries, and the keys and values of its whole rows. Queries come scaled. A
    padded query gets a finite result that differs from the plain formula's.

    Args:
      softcap: c of scores, which are c tanh(Q K^T / c) then.
      interpret: runs the kernel as XLA operations, slowly, on whatever device there is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    rows = heads = length = None
    if not mesh.empty:
        axes = ("batch", "length", "heads", None)
        rows, length, heads, _ = spec(mesh, axes, queries.shape)
    num_heads, parts = queries.shape[2], shards("length", queries.shape[1])
    queries, query_segments = _filled(queries, segments.queries, _BLOCKS[-1] * parts, -1)
    keys, key_segments = _filled(keys, segments.keys, _BLOCKS[-1], -2)
    values, _ = _filled(values, segments.keys, _BLOCKS[-1], -2)
    own_heads, own_length = num_heads // shards("heads", num_heads), queries.shape[1] // parts
    arguments = [jnp.swapaxes(x, 1, 2) for x in (queries, keys, values)]
    arguments += [query_segments, key_segments]

    def attend(window: int | None, *arguments: Array) -> Array:
        masks = _masks(segments.causal, window)
        # Without places each part is like the others.
        placed = masks is not kernels.FullMask
        sizes = own_heads, own_length, keys.shape[1]
        kernel = _kernel(masks, *sizes, parts if placed else 1, softcap, interpret)
        if mesh.empty:
            return _attend(kernel, *arguments)
        part = PartitionSpec
        cut = part(None, length if placed else None)
        whole_rows = part(rows, heads, None, None)
        sharded = jax.shard_map(
            _attend,
            in_specs=(
                kernel.manual_sharding_spec(NamedSharding(mesh, cut)),
                part(rows, heads, length, None),
                whole_rows,
                whole_rows,
                part(rows, length),
                part(rows, None),
            ),
            out_specs=part(rows, heads, length, None),
            check_vma=False,  # Pallas does not say over which axes its results differ
        )
        return sharded(kernel, *arguments)

    # A mask is part of its kernel, so that a layer chooses between two of these.
    near, whole = (functools.partial(attend, window) for window in (segments.window, None))
    if segments.windowed is None:
        out = near(*arguments)
    else:
        out = jax.lax.cond(segments.windowed, near, whole, *arguments)
    return jnp.swapaxes(out, 1, 2)[:, : segments.queries.shape[1]]


def _attend(kernel, queries, keys, values, query_segments, key_segments):
    def one_row(q, k, v, of_queries, of_keys):
        return kernel(q, k, v, segment_ids=kernels.SegmentIds(of_queries, of_keys))

    return jax.vmap(one_row)(queries, keys, values, query_segments, key_segments)


def _filled(
    x: Float[Array, "B T H K"], segments: Int[Array, "B T"], multiple: int, filling: int
) -> tuple[Float[Array, "B _ H K"], Int[Array, "B _"]]:
    """Both, with tokens at the end of a segment of their own."""
    missing = -x.shape[1] % multiple
    if not missing:
        return x, segments
    segments = jnp.pad(segments, ((0, 0), (0, missing)), constant_values=filling)
    return jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0))), segments


def _masks(causal: bool, window: int | None) -> Callable[[tuple[int, int]], kernels.Mask]:
    """The masks by their shapes, apart from segments."""
    if window is None:
        return kernels.CausalMask if causal else kernels.FullMask
    sides = window - 1, 0 if causal else window - 1
    return functools.partial(kernels.LocalMask, window_size=sides, offset=0)


def _kernel(
    masks: Callable[[tuple[int, int]], kernels.Mask],
    num_heads: int,
    query_length: int,
    key_length: int,
    parts: int,
    softcap: float | None,
    interpret: bool,
) -> Any:
    """One device's kernel; its mask covers all parts of a row's queries, of which it has one."""
    mask = masks((query_length * parts, key_length))
    block_q, block_kv = (
        next(size for size in _BLOCKS if length % size == 0)
        for length in (query_length, key_length)
    )
    sizes = kernels.BlockSizes(
        block_q=block_q,
        block_kv=block_kv,
        block_kv_compute=block_kv,
        block_q_dkv=block_q,
        block_kv_dkv=block_kv,
        block_kv_dkv_compute=block_kv,
        block_q_dq=block_q,
        block_kv_dq=block_kv,
    )
    return kernels.make_splash_mha(
        kernels.MultiHeadMask([mask] * num_heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=parts,
        residual_checkpoint_name="heads",  # one of stack.REMAT's
        attn_logits_soft_cap=softcap,
        interpret=interpret,
    )
