"""The parts that the three shapes share: what they make, and what they derive from positions."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers.embeddings import OutputProjection, TokenTable
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.layers.masks import Segments
from transformer_jax.models.layers.positions import (
    POSITIONS,
    Distances,
    DistanceVectors,
    Positions,
    RelativeBias,
    Rotation,
)
from transformer_jax.models.layers.stack import stack
from transformer_jax.models.transformer.blocks import Block, Layer
from transformer_jax.models.transformer.config import (
    TransformerConfig,
    depth,
    multipliers,
    ratios,
    scheme,
)
from transformer_jax.models.transformer.residual import Carry, Scales
from transformer_jax.models.transformer.schemes import Stack


def mask(
    config: TransformerConfig, queries: Int[Array, "B T"], keys: Int[Array, "B S"], *, causal: bool
) -> Bool[Array, "B T S"] | Segments:
    """Which keys each query sees, by their segments, as the attention kernel reads it."""
    segments = Segments(queries, keys, causal)
    return segments if KERNELS[config.attention_kernel].reads_segments else segments.pairs()


def table(config: TransformerConfig) -> TokenTable:
    """A module of one vector a token."""
    scale, _, multiplier = multipliers(config)
    return TokenTable(config.vocab_size, config.d_model, config.compute_dtype, scale, multiplier)


def logits(config: TransformerConfig) -> OutputProjection:
    """A module of a kernel of its own for the logits of tokens."""
    multiplier = multipliers(config).output
    return OutputProjection(config.vocab_size, config.compute_dtype, multiplier)


def add_positions(config: TransformerConfig, stack: Stack) -> Positions:
    """The module between embeddings and a stack."""
    return Positions(
        kind=config.positions,
        max_length=config.max_length,
        norm=config.norm if config.embedding_norm or scheme(config, stack).embedding_norm else None,
        norm_epsilon=config.norm_epsilon,
        dropout_rate=config.embedding_dropout_rate,
    )


def layers(config: TransformerConfig, name: Stack) -> Any:
    """The module of a stack."""
    return stack(Block, depth(config, name).layers, config.remat)(config, name)


def bottom(
    config: TransformerConfig, stack: Stack, x: Float[Array, "B T D"], memory: Any = None
) -> tuple[Carry, Layer]:
    """What a stack starts from, and what its layers have of their own, in arrays over layers.

    memory: (B, L, M, D), as `Memory` holds it.
    """
    if memory is not None:
        memory = jnp.swapaxes(memory, 0, 1)
    return Carry.start(config, stack, x), Layer(Scales.of(config, stack), memory)


def rotation(config: TransformerConfig, positions: Int[Array, "B T"]) -> Rotation | None:
    """What turns queries and keys, if anything."""
    turn = POSITIONS[config.positions].rotation
    return turn(positions, config.head_dim, config.rotary_base) if turn else None


def relative_bias(config: TransformerConfig, stack: Stack) -> RelativeBias | DistanceVectors | None:
    """The module of what a stack's layers share of distances, where positions tell them."""
    row, causal = POSITIONS[config.positions], stack == "decoder"
    if row.biased:  # drawn as Hugging Face's T5 draws, at the base width
        deviation = (config.d_model / ratios(config).width) ** -0.5
        return RelativeBias(config.num_heads, deviation, bidirectional=not causal)
    if row.distances:
        sizes = config.num_heads, config.head_dim, config.d_model
        return DistanceVectors(*sizes, causal=causal, most=config.max_distance)
    return None


def bias(
    module: RelativeBias | DistanceVectors | None,
    queries: int,
    keys: int | None = None,
    first: int | Int[Array, ""] = 0,
) -> Float[Array, "1 H T S"] | Distances | None:
    """What self-attention adds to its scores, if anything, of as many keys unless they are told."""
    return module(queries, queries if keys is None else keys, first) if module else None
