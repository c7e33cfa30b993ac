"""Recurrent layers over whole rows and step by step, one of which may look at an encoder's output.

What a step reads of the input is multiplied for all steps at once; only what depends on the state
is left to the scan over time.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.masks import MASKED
from transformer_jax.models.layers.observe import observe
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.layers.product import product
from transformer_jax.models.recurrent.cells import CELLS, Multiply, State
from transformer_jax.models.recurrent.config import RecurrentConfig
from transformer_jax.models.recurrent.scan import multiplier, scan
from transformer_jax.models.stacks import Place

_AXES = ("embed", "gates", "state")
INWARD = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", 0, 2, 1)
XAVIER = nn.initializers.xavier_uniform()
# Drawn as a kernel of A inputs and one output is.
VECTOR = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", 0, (), ())


class Attended(NamedTuple):
    """What a layer looks at: an encoder's output, and what a query meets of it."""

    keys: Float[Array, "B S A"]
    values: Float[Array, "B S C"]
    segments: Int[Array, "B S"]  # the example of each token; 0 is padding
    vector: Float[Array, "A"]  # what turns the sum of a query and a key into a score


def look(
    queries: Float[Array, "B Q A"],
    keys: Float[Array, "B S A"],
    vector: Float[Array, "A"],
    mask: Bool[Array, "#B #Q S"],
) -> Float[Array, "B Q S"]:
    """The weights of additive attention, softmax of v tanh(q + k) (Bahdanau et al. 2014, A.1.2)."""
    sums = jnp.tanh(queries.astype(keys.dtype)[:, :, None] + keys[:, None])
    vector = vector.astype(sums.dtype)
    scores = jnp.einsum("BQSA,A->BQS", sums, vector, preferred_element_type=jnp.float32)
    return jax.nn.softmax(jnp.where(mask, scores, MASKED))


def orthogonal(key: Any, shape: tuple[int, ...]) -> Float[Array, "D G E"]:
    """The kernel of each gate drawn as an orthogonal matrix of its own (Saxe et al. 2013)."""
    draw = nn.initializers.orthogonal()
    kernels = [draw(subkey, (shape[0], shape[2])) for subkey in jax.random.split(key, shape[1])]
    return jnp.stack(kernels, axis=1)


def kernel(module: nn.Module, name: str, init: Any, *size: int) -> Float[Array, "I *G D"]:
    """A parameter that multiplies: by inputs, by the gates of the product if any, and by states."""
    axes = _AXES if len(size) > 2 else _AXES[::2]
    return parameter(module, name, init, size, axes, matrix=(1, len(size) - 1))


def vector(
    module: nn.Module, name: str, *size: int, init: Any = nn.initializers.zeros, decay: bool = False
) -> Float[Array, "*G D"]:
    """A parameter that is added, or by which scores are made: by gates, if any, and by states."""
    return parameter(module, name, init, size, _AXES[-len(size) :], decay=decay)


