"""Single kernels of stacks, layer by layer: norms, ranks, and how steps and gradients lie to them.

Each function returns {path, as "decoder/feed_forward/up": a number for each layer}.
"""

import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.inspection.steps import is_kernel
from transformer_jax.models.family import Params, Role, parameter_name

_POWER_STEPS = 8
ByKernel = dict[str, Float[Array, "L"]]


def norms(tree: Params, roles: Mapping[str, Role]) -> ByKernel:
    """The Frobenius norm of each, of parameters, gradients or steps."""
    return _each(roles, lambda role, kernel: jnp.linalg.norm(kernel.ravel()), tree)


def stable_ranks(params: Params, roles: Mapping[str, Role]) -> ByKernel:
    """|W|_F^2 / |W|_2^2, of which the largest singular value comes from 8 power steps: a tenth too
    large or so where the first two are near each other, as those of a draw are."""

    def rank(role: Role, kernel: Float[Array, "..."]) -> Float[Array, ""]:
        inputs, _ = role.matrix or (1, 0)  # what decays and is no matrix has one row
        matrix = kernel.reshape(math.prod(kernel.shape[:inputs]), -1)

        def step(_, x: Float[Array, "O"]) -> Float[Array, "O"]:
            x = matrix.T @ (matrix @ x)
            return x / jnp.maximum(jnp.linalg.norm(x), 1e-30)

        start = jax.random.normal(jax.random.key(0), matrix.shape[1:])
        top = jax.lax.fori_loop(0, _POWER_STEPS, step, start)
        return jnp.sum(jnp.square(matrix)) / jnp.sum(jnp.square(matrix @ top))

    return _each(roles, rank, params)


def cosines(tree: Params, other: Params, roles: Mapping[str, Role]) -> ByKernel:
    """The cosine between two kernels, such as a step and a gradient; 0 where one is 0."""

    def cosine(role: Role, a: Array, b: Array) -> Float[Array, ""]:
        sizes = jnp.linalg.norm(a.ravel()) * jnp.linalg.norm(b.ravel())
        return jnp.sum(a * b) / jnp.maximum(sizes, 1e-30)

    return _each(roles, cosine, tree, other)


def _each(roles: Mapping[str, Role], measure: Callable[..., Array], *trees: Params) -> ByKernel:
    measured = {}
    for (path, leaf), *others in zip(
        jax.tree_util.tree_leaves_with_path(trees[0]), *map(jax.tree.leaves, trees[1:]), strict=True
    ):
        role = roles[name := parameter_name(path)]
        if is_kernel(role):
            measured[name] = jax.vmap(functools.partial(measure, role))(leaf, *others)
    return measured
