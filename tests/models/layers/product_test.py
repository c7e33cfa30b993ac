"""The product of activations and a kernel: the einsum that it says, with JAX's gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.layers.product import kernel_first, product

FORMULAS = [
    ("BTD,DF->BTF", (5, 16, 4), (4, 5)),  # many rows
    ("BTD,DHK->BTHK", (2, 3, 4), (4, 2, 5)),
    ("BTHK,HKD->BTD", (2, 3, 4, 5), (4, 5, 6)),
    ("BTD,VD->BTV", (2, 3, 4), (7, 4)),
    ("BTI,IGD->TBGD", (2, 3, 4), (4, 2, 5)),
]


@pytest.mark.parametrize(
    ("dtype", "formula", "x_shape", "kernel_shape"),
    [*((jnp.float32, *row) for row in FORMULAS), (jnp.bfloat16, *FORMULAS[1])],
)
def test_value_and_gradients_are_those_of_an_einsum(dtype, formula, x_shape, kernel_shape):
    generator = np.random.default_rng(0)
    x, kernel = (jnp.asarray(generator.normal(size=s), dtype) for s in (x_shape, kernel_shape))
    einsum = functools.partial(jnp.einsum, formula, preferred_element_type=jnp.float32)
    tolerance = 1e-6 if dtype == jnp.float32 else 1e-2
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)

    expected, their_back = jax.vjp(einsum, x, kernel)
    value, our_back = jax.vjp(lambda x, kernel: product(formula, x, kernel, jnp.float32), x, kernel)
    weights = jnp.asarray(generator.normal(size=expected.shape), jnp.float32)

    np.testing.assert_array_equal(value, expected)
    close(kernel_first(formula, x, kernel, jnp.float32), expected)
    for ours, theirs in zip(our_back(weights), their_back(weights), strict=True):
        assert ours.dtype == theirs.dtype == dtype
        close(ours.astype(jnp.float32), theirs.astype(jnp.float32))


def test_the_gradient_can_be_derived_once_more():
    # As curvature is: forward over reverse.
    x, kernel = jax.random.normal(jax.random.key(0), (2, 3, 4)), jnp.eye(4)

    def gradient(product, kernel):
        return jax.grad(lambda kernel: jnp.sum(jnp.sin(product("BTD,DF->BTF", x, kernel))))(kernel)

    direction = (jax.random.normal(jax.random.key(1), kernel.shape),)
    ours, theirs = (
        jax.jvp(functools.partial(gradient, each), (kernel,), direction)[1]
        for each in (product, jnp.einsum)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_kernel_gradient_is_a_product_that_the_fast_kernel_takes():
    # XLA's fast kernel on a CPU wants the contracted axis last in one operand, first in the other.
    x, kernel = jnp.ones((8, 16, 32)), jnp.ones((32, 64))
    gradient = jax.grad(lambda kernel, x: jnp.sum(product("BTD,DF->BTF", x, kernel) ** 2))
    text = jax.jit(gradient).lower(kernel, x).compile().as_text()
    assert text is not None
    assert "lhs_contracting_dims={0}, rhs_contracting_dims={1}" not in text


def test_in_decoding_the_kernel_is_the_first_operand_of_few_rows():
    x, stored = jnp.ones((8, 1, 32)), jnp.ones((64, 32))
    multiply = jax.jit(lambda x, stored: kernel_first("BTD,DF->BTF", x, stored.T))
    assert "f32[64,8]{1,0} dot(" in str(multiply.lower(x, stored).compile().as_text())
