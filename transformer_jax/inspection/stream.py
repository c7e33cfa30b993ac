"""What the residual stream is like after each sublayer: largest entries, tails, rank."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.inspection.observed import Observed


def max_activation(activations: Observed) -> Float[Array, "n"]:
    """The largest entry, by size, over real tokens."""
    sizes = jnp.max(jnp.abs(activations.outputs), axis=-1)
    return jnp.max(sizes, axis=(1, 2), where=activations.real[None], initial=0.0)


def absmax_ratio(activations: Observed) -> Float[Array, "n"]:
    """The largest entry over the median one, by size, of a row; the mean over rows.

    Sun et al. 2024 (2402.17762) call it massive from a thousand on. A norm at the end of a sublayer
    bounds it by about 1.5 sqrt(D) before its gains.
    """

    def ratios(x: Float[Array, "B T D"]) -> Float[Array, ""]:
        sizes = jnp.where(activations.real[..., None], jnp.abs(x), jnp.nan).reshape(x.shape[0], -1)
        return jnp.nanmean(jnp.nanmax(sizes, axis=1) / jnp.nanmedian(sizes, axis=1))

    return jax.lax.map(ratios, activations.outputs)


def peak_share(activations: Observed) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
    """The share of a token's squared norm that its largest entry has: 1/D to 1 in all schemes.

    Of the first tokens of texts, and of all others.
    """
    squares = jnp.square(activations.outputs)
    shares = jnp.max(squares, axis=-1) / jnp.maximum(jnp.sum(squares, axis=-1), 1e-30)
    return _at_first(activations, shares)


def norm_ratio(activations: Observed) -> Float[Array, "n"]:
    """The mean norm of texts' first tokens over that of all others."""
    first, others = _at_first(activations, jnp.linalg.norm(activations.outputs, axis=-1))
    return first / others


def kurtosis(activations: Observed) -> Float[Array, "n"]:
    """Mean x^4 over the square of mean x^2, of all entries of real tokens: 3 of normal ones."""
    where = activations.real[None, :, :, None]
    squares = jnp.square(activations.outputs)
    fourth, second = (jnp.mean(x, axis=(1, 2, 3), where=where) for x in (squares**2, squares))
    return fourth / jnp.square(second)


def effective_rank(activations: Observed) -> Float[Array, "n"]:
    """The exponential of the entropy of the shares of variance of the centred tokens' directions
    (Roy and Vetterli 2007): 1 to D."""

    def rank(x: Float[Array, "B T D"]) -> Float[Array, ""]:
        real = activations.real[..., None]
        centred = jnp.where(real, x - jnp.mean(x, axis=(0, 1), where=real, keepdims=True), 0.0)
        variances = jnp.linalg.eigvalsh(jnp.einsum("BTD,BTE->DE", centred, centred))
        shares = jnp.maximum(variances, 0.0) / jnp.sum(jnp.maximum(variances, 0.0))
        return jnp.exp(jnp.sum(jax.scipy.special.entr(shares)))

    return jax.lax.map(rank, activations.outputs)


def starts(activations: Observed) -> Bool[Array, "B T"]:
    """Which tokens are the first of their text."""
    return activations.real & (jnp.diff(activations.segments, axis=1, prepend=0) != 0)


def _at_first(
    activations: Observed, values: Float[Array, "n B T"]
) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
    """The mean over texts' first tokens, and over their others."""
    first = starts(activations)
    others = activations.real & ~first
    return (
        jnp.mean(values, axis=(1, 2), where=first[None]),
        jnp.mean(values, axis=(1, 2), where=others[None]),
    )
