"""The residual equation, once, and the table of schemes that are its rows.

    x' = POST( s * x + BRANCH( f( PRE(x) ) ) )

PRE and POST are a norm or nothing, BRANCH is dropout, and s is 1 or Admin's omega.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.models.config import Residual, TransformerConfig
from transformer_jax.models.dropout import Dropout
from transformer_jax.models.norm import Norm
from transformer_jax.models.parameter import parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualScheme:
    """One row: where norms stand, and whether the shortcut carries a profiled omega."""

    pre_norm: bool = False
    post_norm: bool = False
    final_norm: bool = False
    profiled_omega: bool = False


SCHEMES: dict[Residual, ResidualScheme] = {
    # Vaswani et al. 2017, section 3.1.
    "post_ln": ResidualScheme(post_norm=True),
    # Xiong et al. 2020 (2002.04745), with a norm at the end of each stack.
    "pre_ln": ResidualScheme(pre_norm=True, final_norm=True),
    # Liu et al. 2020 (2004.08249), section 4.
    "admin": ResidualScheme(post_norm=True, profiled_omega=True),
}


class Shortcut(nn.Module):
    """omega * x. A module of its own, so that its parameter disturbs no other draw."""

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], omega: Float[Array, ""]) -> Float[Array, "B T D"]:
        def fill(key, size):
            return jnp.full(size, omega)

        return parameter(self, "omega", fill, x.shape[-1:], ("embed",))[None, None] * x


class Carry(NamedTuple):
    """What runs through the depth: the residual stream, and the omega profiled so far."""

    x: Float[Array, "B T D"]
    omega: Float[Array, ""]

    @classmethod
    def start(cls, x: Float[Array, "B T D"]) -> "Carry":
        """The bottom of a stack, where omega is 1."""
        return cls(x, jnp.float32(1.0))


class ResidualSublayer(nn.Module):
    """The equation around one function f, which may be another module's call."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        carry: Carry,
        f: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
        real: Bool[Array, "B T"],
        *,
        deterministic: bool,
    ) -> Carry:
        """The stream after this sublayer, and the omega that the next one starts from.

        Admin's profiling (Liu et al. 2020, section 4.2, in its sequential form) runs while
        parameters are made: this sublayer's omega is what the sublayers before it measured, and
        the next is sqrt(Var[omega x] + Var[branch]) over the entries of real tokens.
        """
        scheme = SCHEMES[self.config.residual]
        x, omega = carry
        branch = f(Norm(self.config, name="pre_norm")(x) if scheme.pre_norm else x)
        dropout = Dropout(self.config.dropout_rate, name="dropout")
        branch = dropout(branch, deterministic=deterministic)
        if scheme.profiled_omega:
            x = Shortcut(name="shortcut")(x, omega)
            if self.is_initializing():
                omega = jnp.sqrt(variance(x, real) + variance(branch, real))
        x = x + branch
        return Carry(Norm(self.config, name="post_norm")(x) if scheme.post_norm else x, omega)


def variance(x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Float[Array, ""]:
    """Variance over all entries of real tokens, in float32 and two passes."""
    count = jnp.sum(real) * x.shape[-1]
    mean = jnp.sum(x, where=real[..., None], dtype=jnp.float32) / count
    return jnp.sum(jnp.square(x - mean), where=real[..., None], dtype=jnp.float32) / count
