"""The parts that the three shapes share: what they make, and what they derive from positions."""

from typing import Any

from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers.embeddings import TokenTable
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.layers.masks import Segments
from transformer_jax.models.layers.positions import POSITIONS, Positions, RelativeBias, Rotation
from transformer_jax.models.layers.stack import stack
from transformer_jax.models.transformer.blocks import Block
from transformer_jax.models.transformer.config import TransformerConfig, depth, scheme
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
    return TokenTable(config.vocab_size, config.d_model, config.compute_dtype)


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
    config: TransformerConfig, stack: Stack, x: Float[Array, "B T D"]
) -> tuple[Carry, Scales]:
    """What a stack starts from, and the scales of its layers."""
    return Carry.start(config, stack, x), Scales.of(config, stack)


def rotation(config: TransformerConfig, positions: Int[Array, "B T"]) -> Rotation | None:
    """What turns queries and keys, if anything."""
    turn = POSITIONS[config.positions].rotation
    return turn(positions, config.head_dim) if turn else None


def relative_bias(config: TransformerConfig, stack: Stack) -> RelativeBias | None:
    """The module of a stack's bias, where positions have one. Drawn as Hugging Face's T5 draws."""
    if not POSITIONS[config.positions].biased:
        return None
    return RelativeBias(config.num_heads, config.d_model**-0.5, bidirectional=stack == "encoder")


def bias(
    module: RelativeBias | None,
    queries: int,
    keys: int | None = None,
    first: int | Int[Array, ""] = 0,
) -> Float[Array, "1 H T S"] | None:
    """What self-attention adds to its scores, if anything, of as many keys unless they are told."""
    return module(queries, queries if keys is None else keys, first) if module else None
