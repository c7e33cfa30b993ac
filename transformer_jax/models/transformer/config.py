"""The shape of one Transformer: frozen, checked when made, without a mode flag."""

import dataclasses
import difflib
from typing import Literal, get_args

import jax.numpy as jnp

Architecture = Literal["encoder_decoder", "encoder_only", "decoder_only"]
Head = Literal["tokens", "masked_tokens", "classes", "tags"]
# fmt: off
Residual = Literal[
    "post_ln", "pre_ln", "admin", "admin_constant", "deepnorm", "rezero", "t_fixup", "gpt2",
    "sandwich", "peri_ln", "sub_ln", "layer_scale", "b2t", "residual_dual", "keel", "ds_init",
    "depth_scaled",
]
# fmt: on
AttentionScore = Literal["scaled_dot_product", "dot_product", "additive"]
Activation = Literal["relu", "gelu", "swiglu"]
Norm = Literal["layer_norm", "rms_norm"]
Positions = Literal["sinusoidal", "learned", "rotary"]
Pooling = Literal["mean", "first"]
TiedEmbeddings = Literal["all", "decoder", "none"]
Dtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "dots", "full"]
AttentionKernel = Literal["xla", "splash"]

_CHOICES = {
    "architecture": Architecture,
    "head": Head,
    "encoder_residual": Residual,
    "decoder_residual": Residual,
    "attention_score": AttentionScore,
    "activation": Activation,
    "norm": Norm,
    "positions": Positions,
    "pooling": Pooling,
    "tied_embeddings": TiedEmbeddings,
    "dtype": Dtype,
    "remat": Remat,
    "attention_kernel": AttentionKernel,
}
_SIZES = (
    *("vocab_size", "num_encoder_layers", "num_decoder_layers", "d_model", "num_heads"),
    *("head_dim", "d_ff", "max_length"),
)
_RATES = (
    *("dropout_rate", "embedding_dropout_rate"),
    *("attention_dropout_rate", "feed_forward_dropout_rate"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and choices of one model.

    What comes from the data and the objective (`vocab_size`, `bos_id`, `head`, `num_labels`) is put
    in by `build`. `dtype` is what products are computed in: parameters, the residual stream, norms,
    softmax and logits stay float32.

    Raises:
      ValueError: a value outside its set, a size below 1, a rate outside [0, 1), an odd d_model
        with sinusoidal positions, an odd head_dim with rotary ones, or a head of labels on another
        architecture than encoder_only.
    """

    architecture: Architecture
    encoder_residual: Residual
    decoder_residual: Residual
    vocab_size: int
    bos_id: int
    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    num_heads: int
    head_dim: int
    d_ff: int
    head: Head = "tokens"
    num_labels: int = 0
    context_length: int | None = None
    depth_exponent: float = 1.0
    attention_score: AttentionScore = "scaled_dot_product"
    attention_gain: float = 1.0
    qk_norm: bool = False
    activation: Activation = "relu"
    norm: Norm = "layer_norm"
    positions: Positions = "sinusoidal"
    max_length: int = 1024
    embedding_norm: bool = False
    pooling: Pooling = "mean"
    tied_embeddings: TiedEmbeddings = "all"
    dropout_rate: float = 0.0
    embedding_dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    feed_forward_dropout_rate: float = 0.0
    dtype: Dtype = "float32"
    remat: Remat = "none"
    attention_kernel: AttentionKernel = "xla"

    def __post_init__(self):
        for name, choices in _CHOICES.items():
            value, allowed = getattr(self, name), get_args(choices)
            if value not in allowed:
                near = difflib.get_close_matches(str(value), allowed, n=1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise ValueError(f"model.{name}={value!r} is not one of {', '.join(allowed)}{hint}")
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name}={getattr(self, name)} must be at least 1")
        if not 0.0 <= self.depth_exponent <= 2.0:
            raise ValueError(f"model.depth_exponent={self.depth_exponent} must lie in [0, 2]")
        if not 0.0 < self.attention_gain <= 10.0:
            raise ValueError(f"model.attention_gain={self.attention_gain} must lie in (0, 10]")
        for name in _RATES:
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"model.{name}={getattr(self, name)} must lie in [0, 1)")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even model.d_model, got {self.d_model}")
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"rotary positions need an even head size, got {self.head_dim} (model.head_dim, or "
                "model.d_model / model.num_heads)"
            )
        if self.attention_kernel == "splash" and self.attention_score == "additive":
            raise ValueError(
                "model.attention_kernel='splash' has products of queries and keys alone: with "
                "model.attention_score='additive' set it to 'xla'"
            )
        if self.attention_kernel == "splash" and self.attention_dropout_rate:
            raise ValueError(
                "model.attention_kernel='splash' never holds the attention weights, so it cannot "
                f"drop any: set model.attention_dropout_rate={self.attention_dropout_rate} to 0, "
                "or the kernel to 'xla'"
            )
        if self.head in ("classes", "tags") and (
            self.architecture != "encoder_only" or self.num_labels < 1
        ):
            raise ValueError(
                f"{self.head} need model.architecture='encoder_only' and at least one label, got "
                f"{self.architecture!r} and {self.num_labels}"
            )

    @property
    def compute_dtype(self) -> jnp.dtype:
        """The dtype of products (weights and activations are cast to it)."""
        return jnp.dtype(self.dtype)
