"""The kernels of stacks' sublayers, layer by layer: norms, ranks, and what steps do to them.

They are the parameters of layers that weight decay applies to. Embeddings and heads are not in a
stack; biases, norms and omega are not kernels.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.family import Params, Role, parameter_name

_POWER_STEPS = 8
# path, as "decoder/feed_forward/up" -> a number for each layer
ByKernel = dict[str, Float[Array, "L"]]


class Update(NamedTuple):
    """What a step did to each layer of a stack, over all its kernels together."""

    ratio: Float[Array, "L"]  # |W' - W| / |W|
    rms: Float[Array, "L"]  # the root mean square of W' - W
    angle: Float[Array, "L"]  # between W and W', in radians


def update(before: Params, after: Params, roles: Mapping[str, Role]) -> dict[str, Update]:
    """What a step did, by stack."""
    pairs: dict[str, list[list[Array]]] = {}
    for path, _, pair in _kernels(roles, before, after):
        stack, _, _ = path.partition("/")
        pairs.setdefault(stack, []).append(pair)
    return {stack: _update(rows) for stack, rows in pairs.items()}


def _update(pairs: Sequence[list[Array]]) -> Update:
    old, new = map(_norm, zip(*pairs, strict=True))
    change = _norm([b - a for a, b in pairs])
    count = sum(a[0].size for a, _ in pairs)
    # |u - u'| = 2 sin(angle / 2) for unit vectors: a cosine near 1 would be rounded away
    units = [a / _by_layer(old, a) - b / _by_layer(new, b) for a, b in pairs]
    angle = 2 * jnp.arcsin(jnp.minimum(_norm(units) / 2, 1))
    return Update(change / old, change / count**0.5, angle)


def _norm(kernels: Sequence[Array]) -> Float[Array, "L"]:
    """The Frobenius norm of each layer's kernels together."""
    squares = [jnp.sum(x * x, axis=tuple(range(1, x.ndim))) for x in kernels]
    return jnp.sqrt(functools.reduce(jnp.add, squares))


def _by_layer(x: Float[Array, "L"], kernel: Array) -> Array:
    return x.reshape(-1, *[1] * (kernel.ndim - 1))


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
    return {
        path: jax.vmap(functools.partial(measure, role))(*kernels)
        for path, role, kernels in _kernels(roles, *trees)
    }


def _kernels(roles: Mapping[str, Role], *trees: Params) -> Iterator[tuple[str, Role, list[Array]]]:
    """The path and the role of each kernel, and what it is in each of the trees."""
    first, *rest = trees
    leaves = jax.tree_util.tree_leaves_with_path(first)
    for (path, leaf), *others in zip(leaves, *map(jax.tree.leaves, rest), strict=True):
        role = roles[name := parameter_name(path)]
        if is_kernel(role):
            yield name, role, [leaf, *others]


def is_kernel(role: Role) -> bool:
    """Whether a parameter is a kernel of a stack's sublayers."""
    return role.stacked and role.decay
