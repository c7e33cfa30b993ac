"""The cells: what a step makes of the state before it and of a new input."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# (name of a kernel, what it multiplies (N, D)) -> the product (N, ...)
Multiply = Callable[[str, Array], Array]
# The arrays that a cell passes on, its output first
State = tuple[Float[Array, "N D"], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One row.

    Attributes:
      bias: what the bias of each gate starts from, so one number for each gate of the input.
      kernels: the gates of each kernel that multiplies the state.
      vectors: further biases of the size of a state.
      states: how many arrays a state has.
      update: (input times its kernel plus bias (N, gates, D), state, multiply, vectors) -> state.
    """

    bias: tuple[float, ...]
    kernels: Mapping[str, int]
    vectors: tuple[str, ...] = ()
    states: int = 1
    update: Callable[[Any, State, Multiply, Mapping[str, Any]], State]


def _lstm(x, state, multiply, vectors):
    h, c = state
    i, f, g, o = _gates(x + multiply("recurrent", h))
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru(x, state, multiply, vectors):
    (h,) = state
    x_r, x_z, x_n = _gates(x)
    h_r, h_z, h_n = _gates(multiply("recurrent", h))
    bias = vectors["candidate_bias"][None]
    candidate = jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * (h_n + bias))
    z = jax.nn.sigmoid(x_z + h_z)
    return ((1 - z) * candidate + z * h,)


def _gru_reset_first(x, state, multiply, vectors):
    (h,) = state
    x_r, x_z, x_n = _gates(x)
    h_r, h_z = _gates(multiply("recurrent", h))
    reset = jax.nn.sigmoid(x_r + h_r) * h
    candidate = jnp.tanh(x_n + _gates(multiply("candidate", reset))[0])
    z = jax.nn.sigmoid(x_z + h_z)
    return ((1 - z) * h + z * candidate,)


def _gates(x: Float[Array, "N G D"]) -> list[Float[Array, "N D"]]:
    return [x[:, gate] for gate in range(x.shape[1])]


CELLS = {
    # Input, forget, candidate, output (Gers et al. 2000); the forget gate is open at first
    # (Jozefowicz et al. 2015, section 2.2)
    "lstm": Cell(bias=(0.0, 1.0, 0.0, 0.0), kernels={"recurrent": 4}, states=2, update=_lstm),
    # Reset, update, candidate. The reset gate applies after the product with the state, so that all
    # gates are one product (cuDNN's and PyTorch's)
    "gru": Cell(
        bias=(0.0, 0.0, 0.0),
        kernels={"recurrent": 3},
        vectors=("candidate_bias",),
        update=_gru,
    ),
    # The reset gate applies before it (Cho et al. 2014, 1406.1078, section 2.3)
    "gru_reset_first": Cell(
        bias=(0.0, 0.0, 0.0),
        kernels={"recurrent": 2, "candidate": 1},
        update=_gru_reset_first,
    ),
}
