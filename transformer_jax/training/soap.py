"""SOAP: Adam in the eigenbases of Shampoo's two preconditioners of a matrix."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

REFRESH = 10  # steps from one basis to the next
LARGEST = 10_000  # a longer axis keeps the basis that it has

# Of the inputs and of the outputs of each layer's matrix; None where the axis is too long
Sides = tuple[Float[Array, "L M M"] | None, Float[Array, "L N N"] | None]
_product = functools.partial(jnp.matmul, precision="highest")


class SoapState(NamedTuple):
    """What it keeps of each matrix.

    Attributes:
      count: gradients seen.
      mu, nu: the momentum, and the second moments in the bases.
      products: the averages of G G^T and G^T G. bases: their eigenvectors, as columns.
    """

    count: Int[Array, ""]
    mu: Any
    nu: Any
    products: Any
    bases: Any


def scale_by_soap(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """Adam's steps in the eigenbases of the averages of G G^T and G^T G of each matrix.

    Vyas et al. 2024 (2409.11321), algorithms 3 and 4, where beta2 is of all averages but the
    momentum's. As in the authors' code the first gradient makes the first bases, and no step: its
    own would turn it into a diagonal, of which Adam divides zeros by zeros. The code also sorts the
    bases by their eigenvalues, which the paper leaves to the iteration.

    Leaves are (L, M, N): a matrix of each layer.
    """

    def init(params: Any) -> SoapState:
        shapes = jax.eval_shape(functools.partial(jax.tree.map, _products), params)
        zeros = optax.tree.zeros_like
        count = jnp.zeros([], jnp.int32)
        return SoapState(count, zeros(params), zeros(params), zeros(shapes), zeros(shapes))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, SoapState]:
        mu = optax.tree.update_moment(updates, state.mu, beta1, 1)
        turned = jax.tree.map(_turned, updates, state.bases)
        nu = optax.tree.update_moment(turned, state.nu, beta2, 2)
        steps = jnp.maximum(state.count, 1)
        m_hat = optax.tree.bias_correction(mu, beta1, steps)
        v_hat = optax.tree.bias_correction(nu, beta2, steps)

        def direction(m: jax.Array, v: jax.Array, bases: Sides) -> jax.Array:
            back = jax.tree.map(lambda basis: basis.mT, bases)
            return _turned(_turned(m, bases) / (jnp.sqrt(v) + epsilon), back)

        step = jax.tree.map(direction, m_hat, v_hat, state.bases), mu, nu
        none = optax.tree.zeros_like(updates), state.mu, state.nu
        directions, mu, nu = optax.tree.where(state.count > 0, step, none)

        products = jax.tree.map(_products, updates)
        products = optax.tree.update_moment(products, state.products, beta2, 1)
        due = jnp.where(state.count == 0, 1, jnp.where(state.count % REFRESH == 0, 2, 0))
        bases = jax.lax.switch(due, (_same, _eigenbases, _iterated), products, state.bases)
        return directions, SoapState(state.count + 1, mu, nu, products, bases)

    return optax.GradientTransformation(init, update)


def _products(gradient: Float[Array, "L M N"]) -> Sides:
    def side(g: jax.Array) -> jax.Array | None:
        return None if g.shape[1] > LARGEST else _product(g, g.mT)

    return side(gradient), side(gradient.mT)


def _turned(x: Float[Array, "L M N"], bases: Sides) -> Float[Array, "L M N"]:
    """Q^T X R, in the bases Q of its inputs and R of its outputs."""
    inputs, outputs = bases
    x = x if inputs is None else _product(inputs.mT, x)
    return x if outputs is None else _product(x, outputs)


def _same(products: Any, bases: Any) -> Any:
    return bases


def _eigenbases(products: Any, bases: Any) -> Any:
    """From the largest eigenvalue on, to which a power iteration brings them anyhow."""
    return jax.tree.map(lambda product: jnp.linalg.eigh(product)[1][..., ::-1], products)


def _iterated(products: Any, bases: Any) -> Any:
    """One step of a power iteration."""
    return jax.tree.map(lambda p, basis: jnp.linalg.qr(_product(p, basis))[0], products, bases)
