"""An imported model beside what transformers computed, block by block, before it is saved.

A reference is a safetensors file, which docs/using.md has the script for: `input_ids`, where there
are such `attention_mask` and `decoder_input_ids`, and what came of them under the names that
transformers has for it: `logits`, and `hidden_states.0` (what the first layer reads),
`hidden_states.1` (after it) and so on, of which the last is after the last norm. Of an
encoder-decoder they are `encoder_hidden_states.0` and `decoder_hidden_states.0`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.inspection.observed import observe
from transformer_jax.models.family import Batch, Model, Params
from transformer_jax.models.transformer.config import depth, stacks
from transformer_jax.process import hosts
from transformer_jax.tools.convert import safetensors
from transformer_jax.tools.convert.family import Family

# The largest difference of a block, as a part of its largest number. Sums in another order come to
# 5e-6 in float32, and what is the smallest mistake of a family, tanh for the exact GELU, to 2e-4.
TOLERANCE = 1e-4
_IDS = "input_ids", "attention_mask", "decoder_input_ids"


class Reference(NamedTuple):
    """What transformers computed of some rows of ids.

    Attributes:
      path: the file.
      inputs: what the encoder or the only stack reads, and which of it is no padding, both (B, T).
      targets: what the decoder of an encoder-decoder reads, (B, U).
      blocks: what came out, by name.
    """

    path: Path
    inputs: Int[np.ndarray, "B T"]
    real: Int[np.ndarray, "B T"]
    targets: Int[np.ndarray, "B U"] | None
    blocks: dict[str, safetensors.Tensor]


def read(path: Path) -> Reference:
    """A file of a reference.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is none of safetensors, or lacks something, or rows begin with padding.
    """
    found = safetensors.tensors(path)
    ids = {name: found.pop(name).read() for name in _IDS if name in found}
    if not found or "input_ids" not in ids:
        raise ValueError(f"{path}: a reference has input_ids, and logits or hidden_states.0, ...")
    inputs, targets = ids["input_ids"], ids.get("decoder_input_ids")
    real = ids.get("attention_mask", np.ones_like(inputs))
    for name, x in ids.items():
        if x.ndim != 2 or x.dtype.kind not in "iu" or not x.size:
            raise ValueError(f"{path}: {name} is {x.dtype} of {x.shape}, expected rows of numbers")
    if real.shape != inputs.shape or (np.diff(real, axis=1) > 0).any() or not real[:, 0].all():
        raise ValueError(
            f"{path}: attention_mask is no row of ones and then zeros for each of input_ids; have "
            "the tokenizer pad on the right (padding_side='right')"
        )
    halves = [name for name, x in found.items() if x.dtype.itemsize < 4]
    if halves:
        raise ValueError(
            f"{path}: {halves[0]} is of {found[halves[0]].dtype}, which is too coarse to compare: "
            "load the model with dtype=torch.float32"
        )
    return Reference(path, inputs, real, targets, found)


def compare(reference: Reference, family: Family, model: Model, params: Params) -> str:
    """What is to say of a model that computes the same, in float32.

    Raises ValueError, naming the first block that differs, or what does not fit the model.
    """
    config = model.config
    if (len(stacks(config)) == 2) != (reference.targets is not None):
        raise ValueError(
            f"{reference.path}: decoder_input_ids are what a model of both stacks reads, and no "
            f"other does; this is a {config.architecture}"
        )
    for ids in (reference.inputs, reference.targets):
        if ids is None:
            continue
        if ids.min() < 0 or ids.max() >= config.vocab_size:
            raise ValueError(f"{reference.path}: ids are not all below {config.vocab_size}")
        if ids.shape[1] > (config.longest_row or ids.shape[1]):
            raise ValueError(
                f"{reference.path}: rows are of {ids.shape[1]} tokens, and the model reads at most "
                f"{config.longest_row}"
            )
    model = model.clone(config=dataclasses.replace(config, dtype="float32", remat="none"))
    ours = _computed(model, params, reference, family.channels(config.d_model))
    if unknown := [name for name in reference.blocks if name not in ours]:
        raise ValueError(
            f"{reference.path}: {unknown[0]} is nothing that this model computes, which is "
            f"{', '.join(ours)}"
        )
    shares = {}
    for name, (block, real) in ours.items():
        if name in reference.blocks:
            shares[name] = _share(reference, name, block, real)
            if not shares[name] <= TOLERANCE:
                same = ", ".join(list(shares)[:-1]) or "nothing before it"
                raise ValueError(
                    f"{reference.path}: {name} is the first that differs from what the imported "
                    f"model computes, by {shares[name]:.1e} of its largest number, where "
                    f"{TOLERANCE:.0e} is allowed (the same: {same}). Nothing is written"
                )
    worst = max(shares, key=shares.__getitem__)
    return (
        f"It computes what {reference.path} holds ({', '.join(shares)}): the largest difference, "
        f"that of {worst}, is {shares[worst]:.1e} of its largest number."
    )


def _share(reference: Reference, name: str, ours: np.ndarray, real: np.ndarray) -> float:
    """The largest difference at real tokens, as a part of the largest number there."""
    theirs = reference.blocks[name].read()
    if theirs.ndim == 2:  # of a text: ours has it at all of its tokens
        ours, real = ours[:, 0], real[:, 0]
    if theirs.shape != ours.shape:
        raise ValueError(
            f"{reference.path}: {name} has the shape {theirs.shape}, and ours {ours.shape}"
        )
    theirs, ours = theirs[real > 0], ours[real > 0]
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def _computed(
    model: Model, params: Params, reference: Reference, channels: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Our blocks by name, in the order in which they are computed, and which tokens are real.

    channels: of the residual stream, as of `Family.channels`.
    """
    read = {stacks(model.config)[0]: (reference.inputs, reference.real)}
    if reference.targets is not None:
        read["decoder"] = reference.targets, np.ones_like(reference.targets)
    rows = []
    with jax.default_matmul_precision("highest"):
        for row in range(len(reference.inputs)):
            own = {stack: [x[row : row + 1] for x in pair] for stack, pair in read.items()}
            first = own["decoder"][0][0, 0] if "decoder" in own else 0
            rows.append(hosts.whole(_row(model, params, _batch(own), jnp.int32(first))))
    logits, streams = (
        jax.tree.map(lambda *x, axis=axis: np.concatenate(x, axis), *part)
        for axis, part in enumerate(zip(*rows, strict=True))
    )
    found = {}
    for stack, stream in streams.items():
        prefix = f"{stack}_" * (len(read) == 2)
        for number, block in enumerate(stream[..., np.argsort(channels)]):
            found[f"{prefix}hidden_states.{number}"] = block, read[stack][1]
    return found | {"logits": (logits, read[[*streams][-1]][1])}


