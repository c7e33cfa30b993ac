"""Steps from given parameters to others: random ones, those against a gradient, and training's.

They concern the kernels of the stacks' sublayers: the parameters of layers that weight decay
applies to. Embeddings and heads are not in a stack; biases, norms and omega are not kernels.
"""

import functools
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from transformer_jax.models.family import Params, Role, parameter_name


def random_sign_step(
    key: Key[Array, ""], params: Params, size: float, roles: Mapping[str, Role]
) -> Params:
    """W + size * sign(N(0, 1)) for all kernels.

    Every kernel has a key by its path, so that two schemes get the same draw on kernels that they
    share.
    """

    def move(name, kernel):
        own = jax.random.fold_in(key, np.uint32(zlib.crc32(name.encode())))
        return kernel + size * jax.random.rademacher(own, kernel.shape, kernel.dtype)

    return _map_kernels(move, roles, params)


def gradient_sign_step(
    gradient: Params, params: Params, size: float, roles: Mapping[str, Role]
) -> Params:
    """W - size * sign(gradient) for all kernels: a step like Adam's."""

    def move(_, kernel, gradient):
        return kernel - size * jnp.sign(gradient)

    return _map_kernels(move, roles, params, gradient)


class Update(NamedTuple):
    """What a step did to each layer of a stack, over all its kernels together.

    Attributes:
      ratio: |W' - W| / |W|.
      rms: the root mean square of W' - W.
      angle: between W and W', in radians.
    """

    ratio: Float[Array, "L"]
    rms: Float[Array, "L"]
    angle: Float[Array, "L"]


def update(before: Params, after: Params, roles: Mapping[str, Role]) -> dict[str, Update]:
    """What a step did, by stack."""
    changes = _kernels(jax.tree.map(jnp.subtract, after, before), roles)
    news = _kernels(after, roles)
    found = {}
    for stack, olds in _kernels(before, roles).items():
        change = jnp.sqrt(_products(changes[stack], changes[stack]))
        old, new = (jnp.sqrt(_products(x, x)) for x in (olds, news[stack]))
        count = sum(kernel[0].size for kernel in olds)
        # |u - u'| = 2 sin(angle / 2) for unit vectors: a cosine near 1 would be rounded away
        both = zip(olds, news[stack], strict=True)
        units = [a / _by_layer(old, a) - b / _by_layer(new, b) for a, b in both]
        angle = 2 * jnp.arcsin(jnp.minimum(jnp.sqrt(_products(units, units)) / 2, 1))
        found[stack] = Update(change / old, change / count**0.5, angle)
    return found


def _products(a: list[Array], b: list[Array]) -> Float[Array, "L"]:
    """Of each layer's kernels, the sum over all entries."""
    axes = [tuple(range(1, kernel.ndim)) for kernel in a]
    sums = [jnp.sum(x * y, axis=own) for x, y, own in zip(a, b, axes, strict=True)]
    return functools.reduce(jnp.add, sums)


def _by_layer(x: Float[Array, "L"], kernel: Array) -> Array:
    return x.reshape(-1, *[1] * (kernel.ndim - 1))


def _map_kernels(
    move: Callable[..., Array], roles: Mapping[str, Role], params: Params, *others: Params
) -> Params:
    """The parameters with move(path, kernel, ...) in the place of every kernel."""

    def moved(path, leaf, *rest):
        name = parameter_name(path)
        return move(name, leaf, *rest) if _is_kernel(roles[name]) else leaf

    return jax.tree_util.tree_map_with_path(moved, params, *others)


def _kernels(params: Params, roles: Mapping[str, Role]) -> dict[str, list[Array]]:
    """The kernels of each stack, in the order of their paths."""
    found: dict[str, list[Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if _is_kernel(roles[parameter_name(path)]):
            found.setdefault(path[0].key, []).append(leaf)
    return found


def _is_kernel(role: Role) -> bool:
    return role.stacked and role.decay
