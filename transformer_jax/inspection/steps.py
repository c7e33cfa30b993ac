"""Steps from given parameters to others: random ones, those against a gradient, and training's.

They concern the kernels of the stacks' sublayers: the parameters of layers that weight decay
applies to. Embeddings and heads are not in a stack; biases, norms and omega are not kernels.
"""

import zlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from transformer_jax.models.family import Role
from transformer_jax.models.transformer.shapes import Params


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


def update_ratio(
    before: Params, after: Params, roles: Mapping[str, Role]
) -> dict[str, Float[Array, "L"]]:
    """|W' - W| / |W| of each layer of each stack, over all its kernels together."""

    def norms(kernels):
        axes = [tuple(range(1, kernel.ndim)) for kernel in kernels]
        squares = [jnp.sum(jnp.square(k), axis=a) for k, a in zip(kernels, axes, strict=True)]
        return jnp.sqrt(sum(squares))

    update = _kernels(jax.tree.map(jnp.subtract, after, before), roles)
    return {
        stack: norms(update[stack]) / norms(kernels)
        for stack, kernels in _kernels(before, roles).items()
    }


def _map_kernels(
    move: Callable[..., Array], roles: Mapping[str, Role], params: Params, *others: Params
) -> Params:
    """The parameters with move(path, kernel, ...) in the place of every kernel."""

    def moved(path, leaf, *rest):
        name = _name(path)
        return move(name, leaf, *rest) if _is_kernel(roles[name]) else leaf

    return jax.tree_util.tree_map_with_path(moved, params, *others)


def _kernels(params: Params, roles: Mapping[str, Role]) -> dict[str, list[Array]]:
    """The kernels of each stack, in the order of their paths."""
    found: dict[str, list[Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if _is_kernel(roles[_name(path)]):
            found.setdefault(path[0].key, []).append(leaf)
    return found


def _is_kernel(role: Role) -> bool:
    return role.stacked and role.decay


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