def _batch(read: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The batch of which each stack reads these ids. read: they, and which are real, by stack."""
    batch = {}
    for stack, (ids, real) in read.items():
        side = "inputs" if stack == "encoder" else "targets"
        # A decoder reads what stands before each target, and so the ids are a place further on.
        batch |= {
            side: (ids if stack == "encoder" else np.roll(ids, -1, axis=1)).astype(np.int32),
            f"{side}_segment_ids": real.astype(np.int32),
            f"{side}_positions": (np.arange(ids.shape[1]) * real).astype(np.int32),
        }
    return batch


@functools.partial(jax.jit, static_argnames="model")
def _row(
    model: Model, params: Params, batch: Batch, first: Int[Array, ""]
) -> tuple[Any, dict[str, Float[Array, "N 1 T D"]]]:
    """The logits of one row, and of each stack the stream before, between and after its layers.

    first: what the decoder reads first, in the place of bos.
    """
    model = model.clone(config=dataclasses.replace(model.config, bos_id=first))
    outputs, shown = observe(model, params, batch)
    streams = {}
    for stack, own in shown.items():
        kinds = len(depth(model.config, stack).kinds)
        between = own.outputs[kinds - 1 : -1 : kinds]
        streams[stack] = jnp.concatenate([own.inputs[:1], between, own.final[None]])
    return outputs.arrays(), streams