class Recurrent(nn.Module):
    """One recurrent layer, in one direction.

    Attributes:
      inputs: the width of its input.
      width: the width of its state.
      attended: the width of what it looks at; None: nothing. Its query is the state before a step,
        and what it finds is an input of this step (Bahdanau et al. 2014, equations 5 and 6).
    """

    config: RecurrentConfig
    inputs: int
    width: int
    attended: int | None = None

    def setup(self):
        row, width = CELLS[self.config.row.cell], self.width
        self.cell, self.dtype = row, self.config.compute_dtype
        gates = len(row.bias)
        self.input = kernel(self, "input", INWARD, self.inputs, gates, width)
        self.bias = vector(self, "bias", gates, width, init=each_gate(row.bias))
        kernels = {
            name: kernel(self, name, orthogonal, width, count, width)
            for name, count in row.kernels.items()
        }
        self.vectors = {name: vector(self, name, width) for name in row.vectors}
        if self.attended is not None:
            kernels["context"] = kernel(self, "context", INWARD, self.attended, gates, width)
            kernels["query"] = kernel(self, "query", XAVIER, width, width)
            self.key = kernel(self, "key", XAVIER, self.attended, width)
            self.key_bias = vector(self, "key_bias", width)
            self.vector = vector(self, "vector", width, init=VECTOR, decay=True)
        self.kernels = kernels

    def attend_to(self, x: Float[Array, "B S C"], segments: Int[Array, "B S"]) -> Attended:
        """What this layer looks at, made once for all steps."""
        keys = jnp.einsum("BSC,CA->BSA", x.astype(self.dtype), self.key.astype(self.dtype))
        keys = keys + self.key_bias.astype(self.dtype)[None, None]
        return Attended(keys, x.astype(self.dtype), segments, self.vector)

    def __call__(
        self,
        x: Float[Array, "B T I"],
        starts: Bool[Array, "B T"],
        *,
        before: State | None = None,
        initial: Float[Array, "B T D"] | None = None,
        attended: Attended | None = None,
        segments: Int[Array, "B T"] | None = None,
        reverse: bool = False,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T C"] | None, State]:
        """The states of whole rows, what each step found in what it looked at, and the last state.

        Args:
          starts: where a text begins (with `reverse`: where it ends), and so the state anew.
          before: the state before each row; None: zeros.
          initial: the state where it is anew, as each step has it; None: zeros.
          attended: what is looked at; None: nothing.
          segments: the example of it that each step sees.
        """
        inputs = {"products": self._products(x, "BTI,IGD->TBGD"), "starts": starts.T}
        inputs["products"] = constrain(inputs["products"], None, "batch")
        if initial is not None:
            inputs["initial"] = constrain(jnp.swapaxes(initial, 0, 1), None, "batch")
        if attended is not None:
            assert segments is not None
            inputs["segments"] = segments.T
        observing = attended is not None and self.is_mutable_collection("intermediates")

        def step(multiply, constants, state, x):
            vectors, attended = constants
            anew = [jnp.zeros_like(part) for part in state]
            anew[0] = x.get("initial", anew[0])
            start, mask = x["starts"][:, None], None
            state = tuple(jnp.where(start, a, b) for a, b in zip(anew, state, strict=True))
            if attended is not None:
                mask = (attended.segments == x["segments"][:, None]) & (attended.segments > 0)
            state, context, weights = self._advance(
                multiply, vectors, x["products"], state, attended, mask
            )
            return state, (state[0], context, weights if observing else None)

        last, outputs = scan(
            step,
            dict(self.kernels),
            (dict(self.vectors), attended),
            self.empty(x.shape[0]) if before is None else before,
            inputs,
            dtype=self.dtype,
            remat=self.config.remat,
            reverse=reverse,
        )
        states, contexts, weights = jax.tree.map(
            lambda x: constrain(jnp.swapaxes(x, 0, 1), "batch"), outputs
        )
        if observing:
            observe(self, cross_attention=jnp.swapaxes(weights, 1, 2))
        return states, contexts, last

    def step(
        self, x: Float[Array, "N I"], state: State, place: Place, attended: Attended | None = None
    ) -> tuple[Float[Array, "N D"], Float[Array, "N C"] | None, State]:
        """The output for a new input, what it found in what it looked at, and the state after it.

        Each row looks at its text's row of `attended`.
        """
        if place.ancestors is not None:
            state = tuple(of_rows(part, place.parents()) for part in state)
        mask = None if attended is None else attended.segments > 0
        products = self._products(x, "NI,IGD->NGD")
        multiply = multiplier(self.kernels, self.dtype)
        state, context, _ = self._advance(multiply, self.vectors, products, state, attended, mask)
        return state[0], context, state

    def empty(self, rows: int, room: int = 0) -> State:
        """The state before anything is read, which needs no room for what will be."""
        del room
        return tuple(jnp.zeros((rows, self.width)) for _ in range(self.cell.states))

    def _products(self, x: Array, formula: str) -> Array:
        x, kernel = x.astype(self.dtype), self.input.astype(self.dtype)
        products = product(formula, x, kernel, jnp.float32)
        return products + jnp.expand_dims(self.bias, range(products.ndim - 2))

    def _advance(
        self,
        multiply: Multiply,
        vectors: Mapping[str, Array],
        products: Float[Array, "N G D"],
        state: State,
        attended: Attended | None,
        mask: Bool[Array, "B S"] | None,
    ) -> tuple[State, Float[Array, "N C"] | None, Float[Array, "B Q S"] | None]:
        """The next state, what was found, and the weights by which it was."""
        context = weights = None
        if attended is not None:
            assert mask is not None
            queries = multiply("query", state[0])
            queries = queries.reshape(attended.keys.shape[0], -1, queries.shape[-1])
            weights = look(queries, attended.keys, attended.vector, mask[:, None])
            context = jnp.einsum("BQS,BSC->BQC", weights.astype(self.dtype), attended.values)
            context = context.reshape(-1, context.shape[-1])
            products = products + multiply("context", context)
        return self.cell.update(products, state, multiply, vectors), context, weights


class Bidirectional(nn.Module):
    """Two layers over the same input, one from each end: their states side by side."""

    config: RecurrentConfig
    inputs: int
    width: int

    def setup(self):
        self.forward = Recurrent(self.config, self.inputs, self.width)
        self.backward = Recurrent(self.config, self.inputs, self.width)

    def __call__(
        self, x: Float[Array, "B T I"], starts: Bool[Array, "B T"], ends: Bool[Array, "B T"]
    ) -> Float[Array, "B T two_D"]:
        """starts, ends: the first and the last token of each text."""
        forward, *_ = self.forward(x, starts)
        backward, *_ = self.backward(x, ends, reverse=True)
        return jnp.concatenate([forward, backward], axis=-1)


def each_gate(values: tuple[float, ...]) -> nn.initializers.Initializer:
    """Initialises the bias of each gate with a number of its own."""
    return lambda key, shape, *_: jnp.broadcast_to(jnp.asarray(values)[:, None], shape)


def of_rows(x: Float[Array, "N ..."], rows: Int[Array, "B K ..."]) -> Array:
    """What stands in these rows of each text, counted from 0."""
    by_text = x.reshape(*rows.shape[:2], *x.shape[1:])
    return jnp.take_along_axis(by_text, rows[..., None], axis=1).reshape(x.shape)
