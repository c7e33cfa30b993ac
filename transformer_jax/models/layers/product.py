"""Products with kernels, as XLA multiplies them fastest, and a smooth bound of their results."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def product(
    formula: str, x: Float[Array, "*inputs"], kernel: Float[Array, "*kernel"], dtype: Any = None
) -> Float[Array, "*outputs"]:
    """An einsum of two operands, of which every letter stands in two of the three terms.

    JAX derives the kernel's gradient as the transpose of a product. XLA makes one product of the
    two, but on a CPU one that is not its fast kernel: it takes two to four times as long as the
    product whose output has the kernel's axes in their order, which is what stands here.

    Args:
      formula: as "BTD,DF->BTF".
      dtype: in which sums are accumulated and returned (None: that of the operands).
    """
    return _product(formula, dtype, x, kernel)  # pyright: ignore[reportReturnType] (JAX: object)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(formula: str, dtype: Any, x: Array, kernel: Array) -> Array:
    return jnp.einsum(formula, x, kernel, preferred_element_type=dtype)


def _forward(formula: str, dtype: Any, x: Array, kernel: Array) -> tuple[Array, Any]:
    # Not by `_product`, or curvature could not be derived forward over reverse.
    return jnp.einsum(formula, x, kernel, preferred_element_type=dtype), (x, kernel)


def _backward(formula: str, dtype: Any, operands: Any, gradient: Array) -> tuple[Array, Array]:
    x, kernel = operands
    of_x, of_kernel, of_output = formula.replace("->", ",").split(",")
    einsum = functools.partial(jnp.einsum, preferred_element_type=dtype)
    for_x = einsum(f"{of_output},{of_kernel}->{of_x}", gradient, kernel)
    for_kernel = einsum(f"{of_x},{of_output}->{of_kernel}", x, gradient)
    return for_x.astype(x.dtype), for_kernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)


def kernel_first(
    formula: str, x: Float[Array, "*inputs"], kernel: Float[Array, "*kernel"], dtype: Any = None
) -> Float[Array, "*outputs"]:
    """As `product`, to decode: by a kernel whose outputs are the first axes in memory.

    XLA's product on a CPU packs its second operand anew each time: a third of the time where the
    first one has 32 rows. Few rows are therefore the second operand, and the kernel is read as it
    lies.
    """
    of_x, of_kernel, of_output = formula.replace("->", ",").split(",")
    rows = "".join(letter for letter in of_output if letter in of_x)
    outputs = "".join(letter for letter in of_output if letter in of_kernel)
    if math.prod(x.shape[of_x.index(letter)] for letter in rows) > 64:  # no longer slower
        return product(formula, x, kernel, dtype)
    einsum = functools.partial(jnp.einsum, preferred_element_type=dtype)
    y = einsum(f"{of_kernel},{of_x}->{outputs}{rows}", kernel, x)
    # Or XLA would put x first again.
    y = jax.lax.platform_dependent(y, cpu=jax.lax.optimization_barrier, default=lambda y: y)
    return jnp.einsum(f"{outputs}{rows}->{of_output}", y)


def soft_cap(x: Float[Array, "*shape"], cap: float | None) -> Float[Array, "*shape"]:
    """c tanh(x / c), of which no size exceeds c (Gemma 2, 2408.00118, section 2); None: x."""
    return x if cap is None else cap * jnp.tanh(x / cap)
