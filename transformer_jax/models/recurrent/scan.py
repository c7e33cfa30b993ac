"""A scan over time whose kernels get their gradient from one product each, after it.

The backward pass of a plain scan adds to the gradient of each kernel at each step: it reads and
writes arrays of a kernel's size for a product of a few rows, and where devices share the rows, they
exchange it at each step. Here the steps only note what was multiplied, and how the loss depends on
each product; the gradient is one large product of the two.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.stack import REMAT, keep
from transformer_jax.models.recurrent.cells import Multiply

Kernels = Mapping[str, Float[Array, "D ..."]]
# (multiply, constants, carry, slice of the inputs) -> (carry, slice of the outputs)
StepFn = Callable[[Multiply, Any, Any, Any], tuple[Any, Any]]


def multiplier(kernels: Kernels, dtype: jnp.dtype) -> Multiply:
    """The function that multiplies by a kernel in this dtype; the results are float32."""
    # Whole on every device: a kernel that devices share would be gathered at each step.
    kernels = {name: constrain(kernel.astype(dtype)) for name, kernel in kernels.items()}

    def multiply(name: str, x: Float[Array, "N D"]) -> Array:
        return jnp.tensordot(x.astype(dtype), kernels[name], 1, preferred_element_type=jnp.float32)

    return multiply


def kernel_gradients(read: Kernels, of_products: Kernels, dtype: jnp.dtype) -> dict[str, Array]:
    """The gradient of each kernel, from all that it has multiplied and what the loss says of it."""
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    return {
        name: product("TBD,TB...->D...", rows, of_products[name].astype(dtype))
        for name, rows in read.items()
    }


def scan(
    step: StepFn,
    kernels: Kernels,
    constants: Any,
    carry: Any,
    inputs: Any,
    *,
    dtype: jnp.dtype,
    remat: str = "none",
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Repeats a step along the first axis of the inputs: the last carry, and the outputs.

    Args:
      step: it multiplies rows by each kernel at most once, and sees no array that is differentiated
        but by its arguments.
      constants: what all steps see.
      carry: arrays whose first axis counts the rows.
      dtype: of the products with kernels.
      remat: a key of `REMAT`; the products with kernels go by the name of "query".
    """
    rows, length = jax.tree.leaves(carry)[0].shape[0], jax.tree.leaves(inputs)[0].shape[0]

    def run(kernels, constants, carry, inputs, shifts):
        times = multiplier(kernels, dtype)

        def body(carry, slices):
            x, shift = slices
            read = {}

            def multiply(name, rows):
                read[name] = rows.astype(dtype)
                return keep(times(name, rows) + shift[name], "query")

            carry, y = step(multiply, constants, carry, x)
            return carry, (y, read)

        if (policy := REMAT[remat]) is not None:
            body = jax.checkpoint(body, policy=policy, prevent_cse=False)
        carry, (outputs, read) = jax.lax.scan(body, carry, (inputs, shifts), reverse=reverse)
        return (carry, outputs), read

    @jax.custom_vjp
    def scanned(kernels, constants, carry, inputs):
        return run(kernels, constants, carry, inputs, zeros(kernels))[0]

    def zeros(kernels):
        return {
            name: jnp.zeros((length, rows, *kernel.shape[1:])) for name, kernel in kernels.items()
        }

    def forward(kernels, constants, carry, inputs):
        function = functools.partial(run, kernels)
        result, back, read = jax.vjp(
            function, constants, carry, inputs, zeros(kernels), has_aux=True
        )
        return result, (back, read)

    def backward(residuals, cotangents):
        back, read = residuals
        *others, of_products = back(cotangents)
        return kernel_gradients(read, of_products, dtype), *others

    scanned.defvjp(forward, backward)
    return scanned(kernels, constants, carry, inputs)
