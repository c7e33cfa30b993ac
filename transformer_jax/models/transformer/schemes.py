"""The table of residual schemes: each a row of constants for the one equation of `residual`.

    x' = POST( s * x + c * BRANCH( f( r * PRE(x) ) ) )

PRE, BRANCH and POST are a norm or nothing, and f may have one before its last projection. The skip
scale s, the branch scale c, the scale r and the gains on the draws of kernels are formulas of the
depth.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from transformer_jax.models.layers.settings import Stack
from transformer_jax.process.machine import check_constant

Kind = Literal["self_attention", "cross_attention", "feed_forward"]


@dataclasses.dataclass(frozen=True)
class Depth:
    """What the constants of a stack's sublayers are computed from.

    Attributes:
      kinds: of the sublayers of one layer, in the order in which they run.
      layers: of this stack.
      other_layers: of the other stack; 0 where there is none.
      exponent: `config.depth_exponent`.
    """

    stack: Stack
    kinds: tuple[Kind, ...]
    layers: int
    other_layers: int
    exponent: float

    @property
    def sublayers(self) -> int:
        """Residual sublayers of this stack: two a layer, or three with cross-attention."""
        return self.layers * len(self.kinds)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, and sublayers of each."""
        return self.layers, len(self.kinds)


# Depth -> one value, or an array that broadcasts to (L, kinds).
Formula = Callable[[Depth], Any]


