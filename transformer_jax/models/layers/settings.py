"""What the configs of all families of models share: architectures and dtypes."""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax.numpy as jnp

Stack = Literal["encoder", "decoder"]

# The stacks that an architecture is made of, in the order in which they run.
ARCHITECTURES: dict[str, tuple[Stack, ...]] = {
    "encoder_decoder": ("encoder", "decoder"),
    "encoder_only": ("encoder",),
    "decoder_only": ("decoder",),
    "encoder_set": ("encoder", "decoder"),
}
# Those whose decoder tells the elements of a set: all at once, and in no order.
UNORDERED = ("encoder_set",)
DTYPES = {"float32": jnp.dtype("float32"), "bfloat16": jnp.dtype("bfloat16")}


class Multipliers(NamedTuple):
    """What parameters are multiplied by where they are used."""

    embedding: float
    hidden: float = 1.0
    output: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and choices that models of all families have, and what a family may do without.

    What comes from the data and the task (`vocab_size`, `bos_id`, `inputs`, `head`, `num_labels`,
    `grid`) is put in by `build`: `inputs` is a key of `INPUTS`, and `grid` the rows and columns of
    patches of the largest image, (0, 0) where there are none. `d_model` is the width of embeddings
    and of what leaves a stack. `dtype` is what products are computed in: parameters, logits and
    what runs through the layers stay float32.
    """

    architecture: str
    vocab_size: int
    bos_id: int
    inputs: str
    stem: str
    patch_size: int
    resnet_depths: tuple[int, ...]
    resnet_width: int
    prefix_tokens: int
    pixel_mean: tuple[float, ...]
    pixel_std: tuple[float, ...]
    grid: tuple[int, int]
    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    head: str
    num_labels: int
    pooling: str
    tied_embeddings: str
    embedding_scale: float | None
    logits_bias: bool
    logits_softcap: float | None
    dropout_rate: float
    embedding_dropout_rate: float
    dtype: str
    remat: str

    # The names of the sums that layers add to the outputs.
    sums = ()
    # A bound of rows in tokens, and measurements on the first batch.
    longest_row = None
    profiled = False

    @property
    def compute_dtype(self) -> jnp.dtype:
        """The dtype of products (weights and activations are cast to it)."""
        return DTYPES[self.dtype]

    @property
    def multipliers(self) -> Multipliers:
        """An embedding's is by default sqrt(D), which brings its entries to unit variance."""
        return Multipliers(self.embedding_scale or self.d_model**0.5)

    def plain(self) -> Self:
        """The same model as plain products, of which none is computed again."""
        return dataclasses.replace(self, remat="none")

    def check_platform(self, platform: str) -> None:
        """Raises ValueError where the model does not run on this kind of device."""
