"""An imported model beside what transformers computed, block by block, before it is saved.

A reference is a safetensors file, for which docs/using.md has the script: `input_ids`, where there
are such `attention_mask` and `decoder_input_ids`, and what came of them under the names that
transformers has for it: `logits`, `hidden_states.0` (what the first layer reads), `hidden_states.1`
(after it) and so on, of which the last is after the last norm. Those of an encoder-decoder are
`encoder_hidden_states.0` and `decoder_hidden_states.0`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.inspection.observed import observe
from transformer_jax.models.family import Batch, Model, Params
from transformer_jax.models.transformer.config import TransformerConfig, depth, stacks
from transformer_jax.process import hosts
from transformer_jax.tools.convert.family import Family
from transformer_jax.tools.convert.safetensors import Tensor

# The largest difference of a block, as a part of its largest number. In float32 sums in another
# order come to 5e-6, and the slightest mistake of a family, another GELU, to 2e-4.
TOLERANCE = 1e-4
# What a stack reads, and which of it is no padding, both (B, T).
_Ids = tuple[np.ndarray, np.ndarray]


def compare(reference: Mapping[str, Tensor], family: Family, model: Model, params: Params) -> str:
    """What is to say of a model that computes in float32 what the reference holds.

    Raises ValueError, naming the first block that differs, or what does not fit the model.
    """
    path = next((str(tensor.path) for tensor in reference.values()), "the reference")
    model = model.clone(config=dataclasses.replace(model.config, dtype="float32", remat="none"))
    read = _read(reference, model.config, path)
    ours = _computed(model, params, read, family.channels(model.config.d_model))
    names = [name for name in ours if name in reference]
    known = {*ours, "input_ids", "attention_mask", *["decoder_input_ids"] * (len(read) - 1)}
    if unknown := [name for name in reference if name not in known] or ["nothing"] * (not names):
        raise ValueError(f"{path} holds {unknown[0]}, and the model computes {', '.join(ours)}")
    shares: dict[str, float] = {}
    for name in names:
        (block, real), theirs = ours[name], reference[name].read()
        if theirs.ndim == 2:  # of a text: ours has it at all of its tokens
            block, real = block[:, 0], real[:, 0]
        if theirs.shape != block.shape or theirs.dtype.itemsize < 4:
            raise ValueError(
                f"{path}: {name} is {theirs.dtype} of {theirs.shape}, expected float32 of "
                f"{block.shape}; load the model with dtype=torch.float32"
            )
        theirs, block = theirs[real > 0], block[real > 0]
        shares[name] = float(np.abs(block - theirs).max() / (np.abs(theirs).max() or 1.0))
        if not shares[name] <= TOLERANCE:
            same = ", ".join(list(shares)[:-1]) or "nothing before it"
            raise ValueError(
                f"{path}: {name} is the first that differs from what the imported model computes, "
                f"by {shares[name]:.1e} of its largest number, where {TOLERANCE:.0e} is allowed "
                f"(the same: {same}). Nothing is written"
            )
    worst = max(shares, key=shares.__getitem__)
    return (
        f"It computes what {path} holds ({', '.join(shares)}): the largest difference, that of "
        f"{worst}, is {shares[worst]:.1e} of its largest number."
    )


def _read(reference: Mapping[str, Tensor], config: TransformerConfig, path: str) -> dict[str, _Ids]:
    """What each stack reads. Raises ValueError where it cannot."""
    read: dict[str, _Ids] = {}
    for stack, name in zip(stacks(config), ("input_ids", "decoder_input_ids"), strict=False):
        if name not in reference:
            raise ValueError(f"{path}: there are no {name}, which a {config.architecture} reads")
        ids = reference[name].read()
        size, longest = config.vocab_size, config.longest_row or ids.shape[-1]
        if ids.ndim != 2 or ids.shape[1] > longest or not {*np.unique(ids)} <= {*range(size)}:
            raise ValueError(
                f"{path}: {name} of {ids.shape} are no rows of at most {longest} ids below {size}"
            )
        real = np.ones_like(ids)
        if not read and "attention_mask" in reference:
            real = reference["attention_mask"].read()
        if real.shape != ids.shape or not real[:, 0].all() or (np.diff(real) > 0).any():
            raise ValueError(
                f"{path}: attention_mask has no ones and then zeros for each row of {name}: have "
                "the tokenizer pad on the right (padding_side='right')"
            )
        read[stack] = ids, real
    return read


def _computed(
    model: Model, params: Params, read: Mapping[str, _Ids], channels: np.ndarray
) -> dict[str, _Ids]:
    """Our blocks by name, in the order in which they are computed, and which tokens are real.

    channels: of the residual stream, as of `Family.channels`.
    """
    rows, last = [], [*read][-1]
    with jax.default_matmul_precision("highest"):
        for row in range(len(read[last][0])):
            batch: dict[str, np.ndarray] = {}
            for stack, pair in read.items():
                ids, real = (x[row : row + 1].astype(np.int32) for x in pair)
                side = "inputs" if stack == "encoder" else "targets"
                # A decoder reads what stands before each target: the ids are a place further on.
                batch[side] = ids if stack == "encoder" else np.roll(ids, -1, axis=1)
                batch[f"{side}_segment_ids"] = real
                batch[f"{side}_positions"] = np.arange(ids.shape[1], dtype=np.int32) * real
            rows.append(hosts.whole(_row(model, params, batch, read[last][0][row, 0])))
    blocks = {}
    for stack in read:
        stream = np.concatenate([streams[stack] for _, streams in rows], axis=1)
        prefix = f"{stack}_" * (len(read) == 2)
        for number, block in enumerate(stream[..., np.argsort(channels)]):
            blocks[f"{prefix}hidden_states.{number}"] = block, read[stack][1]
    return blocks | {"logits": (np.concatenate([logits for logits, _ in rows]), read[last][1])}


@functools.partial(jax.jit, static_argnames="model")
def _row(
    model: Model, params: Params, batch: Batch, first: Int[Array, ""]
) -> tuple[Any, dict[str, Float[Array, "N 1 T D"]]]:
    """The logits of one row, and of each stack the stream before, between and after its layers.

    first: what a decoder reads first, in the place of bos.
    """
    model = model.clone(config=dataclasses.replace(model.config, bos_id=first))
    outputs, observed = observe(model, params, batch)
    streams = {}
    for stack, states in observed.items():
        kinds = len(depth(model.config, stack).kinds)
        between = states.outputs[kinds - 1 : -1 : kinds]
        streams[stack] = jnp.concatenate([states.inputs[:1], between, states.final[None]])
    return outputs.arrays(), streams
