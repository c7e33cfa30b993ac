"""What a step did to the kernels of the stacks' sublayers.

They are the parameters of layers that weight decay applies to. Embeddings and heads are not in a
stack; biases, norms and omega are not kernels.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.family import Params, Role, parameter_name


class Update(NamedTuple):
    """What a step did to each layer of a stack, over all its kernels together."""

    ratio: Float[Array, "L"]  # |W' - W| / |W|
    rms: Float[Array, "L"]  # the root mean square of W' - W
    angle: Float[Array, "L"]  # between W and W', in radians


def update(before: Params, after: Params, roles: Mapping[str, Role]) -> dict[str, Update]:
    """What a step did, by stack."""
    changes = _kernels(jax.tree.map(jnp.subtract, after, before), roles)
    news = _kernels(after, roles)
    updates = {}
    for stack, olds in _kernels(before, roles).items():
        change = jnp.sqrt(_products(changes[stack], changes[stack]))
        old, new = (jnp.sqrt(_products(x, x)) for x in (olds, news[stack]))
        count = sum(kernel[0].size for kernel in olds)
        # |u - u'| = 2 sin(angle / 2) for unit vectors: a cosine near 1 would be rounded away
        both = zip(olds, news[stack], strict=True)
        units = [a / _by_layer(old, a) - b / _by_layer(new, b) for a, b in both]
        angle = 2 * jnp.arcsin(jnp.minimum(jnp.sqrt(_products(units, units)) / 2, 1))
        updates[stack] = Update(change / old, change / count**0.5, angle)
    return updates


def _products(a: list[Array], b: list[Array]) -> Float[Array, "L"]:
    """The sum of the products of all entries of each layer's kernels."""
    axes = [tuple(range(1, kernel.ndim)) for kernel in a]
    sums = [jnp.sum(x * y, axis=axis) for x, y, axis in zip(a, b, axes, strict=True)]
    return functools.reduce(jnp.add, sums)


def _by_layer(x: Float[Array, "L"], kernel: Array) -> Array:
    return x.reshape(-1, *[1] * (kernel.ndim - 1))


def _kernels(params: Params, roles: Mapping[str, Role]) -> dict[str, list[Array]]:
    """The kernels of each stack, in the order of their paths."""
    kernels: dict[str, list[Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if is_kernel(roles[parameter_name(path)]):
            kernels.setdefault(path[0].key, []).append(leaf)
    return kernels


def is_kernel(role: Role) -> bool:
    """Whether a parameter is a kernel of a stack's sublayers."""
    return role.stacked and role.decay
