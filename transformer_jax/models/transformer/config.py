"""The shape of one Transformer: frozen, checked when made, without a mode flag."""

import dataclasses

import numpy as np

from transformer_jax.models.layers import rotary_scalings
from transformer_jax.models.layers.attention import SCORES
from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.layers.heads import HEADS
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.models.layers.settings import (
    ARCHITECTURES,
    UNORDERED,
    ModelConfig,
    Multipliers,
)
from transformer_jax.models.transformer.draws import DRAWS, one_table
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS, Ratios
from transformer_jax.models.transformer.patterns import Pattern, check_pattern
from transformer_jax.models.transformer.schemes import SCHEMES, Depth, Kind, ResidualScheme, Stack

_UNTIED = " or ".join(repr(name) for name, row in TIED_EMBEDDINGS.items() if not row.logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """Sizes and choices of one model; `config.kinds.CHOICES` has the table of each choice.

    The residual stream, norms and softmax stay float32. `context_length`, which `build` puts in, is
    how many tokens a decoder-only model sees at most when it decodes, the newest included; None:
    all.

    Raises:
      ValueError: a size that does not fit positions, a kernel that cannot do what is asked, or a
        parameterisation without its base sizes or with tied embeddings that it steps differently.
    """

    encoder_residual: str
    decoder_residual: str
    num_heads: int
    head_dim: int
    d_ff: int
    context_length: int | None
    depth_exponent: float
    init: str
    parameterization: str
    base_width: int | None
    base_depth: int | None
    attention_score: str
    attention_gain: float
    attention_softcap: float | None
    attention_weights: str
    attention_gate: str
    qk_norm: bool
    qk_norm_over: str
    activation: str
    norm: str
    norm_epsilon: float
    bias: bool
    attention_bias: str | None
    num_kv_heads: int | None
    positions: str
    positions_in: str
    num_queries: int
    rotary_base: float
    rotary_scaling: tuple[str, ...]
    rotary_fraction: float
    layer_pattern: tuple[str, ...]
    window: int | None
    window_rotary_base: float | None
    max_length: int
    max_distance: int | None
    memory_length: int
    embedding_norm: bool
    attention_dropout_rate: float
    feed_forward_dropout_rate: float
    attention_kernel: str

    def __post_init__(self):
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"model.num_kv_heads={self.num_kv_heads} does not divide model.num_heads="
                f"{self.num_heads}: each key and value head serves equally many queries"
            )
        self._check_positions()
        self._check_rotation()
        self._check_positions_in()
        check_pattern(self)
        self._check_memory()
        self._check_kernel()
        self._check_draw()
        self._check_parameterization()

    def _check_positions(self) -> None:
        row = POSITIONS[self.positions]
        if row.even and getattr(self, row.even) % row.of:
            what = "an even" if row.of == 2 else f"a multiple of {row.of} as"
            raise ValueError(
                f"{self.positions} positions need {what} model.{row.even}, got "
                f"{getattr(self, row.even)} (model.head_dim is by default model.d_model / "
                "model.num_heads)"
            )
        if row.places and self.grid == (0, 0):
            raise ValueError(
                f"model.positions={self.positions!r} are rows and columns of images, which the "
                "task does not read: set it to one of "
                f"{', '.join(name for name, other in POSITIONS.items() if not other.places)}"
            )
        if row.most is not None and max(self.grid) > row.most:
            raise ValueError(
                f"model.positions={self.positions!r} knows {row.most} rows and columns, and the "
                f"images have {self.grid} patches: lower data.image_size, or raise "
                "model.patch_size"
            )

    def _check_rotation(self) -> None:
        if POSITIONS[self.positions].rotation is None:
            return
        if self.rotary_channels % 2 or not self.rotary_channels:
            raise ValueError(
                f"model.rotary_fraction={self.rotary_fraction} of model.head_dim={self.head_dim} "
                f"turns {self.rotary_channels} channels: expected an even number, and at least 2"
            )
        if self.rotary_scaling:
            row, numbers = rotary_scalings.read(self.rotary_scaling)
            with np.errstate(all="ignore"):
                parts = row.scaled(np.ones(self.rotary_channels // 2), self.rotary_base, **numbers)
            if not all(np.all(np.isfinite(part)) for part in parts):
                raise ValueError(f"model.rotary_scaling={self.rotary_scaling} divides by 0")

    def _check_positions_in(self) -> None:
        row, (*_, last) = POSITIONS[self.positions], stacks(self)
        if self.positions_in == "stream" and (row.added or self.architecture not in UNORDERED):
            return
        if not row.added:
            fitting = " or ".join(repr(name) for name, other in POSITIONS.items() if other.added)
            raise ValueError(
                f"model.positions={self.positions!r} has no vectors, which model.positions_in="
                f"{self.positions_in!r} of model.architecture={self.architecture!r} adds: set it "
                f"to {fitting}"
            )
        if last == "decoder" and self.architecture not in UNORDERED:
            raise ValueError(
                f"model.positions_in={self.positions_in!r} is for models that do not write, got "
                f"model.architecture={self.architecture!r}: set it to 'stream'"
            )

    def _check_memory(self) -> None:
        fitting = [name for name, row in POSITIONS.items() if row.bias]
        if self.memory_length and self.architecture != "decoder_only":
            raise ValueError(
                f"model.memory_length={self.memory_length} needs model.architecture="
                f"'decoder_only', got {self.architecture!r}"
            )
        if self.memory_length and self.positions not in fitting:
            raise ValueError(
                f"model.memory_length={self.memory_length} needs positions that tell distances, "
                f"model.positions={' or '.join(map(repr, fitting))}, got {self.positions!r}"
            )

    def _check_kernel(self) -> None:
        name, kernel = self.attention_kernel, KERNELS[self.attention_kernel]
        score, positions = SCORES[self.attention_score], POSITIONS[self.positions]
        if score.module and positions.distances:
            raise ValueError(
                f"model.positions={self.positions!r} adds to products of queries and keys, which "
                f"model.attention_score={self.attention_score!r} has none of"
            )
        if self.attention_softcap is not None and (score.module or positions.bias):
            raise ValueError(
                f"model.attention_softcap={self.attention_softcap} is of products of queries and "
                f"keys alone: leave it out, or change model.positions={self.positions!r} and "
                f"model.attention_score={self.attention_score!r}"
            )
        if self.attention_softcap is not None and not kernel.caps:
            fitting = " or ".join(repr(name) for name, row in KERNELS.items() if row.caps)
            raise ValueError(
                f"model.attention_softcap={self.attention_softcap} is not for "
                f"model.attention_kernel={name!r}, which caps no scores: set it to {fitting}"
            )
        needs = {
            "attention_score": score.module,
            "attention_weights": self.attention_weights != "softmax",
            "positions": positions.bias,
            "attention_dropout_rate": self.attention_dropout_rate,
        }
        for key, value in needs.items():
            if value and not kernel.plain:
                plain = " or ".join(repr(name) for name, row in KERNELS.items() if row.plain)
                raise ValueError(
                    f"model.{key}={getattr(self, key)!r} needs attention weights, which model."
                    f"attention_kernel={name!r} never holds: change it, or set the kernel to "
                    f"{plain}"
                )
        if kernel.dtypes and self.dtype not in kernel.dtypes:
            raise ValueError(
                f"model.attention_kernel={name!r} takes no products of model.dtype={self.dtype!r}: "
                f"set it to {' or '.join(map(repr, kernel.dtypes))}"
            )
        if kernel.head_dims and self.head_dim not in kernel.head_dims:
            sizes = kernel.head_dims
            raise ValueError(
                f"model.head_dim={self.head_dim} is none that model.attention_kernel={name!r} "
                f"takes: expected a multiple of {sizes.step} from {sizes.start} to {sizes[-1]}"
            )

    def _check_draw(self) -> None:
        if self._tied and not one_table(self.init, self.d_model):
            raise ValueError(
                f"model.init={self.init!r} draws embeddings and logits differently, which "
                f"model.tied_embeddings={self.tied_embeddings!r} makes one: set it to {_UNTIED}"
            )

    def _check_parameterization(self) -> None:
        name, row = self.parameterization, PARAMETERIZATIONS[self.parameterization]
        if row is None:
            return
        if DRAWS[self.init] is not None:
            xavier = next(name for name, draw in DRAWS.items() if draw is None)
            raise ValueError(
                f"model.init={self.init!r} says itself how draws follow the sizes, as model."
                f"parameterization={name!r} does: set it to {xavier!r}, or that to 'standard'"
            )
        for key in row.reads:
            if getattr(self, key) is None:
                raise ValueError(
                    f"model.parameterization={name!r} needs model.{key}, that of the model whose "
                    "learning rate is to be that of this one"
                )
        if self._tied and not row.tied:
            raise ValueError(
                f"model.parameterization={name!r} steps embeddings and logits differently, which "
                f"model.tied_embeddings={self.tied_embeddings!r} makes one: set it to {_UNTIED}"
            )

    @property
    def _tied(self) -> bool:
        """Whether a token table gives the logits."""
        return TIED_EMBEDDINGS[self.tied_embeddings].logits and not HEADS[self.head].labels

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def profiled(self) -> bool:
        """Whether a stack's scheme is measured on the first batch, as Admin's is."""
        return any(scheme(self, stack).profiled for stack in stacks(self))

    def plain(self) -> "TransformerConfig":
        return dataclasses.replace(super().plain(), attention_kernel="xla")

    def divides(self, devices: int) -> bool:
        """Whether so many devices can share the width of each layer evenly."""
        return self.num_heads % devices == 0 == self.d_ff % devices

    @property
    def base_d_model(self) -> float:
        """The d_model of the base of the parameterisation; d_model itself where there is none."""
        return self.d_model / ratios(self).width

    @property
    def multipliers(self) -> Multipliers:
        """The parameterisation's. An embedding's is sqrt(D) at the base width."""
        row, width = PARAMETERIZATIONS[self.parameterization], ratios(self).width
        scale = self.base_d_model**0.5 if self.embedding_scale is None else self.embedding_scale
        if row is None:
            return Multipliers(scale)
        hidden, output = row.hidden.multiplier, row.output.multiplier
        return Multipliers(scale * width**row.embedding.multiplier, width**hidden, width**output)

    @property
    def longest_row(self) -> int | None:
        """How many tokens a row may have; None: any number."""
        row = POSITIONS[self.positions]
        if row.rotation and self.rotary_scaling:
            scaling, numbers = rotary_scalings.read(self.rotary_scaling)
            return int(numbers["original_max_position_embeddings"]) if scaling.bounded else None
        return self.max_length if row.learned else None

    @property
    def rotary_channels(self) -> int:
        """Those of each head that rotary positions turn, the first ones."""
        return int(self.head_dim * self.rotary_fraction)

    def check_platform(self, platform: str) -> None:
        """Raises ValueError where the attention kernel does not run on this kind of device."""
        fitting = [
            name for name, row in KERNELS.items() if platform in (row.platforms or [platform])
        ]
        if self.attention_kernel not in fitting:
            platforms = KERNELS[self.attention_kernel].platforms or ()
            raise ValueError(
                f"model.attention_kernel={self.attention_kernel!r} is for "
                f"{' and '.join(f'{name.upper()}s' for name in platforms)}, and the devices are of "
                f"kind {platform!r}: set it to {' or '.join(map(repr, fitting))}"
            )


def stacks(config: TransformerConfig) -> tuple[Stack, ...]:
    """The stacks of the model, in the order in which they run."""
    return ARCHITECTURES[config.architecture]


def tells_set(config: TransformerConfig, stack: Stack) -> bool:
    """Whether a stack tells the elements of a set: all at once, and after each layer."""
    return stack == "decoder" and config.architecture in UNORDERED


def side_of(config: TransformerConfig, stack: Stack) -> str:
    """What the names of a stack's embedding and positions start with."""
    if len(stacks(config)) == 1:
        return ""
    return "source_" if stack == "encoder" else "target_"


def scheme(config: TransformerConfig, stack: Stack) -> ResidualScheme:
    """The row that a stack's sublayers follow."""
    name = config.encoder_residual if stack == "encoder" else config.decoder_residual
    return SCHEMES[name]


def depth(config: TransformerConfig, stack: Stack) -> Depth:
    """The depth of a stack of the model."""
    layers, other = config.num_encoder_layers, config.num_decoder_layers
    if stack == "decoder":
        layers, other = other, layers
    both = len(stacks(config)) > 1
    kinds: tuple[Kind, ...] = ("self_attention", "feed_forward")
    if both and stack == "decoder":
        kinds = ("self_attention", "cross_attention", "feed_forward")
    return Depth(stack, kinds, layers, other if both else 0, config.depth_exponent)


def pattern(config: TransformerConfig, stack: Stack) -> Pattern:
    """How the self-attentions of a stack's layers differ."""
    own_base = config.window_rotary_base is not None
    return Pattern.of(config.layer_pattern, depth(config, stack).layers, own_base)


def ratios(config: TransformerConfig, stack: Stack | None = None) -> Ratios:
    """What the model is larger by than the base of its parameterisation.

    stack: the one that a parameter is of, if any.
    """
    row = PARAMETERIZATIONS[config.parameterization]
    if row is None or config.base_width is None:
        return Ratios()
    width = config.d_model / config.base_width
    if stack is None or config.base_depth is None or "base_depth" not in row.reads:
        return Ratios(width)
    return Ratios(width, depth(config, stack).layers / config.base_depth)


def branch_multiplier(config: TransformerConfig, stack: Stack) -> float:
    """What the residual branches of a stack are multiplied by, besides what their scheme does."""
    row = PARAMETERIZATIONS[config.parameterization]
    return 1.0 if row is None else ratios(config, stack).depth ** row.branch