# The two kernels that a branch's output is linear in, and those that DeepNorm and others scale.
_LAST = ("*/output", "*/down")
_VALUES = ("*/value", "*/output", "*/up", "*/down")
_ALL = (*_VALUES, "*/query", "*/key", "*/distance", "*/gate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualScheme:
    """One row.

    Attributes:
      pre_norm, branch_norm, post_norm: whether PRE, BRANCH and POST are norms.
      pre_where, post_where: the sublayers whose PRE and POST are norms; None: all. In the others
        the parameters of these norms do nothing.
      inner_norm: a norm before the last projection of self-attention and feed-forward.
      qkv_norm: norms of queries, keys and values, whatever `model.qk_norm` says.
      final_norm: a norm at the end of each stack.
      embedding_norm: a norm on the sum of embedding and position.
      skip, branch, read: the scales s, c and r; None is 1.
      trained_skip: s is a trained vector (D,), omega, that starts from `skip`.
      profiled: omega starts from what the first batch's variances say, and not from `skip`.
      trained_branch: c is a trained scalar or vector that starts from `branch`.
      stream, input: a and b, trained scalars that start from these. Each layer's x is a x + b x0,
        where x0 is what enters the stack; None: a is 1, and b is 0.
      parallel: all sublayers of a layer read the layer's input.
      layer_shortcut: the last sublayer of a layer also adds the layer's input.
      summed_branches: a second stream sums up all branches, and joins at the end of the stack.
      gain: factor on the draws of the kernels that a glob of `gained` names, as "*/value".
      embedding_gain: factor on the draw of the token table that the stack reads, one number.
      reads: the keys of the config's model that its formulas read.
    """

    pre_norm: bool = False
    branch_norm: bool = False
    post_norm: bool = False
    pre_where: Formula | None = None
    post_where: Formula | None = None
    inner_norm: bool = False
    qkv_norm: bool = False
    final_norm: bool = False
    embedding_norm: bool = False
    skip: Formula | None = None
    branch: Formula | None = None
    read: Formula | None = None
    trained_skip: bool = False
    profiled: bool = False
    trained_branch: Literal["scalar", "vector"] | None = None
    stream: Formula | None = None
    input: Formula | None = None
    parallel: bool = False
    layer_shortcut: bool = False
    summed_branches: bool = False
    gain: Formula | None = None
    gained: tuple[str, ...] = ()
    embedding_gain: Formula | None = None
    reads: tuple[str, ...] = ()

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if Formula in get_args(field.type) and not (value is None or callable(value)):
                raise ValueError(
                    f"{field.name}={value!r} is no formula: expected a function of the depth"
                )

    @property
    def ends_in_norm(self) -> bool:
        """Whether a stack has one norm more than its sublayers have."""
        return self.final_norm or self.summed_branches

    @property
    def norms(self) -> bool:
        """Whether it has a norm anywhere."""
        own = self.pre_norm, self.branch_norm, self.post_norm, self.inner_norm, self.qkv_norm
        return any((*own, self.embedding_norm, self.ends_in_norm))

    @property
    def equation(self) -> str:
        """The right-hand side of the equation, and what the row adds elsewhere, as text."""
        branch = "Norm(x)" if self.pre_norm else "x"
        branch = f"f(r {branch})" if self.read else f"f({branch})"
        if self.branch_norm:
            branch = f"Norm({branch})"
        if self.branch is not None or self.trained_branch is not None:
            branch = f"c {branch}"
        skip = "ω x" if self.trained_skip else "s x" if self.skip else "x"
        equation = f"{skip} + {branch}"
        if self.post_norm:
            equation = f"Norm({equation})"
        notes = {
            f"c a trained {self.trained_branch}": self.trained_branch is not None,
            "a Norm inside f, before its last projection": self.inner_norm,
            "norms of queries, keys and values": self.qkv_norm,
            "the Norm of x in some sublayers": self.pre_where is not None,
            "the Norm of the sum in some sublayers": self.post_where is not None,
            "x times a trained a before each layer": self.stream is not None,
            "plus the stack's input times a trained b": self.input is not None,
            "every f of a layer reads the layer's input": self.parallel,
            "a layer's last sublayer also adds the layer's input": self.layer_shortcut,
            "a second stream sums up all branches and joins at the end": self.summed_branches,
            "a Norm on the embedding": self.embedding_norm,
            "a Norm at the end of the stack": self.final_norm,
        }
        return "; ".join([equation, *(note for note, holds in notes.items() if holds)])


def _admin_constant(depth: Depth) -> float:
    """sqrt((n + 1) / ln(n + 1) - 1) for n sublayers."""
    n = depth.sublayers
    return math.sqrt((n + 1) / math.log(n + 1) - 1)


def _deepnorm_alpha(depth: Depth) -> float:
    """(2N)^(1/4) of a stack alone; (3M)^(1/4) and 0.81 (N^4 M)^(1/16) of decoder and encoder."""
    if not depth.other_layers:
        return (2 * depth.layers) ** 0.25
    if depth.stack == "decoder":
        return (3 * depth.layers) ** 0.25
    return 0.81 * (depth.layers**4 * depth.other_layers) ** (1 / 16)


def _deepnorm_beta(depth: Depth) -> float:
    """(8N)^(-1/4) of a stack alone; (12M)^(-1/4) and 0.87 (N^4 M)^(-1/16) of decoder, encoder."""
    if not depth.other_layers:
        return (8 * depth.layers) ** -0.25
    if depth.stack == "decoder":
        return (12 * depth.layers) ** -0.25
    return 0.87 * (depth.layers**4 * depth.other_layers) ** (-1 / 16)


def _t_fixup_gain(depth: Depth) -> float:
    """0.67 N^(-1/4) in an encoder, (9M)^(-1/4) in a decoder."""
    return 0.67 * depth.layers**-0.25 if depth.stack == "encoder" else (9 * depth.layers) ** -0.25


def _sub_ln_gain(depth: Depth) -> float:
    """sqrt(ln 2N) of a stack alone; sqrt(ln 3M) of a decoder, sqrt(ln 3M ln 2N / 3) of its encoder.

    At one layer these are below 1, as the formula has it.
    """
    if not depth.other_layers:
        return math.sqrt(math.log(2 * depth.layers))
    if depth.stack == "decoder":
        return math.sqrt(math.log(3 * depth.layers))
    return math.sqrt(math.log(3 * depth.other_layers) * math.log(2 * depth.layers) / 3)


def _layer_scale(depth: Depth) -> float:
    """0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond."""
    return 0.1 if depth.layers <= 18 else 1e-5 if depth.layers <= 24 else 1e-6


def _keel_skip(depth: Depth) -> Float[Array, "L 1"]:
    """n of n sublayers; 1 in the first layer."""
    first = jnp.arange(depth.layers)[:, None] == 0
    return jnp.where(first, 1.0, float(depth.sublayers))


def _not_first(depth: Depth) -> Bool[Array, "L n"]:
    """All sublayers but the first."""
    return jnp.ones(depth.shape, bool).at[0, 0].set(False)


def _first_quarter(depth: Depth) -> Bool[Array, "L 1"]:
    """Those of the first quarter of the layers, rounded down."""
    return jnp.arange(depth.layers)[:, None] < depth.layers // 4


def _other_quarters(depth: Depth) -> Bool[Array, "L 1"]:
    """Those of all other layers."""
    return jnp.logical_not(_first_quarter(depth))


def _attentions(depth: Depth) -> Bool[np.ndarray, "n"]:
    """Those of attention."""
    return np.array([kind != "feed_forward" for kind in depth.kinds])


def _stream_share(depth: Depth) -> Float[Array, "L 1"]:
    """From 1.15 in the first layer to 1.05 in the last."""
    return jnp.linspace(1.15, 1.05, depth.layers)[:, None]


def _input_share(depth: Depth) -> Float[Array, "L 1"]:
    """From 0.2 in the first layer to 0.05 in the last."""
    return jnp.linspace(0.2, 0.05, depth.layers)[:, None]


def _by_layer(depth: Depth) -> Float[np.ndarray, "L 1"]:
    """l^(-1/2) in layer l."""
    cure = f"Lower model.num_layers={depth.layers}"
    check_constant("a factor of each layer", 8 * depth.layers, cure)
    return np.arange(1, depth.layers + 1)[:, None] ** -0.5


SCHEMES: dict[str, ResidualScheme] = {
    # Vaswani et al. 2017 (1706.03762), section 3.1.
    "post_ln": ResidualScheme(post_norm=True),
    # Xiong et al. 2020 (2002.04745), figure 1, with a norm at the end of each stack.
    "pre_ln": ResidualScheme(pre_norm=True, final_norm=True),
    # Liu et al. 2020 (2004.08249), section 4.
    "admin": ResidualScheme(post_norm=True, trained_skip=True, profiled=True),
    # The authors' admin-torch, "O(log n)": no profiling, one constant for all sublayers. To fix it,
    # freeze it: optimizer.groups = (("*/omega", 0.0, 0.0),).
    "admin_constant": ResidualScheme(post_norm=True, trained_skip=True, skip=_admin_constant),
    # Wang et al. 2022 (2203.00555), figure 2 and table 2; where that has 0.87, the gain of the
    # authors' code is 1.15.
    "deepnorm": ResidualScheme(
        post_norm=True, skip=_deepnorm_alpha, gain=_deepnorm_beta, gained=_VALUES
    ),
    # Bachlechner et al. 2020 (2003.04887), equation 2, with a scalar for each sublayer. The
    # authors' code has one for all sublayers of a layer.
    "rezero": ResidualScheme(branch=lambda depth: 0.0, trained_branch="scalar"),
    # Huang et al. 2020 (ICML), section 3.2: no norms at all. The paper has an encoder and a decoder
    # of equal depth; a stack alone follows the rule of its name.
    "t_fixup": ResidualScheme(
        gain=_t_fixup_gain,
        gained=_VALUES,
        embedding_gain=lambda depth: (9 * depth.layers) ** -0.25,
    ),
    # Radford et al. 2019, section 2.3: projections onto the residual stream over sqrt(n). Draws are
    # Xavier's as of all schemes, not N(0, 0.02^2).
    "gpt2": ResidualScheme(
        pre_norm=True, final_norm=True, gain=lambda depth: depth.sublayers**-0.5, gained=_LAST
    ),
    # Wang and Komatsuzaki 2021 (GPT-J) and GPT-NeoX's code (Black et al. 2022, 2204.06745, 2.1).
    "parallel": ResidualScheme(pre_norm=True, final_norm=True, parallel=True),
    # OLMo 2 (2501.00656), section 3.2: norms of the branches alone.
    "branch_ln": ResidualScheme(branch_norm=True, final_norm=True),
    # Warner et al. 2024 (2412.13663, ModernBERT): as pre_ln, but that model.embedding_norm=True
    # stands in for the norm before the first sublayer.
    "pre_ln_first_bare": ResidualScheme(pre_norm=True, final_norm=True, pre_where=_not_first),
    # Ding et al. 2021 (2105.13290, CogView), section 2.4.
    "sandwich": ResidualScheme(pre_norm=True, branch_norm=True, final_norm=True),
    # Kim et al. 2025 (2502.02732), section 3: as sandwich, with a norm on the embedding.
    "peri_ln": ResidualScheme(
        pre_norm=True, branch_norm=True, final_norm=True, embedding_norm=True
    ),
    # Wang et al. 2022 (2210.06423, Magneto), figure 2; cross-attention as in the authors' code has
    # neither the inner norm nor the gain.
    "sub_ln": ResidualScheme(
        pre_norm=True,
        inner_norm=True,
        final_norm=True,
        gain=_sub_ln_gain,
        gained=("self_attention/value", "self_attention/output", "*/up", "*/down"),
    ),
    # Touvron et al. 2021 (2103.17239, CaiT), equation 4 and its table of initial values.
    "layer_scale": ResidualScheme(
        pre_norm=True, final_norm=True, branch=_layer_scale, trained_branch="vector"
    ),
    # Takase et al. 2022 (2206.00330), equation 7: bottom to top. Without the L^(-1/2) that the
    # authors' code puts on all draws.
    "b2t": ResidualScheme(post_norm=True, layer_shortcut=True),
    # Xie et al. 2023 (2304.14802, ResiDual), section 3.1.
    "residual_dual": ResidualScheme(post_norm=True, summed_branches=True),
    # 2601.19895 (KEEL): LN(n x + f(LN(x))). Its norms have no bias: so has model.norm="rms_norm".
    "keel": ResidualScheme(pre_norm=True, post_norm=True, post_where=_not_first, skip=_keel_skip),
    # Zhang et al. 2019 (1908.11365), equation 5: draws of layer l over sqrt(l). The authors' code
    # takes the fourth root.
    "ds_init": ResidualScheme(post_norm=True, gain=_by_layer, gained=_ALL),
    # Dey et al. 2025 (2505.01618, CompleteP), section 3; Yang et al. 2023 (2310.02244) with an
    # exponent of 0.5. Branches alone: with their rules for draws and learning rates they are
    # model.parameterization="completep" and "depth_mup", with "pre_ln".
    "depth_scaled": ResidualScheme(
        pre_norm=True,
        final_norm=True,
        branch=lambda depth: (depth.layers / 2) ** -depth.exponent,
        reads=("depth_exponent",),
    ),
    # Sun et al. 2025 (2502.05795, LayerNorm Scaling). The norm is scaled and no draw is, so that
    # steps of kernels are those of other schemes.
    "ln_scaling": ResidualScheme(pre_norm=True, final_norm=True, read=_by_layer),
    # Li et al. 2024 (2412.13795, Mix-LN) with a share of 1/4: post_ln, then pre_ln, which is all
    # that there is of less than four layers.
    "mix_ln": ResidualScheme(
        pre_norm=True,
        post_norm=True,
        pre_where=_other_quarters,
        post_where=_first_quarter,
        final_norm=True,
    ),
    # Zhuo et al. 2025 (2503.04598, HybridNorm), without the other norms in the first layer that a
    # variant of it has.
    "hybrid_norm": ResidualScheme(
        post_norm=True, post_where=_attentions, qkv_norm=True, final_norm=True
    ),
    # Karpathy 2025 (nanochat, gpt.py), without its embeddings of values, and without what it takes
    # off the stream at the end.
    "x0": ResidualScheme(
        pre_norm=True,
        final_norm=True,
        embedding_norm=True,
        stream=_stream_share,
        input=_input_share,
    ),
}
