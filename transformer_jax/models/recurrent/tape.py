"""The layer of an LSTMN, whose state is what it reads from a tape of all states before it."""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.observe import observe
from transformer_jax.models.recurrent.cells import CELLS, Multiply
from transformer_jax.models.recurrent.config import RecurrentConfig
from transformer_jax.models.recurrent.layers import (
    INWARD,
    VECTOR,
    XAVIER,
    each_gate,
    kernel,
    look,
    of_rows,
    orthogonal,
    vector,
)
from transformer_jax.models.recurrent.scan import Kernels, kernel_gradients, multiplier
from transformer_jax.models.stacks import Place


class States(NamedTuple):
    """States, and the keys by which they are found: one of each row, or slots of them."""

    keys: Float[Array, "N *S D"]
    hidden: Float[Array, "N *S D"]
    cells: Float[Array, "N *S D"]


class Tape(NamedTuple):
    """What an LSTMN remembers: its states, and what it read of them last."""

    slots: States
    read: Float[Array, "N D"]

    def write(self, new: States, read: Float[Array, "N D"], slot: Int[Array, ""]) -> "Tape":
        """With new states at this slot, and what was read for them."""

        def update(old: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(old, new[:, None], slot, axis=1)

        return Tape(jax.tree.map(update, self.slots, new), read)

    def enlarged(self, by: int) -> "Tape":
        """With room for so many states more."""
        slots = jax.tree.map(lambda x: jnp.pad(x, [(0, 0), (0, by), (0, 0)]), self.slots)
        return Tape(slots, self.read)


class Inputs(NamedTuple):
    """What a step knows without the tape: products with its input, and the slots that it sees."""

    products: Float[Array, "N G D"]
    queries: Float[Array, "N D"]
    first: Int[Array, "N"]
    end: Int[Array, "N"]


class Reader(nn.Module):
    """The LSTM of Cheng, Dong and Lapata (2016, 1601.06733, section 3.1).

    For an input x_t and all earlier states h_i, c_i of its text, with what was read a step before:

        a_i = v tanh(W_h h_i + W_x x_t + W_r r_(t-1)),  s = softmax(a),
        r_t = sum_i s_i h_i,  m_t = sum_i s_i c_i,

    and h_t, c_t are those of an LSTM whose state before was r_t, m_t. At the first token, which has
    nothing to read, these are 0.
    """

    config: RecurrentConfig

    def setup(self):
        row, width = CELLS["lstm"], self.config.d_model
        gates, self.dtype = len(row.bias), self.config.compute_dtype
        self.input = kernel(self, "input", INWARD, width, gates, width)
        self.bias = vector(self, "bias", gates, width, init=each_gate(row.bias))
        self.input_query = kernel(self, "input_query", XAVIER, width, width)
        self.query_bias = vector(self, "query_bias", width)
        self.kernels = {
            "recurrent": kernel(self, "recurrent", orthogonal, width, gates, width),
            "query": kernel(self, "query", XAVIER, width, width),
            "key": kernel(self, "key", XAVIER, width, width),
        }
        self.vector = vector(self, "vector", width, init=VECTOR, decay=True)

    def __call__(
        self, x: Float[Array, "B T D"], positions: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T D"], None, Tape]:
        """The hidden states of whole rows, and the tape that holds them.

        positions: of each token in its text; no token with one of 0 or less sees any state.
        """
        slots = jnp.broadcast_to(jnp.arange(x.shape[1])[None], positions.shape)
        inputs = self._inputs(x, slots - jnp.maximum(positions, 0), slots)
        inputs = jax.tree.map(lambda x: constrain(jnp.swapaxes(x, 0, 1), None, "batch"), inputs)
        tape = _record(dict(self.kernels), self.vector, inputs, self.dtype)
        if self.is_mutable_collection("intermediates"):
            weights = self._weights_of(tape.slots, inputs)
            observe(self, self_attention=weights[:, None])
        return tape.slots.hidden, None, tape

    def _weights_of(self, slots: States, inputs: Inputs) -> Float[Array, "N T S"]:
        """What each step looked at, from the states on the tape; the inputs have time in front."""
        multiply = multiplier(self.kernels, self.dtype)

        def step(read, x):
            weights = _weights(multiply, self.vector, Tape(slots, read), x)
            return jnp.einsum("NS,NSD->ND", weights, slots.hidden), weights

        start = jnp.zeros_like(slots.hidden[:, 0])
        return jnp.swapaxes(jax.lax.scan(step, start, inputs)[1], 0, 1)

    def step(
        self, x: Float[Array, "N D"], tape: Tape, place: Place, attended: None = None
    ) -> tuple[Float[Array, "N D"], None, Tape]:
        """The hidden state of a new input, and the tape with it."""
        del attended
        view, end = tape, jnp.broadcast_to(place.slot, x.shape[:1])
        if place.ancestors is not None:
            # What a hypothesis has read lies scattered over its text's rows.
            holders = place.holders(tape.slots.keys.shape[1])
            slots = jax.tree.map(lambda x: of_rows(x, holders), tape.slots)
            view = Tape(slots, of_rows(tape.read, place.parents()))
        inputs = self._inputs(x[:, None], place.first(x.shape[0])[:, None], end[:, None])
        inputs = jax.tree.map(lambda x: x[:, 0], inputs)
        new, read = _advance(multiplier(self.kernels, self.dtype), self.vector, view, inputs)
        return new.hidden, None, tape.write(new, read, place.slot)

    def empty(self, rows: int, room: int) -> Tape:
        """A tape with room for so many states."""
        return _empty(rows, room, self.config.d_model)

    def _inputs(
        self, x: Float[Array, "B T D"], first: Int[Array, "B T"], end: Int[Array, "B T"]
    ) -> Inputs:
        x = x.astype(self.dtype)
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        products = product("BTI,IGD->BTGD", x, self.input.astype(self.dtype))
        queries = product("BTI,ID->BTD", x, self.input_query.astype(self.dtype))
        bias, query_bias = self.bias[None, None], self.query_bias[None, None]
        return Inputs(products + bias, queries + query_bias, first, end)


def _empty(rows: int, length: int, width: int) -> Tape:
    def zeros(*size: int) -> Array:
        return jnp.zeros((rows, *size, width))

    return Tape(States(zeros(length), zeros(length), zeros(length)), zeros())


def _weights(
    multiply: Multiply, vector: Float[Array, "D"], tape: Tape, x: Inputs
) -> Float[Array, "N S"]:
    """Those of the slots from `x.first` to before `x.end`; all are 0 where there are none."""
    slots = jnp.arange(tape.slots.keys.shape[1])[None]
    mask: Bool[Array, "N S"] = (slots >= x.first[:, None]) & (slots < x.end[:, None])
    queries = x.queries + multiply("query", tape.read)
    return jnp.where(
        mask, look(queries[:, None], tape.slots.keys, vector, mask[:, None])[:, 0], 0.0
    )


def _advance(
    multiply: Multiply, vector: Float[Array, "D"], tape: Tape, x: Inputs
) -> tuple[States, Float[Array, "N D"]]:
    """The states of the step that sees the slots from `x.first` to before `x.end`, and what it
    read."""
    weights = _weights(multiply, vector, tape, x)
    read = jnp.einsum("NS,NSD->ND", weights, tape.slots.hidden)
    memory = jnp.einsum("NS,NSD->ND", weights, tape.slots.cells)
    hidden, cell = CELLS["lstm"].update(x.products, (read, memory), multiply, {})
    return States(multiply("key", hidden), hidden, cell), read


def _record(kernels: Kernels, vector: Float[Array, "D"], inputs: Inputs, dtype: jnp.dtype) -> Tape:
    """The tape after all steps; the inputs have time in front.

    The backward pass of a scan would keep the tape as it was before each step. But a step does not
    see what comes after it: so the last one does for all, and each step is computed again from it.
    """
    length, rows, _, width = inputs.products.shape

    @jax.custom_vjp
    def recorded(kernels, vector, inputs):
        return record(kernels, vector, inputs)[0]

    def record(kernels, vector, inputs):
        multiply = multiplier(kernels, dtype)

        def body(tape, slices):
            slot, x = slices
            return tape.write(*_advance(multiply, vector, tape, x), slot), tape.read

        return jax.lax.scan(body, _empty(rows, length, width), (jnp.arange(length), inputs))

    def forward(kernels, vector, inputs):
        tape, reads = record(kernels, vector, inputs)
        return tape, (kernels, vector, inputs, tape, reads)

    def backward(residuals, cotangent):
        kernels, vector, inputs, tape, reads = residuals
        times = multiplier(kernels, dtype)
        shift = {name: jnp.zeros((rows, *kernel.shape[1:])) for name, kernel in kernels.items()}

        def body(carry, slices):
            of_tape, of_vector = carry
            slot, x, read = slices

            def again(vector, tape, x, shift):
                rows = {}

                def multiply(name, x):
                    rows[name] = x.astype(dtype)
                    return times(name, x) + shift[name]

                return _advance(multiply, vector, tape, x), rows

            _, back, multiplied = jax.vjp(
                again, vector, tape._replace(read=read), x, shift, has_aux=True
            )
            # What later steps say of this one's states has been added up by now.
            of_states = jax.tree.map(lambda x: x[:, slot], of_tape.slots)
            to_vector, to_tape, of_x, of_products = back((of_states, of_tape.read))
            slots = jax.tree.map(jnp.add, of_tape.slots, to_tape.slots)
            carry = Tape(slots, to_tape.read), of_vector + to_vector
            return carry, (of_x[:2], of_products, multiplied)

        start = cotangent, jnp.zeros_like(vector)
        slices = jnp.arange(length), inputs, reads
        (_, of_vector), (of_inputs, of_products, multiplied) = jax.lax.scan(
            body, start, slices, reverse=True
        )
        of_kernels = kernel_gradients(multiplied, of_products, dtype)
        no_gradient = (np.zeros(x.shape, jax.dtypes.float0) for x in inputs[2:])
        return of_kernels, of_vector, Inputs(*of_inputs, *no_gradient)

    recorded.defvjp(forward, backward)
    return recorded(kernels, vector, inputs)
