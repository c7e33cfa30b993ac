"""Multi-head attention, self and cross, from projections of our own."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.attention_weights import ATTENTION_GATES, ATTENTION_WEIGHTS
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.layers.masks import MASKED, Segments
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.observe import observe
from transformer_jax.models.layers.parameter import parameter, times
from transformer_jax.models.layers.positions import Distances, Rotation, rotate, skew
from transformer_jax.models.layers.product import product, soft_cap
from transformer_jax.models.layers.stack import keep

_products = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
_OUTWARD = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", (0, 1), 2)


class AdditiveScore(nn.Module):
    """v tanh(q + k) of each query and key (Bahdanau et al. 2014, 1409.0473, appendix A.1.2)."""

    @nn.compact
    def __call__(
        self, queries: Float[Array, "B T H K"], keys: Float[Array, "B S H K"]
    ) -> Float[Array, "B H T S"]:
        # Drawn as a kernel of K inputs and one output is.
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", 1, (), 0)
        size, axes = keys.shape[-2:], ("heads", "head_dim")
        vector = parameter(self, "vector", init, size, axes, decay=True, role="vector")
        sums = jnp.tanh(queries[:, :, None] + keys[:, None])
        vector = vector.astype(sums.dtype)
        return jnp.einsum("BTSHK,HK->BHTS", sums, vector, preferred_element_type=jnp.float32)


class Score(NamedTuple):
    """How a query and a key meet.

    scaled: whether queries are divided by the root of the head size. module: gives the scores;
    None: they are products.
    """

    scaled: bool = False
    module: type[nn.Module] | None = None


SCORES = {
    "scaled_dot_product": Score(scaled=True),
    "dot_product": Score(),
    "additive": Score(module=AdditiveScore),
}


# What a norm of queries and keys is over: each head, or all heads of a token. The axes' names.
QK_NORMS = {"head": "head_dim", "heads": "heads"}


class Biases(NamedTuple):
    """Which products have a bias: those of queries and values, of keys, and of the outputs."""

    inward: bool = False
    keys: bool = False
    outward: bool = False


ATTENTION_BIASES = {
    "all": Biases(inward=True, keys=True, outward=True),
    "inward": Biases(inward=True, keys=True),
    "outward": Biases(outward=True),
    "none": Biases(),
}


def biases_of(name: str | None, bias: bool) -> Biases:
    """Those of a row of `ATTENTION_BIASES`; None: where `bias` has them, not of keys."""
    return Biases(inward=bias, outward=bias) if name is None else ATTENTION_BIASES[name]


class Offsets(NamedTuple):
    """Vectors that say where tokens stand, for attention alone: values are made without them.

    They are added to what queries, and to what keys are made from (Carion et al. 2020, 2005.12872,
    appendix A.3).
    """

    queries: Float[Array, "B T D"]
    keys: Float[Array, "B S D"]


class Slots(NamedTuple):
    """Keys and values of one layer in the order in which a step reads them: no copy is made.

    G of them serve H queries, H / G adjacent ones each.
    """

    keys: Float[Array, "B G K S"]
    values: Float[Array, "B G S K"]

    def write(self, new: "Slots", slot: Int[Array, ""]) -> "Slots":
        """These, with the new ones from `slot` on."""
        update = jax.lax.dynamic_update_slice_in_dim
        keys = update(self.keys, new.keys, slot, axis=3)
        values = update(self.values, new.values, slot, axis=2)
        return Slots(constrain(keys, "batch", "heads"), constrain(values, "batch", "heads"))

    def enlarged(self, by: int) -> "Slots":
        """With so many slots more."""
        keys = jnp.pad(self.keys, [(0, 0), (0, 0), (0, 0), (0, by)])
        return Slots(keys, jnp.pad(self.values, [(0, 0), (0, 0), (0, by), (0, 0)]))


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(K)) V (Vaswani et al. 2017, equation 1), H heads at once.

    Keys and values are made by `keys_values`, so that self-attention, cross-attention and cached
    decoding are one path. Kernels are Xavier uniform over the true (D, H K) matrices, those inward
    times `attention_gain`. Keys have no bias unless `biases` says so: the softmax cancels it where
    they are neither turned nor normalised.

    Attributes:
      config: a `TransformerConfig`. Of `num_kv_heads` keys and values each serves as many adjacent
        queries (Ainslie et al. 2023, 2305.13245); with `qk_norm` each head's queries and keys are
        normalised before they meet (Dehghani et al. 2023, 2302.05442, section 2), or those of all
        heads at once (OLMo 2); `attention_weights` may stand in for the softmax, and
        `attention_gate` multiplies what the heads found.
      distances: whether scores have a part by distance, and so a kernel W of their vectors.
      inner_norm: the heads' outputs are normalised before they are projected.
      product: what multiplies by kernels, `product` or, to decode, `kernel_first`.
      biases: as of `biases_of`.
      qkv_norm: queries, keys and values are normalised, whatever `qk_norm` says.
    """

    config: Any
    distances: bool = False
    inner_norm: bool = False
    product: Callable[..., Any] = product
    biases: str | None = None
    qkv_norm: bool = False

    def setup(self):
        config, zeros = self.config, nn.initializers.zeros
        size = (config.d_model, config.num_heads, config.head_dim)
        kv_size = (config.d_model, config.kv_heads, config.head_dim)
        axes = ("embed", "heads", "head_dim")
        gain = config.attention_gain**2
        inward = nn.initializers.variance_scaling(gain, "fan_avg", "uniform", 0, (1, 2))

        def kernel(name, size, axes=axes, init=inward, drawn=True):
            matrix = 1, len(axes) - 1
            more = {"matrix": matrix, "role": "hidden", "drawn": drawn}
            return times(config.multipliers.hidden, parameter(self, name, init, size, axes, **more))

        biases = biases_of(self.biases, config.bias)

        def bias(there, name, size, axes, drawn=True):
            more = {"role": "vector", "drawn": drawn}
            return parameter(self, name, zeros, size, axes, **more) if there else None

        self.query = kernel("query", size)
        self.query_bias = bias(biases.inward, "query_bias", size[1:], axes[1:])
        self.key = kernel("key", kv_size)
        self.value = kernel("value", kv_size)
        if self.distances:
            self.distance = kernel("distance", size)
        self.value_bias = bias(biases.inward, "value_bias", kv_size[1:], axes[1:])
        outward = (*size[1:], size[0]), (*axes[1:], axes[0])
        output = parameter(self, "output", _OUTWARD, *outward, matrix=(2, 1), role="hidden")
        self.output = times(config.multipliers.hidden, output)
        self.output_bias = bias(biases.outward, "output_bias", size[:1], axes[:1])
        self.key_bias = bias(biases.keys, "key_bias", kv_size[1:], axes[1:], drawn=False)
        self.weighing = ATTENTION_WEIGHTS[config.attention_weights]
        self.sink = bias(self.weighing.trained, "sink", size[1:2], axes[1:2], drawn=False)
        self.gated = ATTENTION_GATES[config.attention_gate]
        gate = slice(1 + len(self.gated))
        size, axes = size[gate], axes[gate]
        self.gate = kernel("gate", size, axes, zeros, drawn=False) if self.gated else None
        self.dropout = Dropout(config.attention_dropout_rate)
        self.dtype, self.score = config.compute_dtype, SCORES[config.attention_score]
        norm = functools.partial(Norm, config.norm, config.norm_epsilon)
        if self.score.module:
            self.scores = self.score.module(name="score")
        axis = QK_NORMS[config.qk_norm_over]
        normed = config.qk_norm or self.qkv_norm
        self.query_norm = norm(axis=axis, bias=False) if normed else None
        self.key_norm = norm(axis=axis, bias=False) if normed else None
        self.value_norm = norm(axis=axis, bias=False) if self.qkv_norm else None
        self.norm_of_heads = norm(axis="heads", name="inner_norm") if self.inner_norm else None

    def keys_values(
        self,
        x: Float[Array, "B S D"],
        rotation: Rotation | None = None,
        offsets: Float[Array, "B S D"] | None = None,
    ) -> tuple[Float[Array, "B S G K"], Float[Array, "B S G K"]]:
        """What queries will look at, in the compute dtype; keys are turned by their positions.

        offsets: what is added to x before keys are made of it.
        """
        inputs = x.astype(self.dtype)
        placed = inputs if offsets is None else (x + offsets).astype(self.dtype)
        keys = rotate(self._inward(placed, self.key, self.key_bias, self.key_norm), rotation)
        values = self._inward(inputs, self.value, self.value_bias, self.value_norm)
        # Whole rows, since every query may look at every key.
        keys, values = (constrain(x, "batch", None, "heads") for x in (keys, values))
        return keep(keys, "key"), keep(values, "value")

    def __call__(
        self,
        x: Float[Array, "B T D"],
        source: Float[Array, "B S D"],
        mask: Bool[Array, "#B #T S"] | Segments,
        rotation: Rotation | None = None,
        bias: Float[Array, "1 H T S"] | Distances | None = None,
        offsets: Offsets | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B T D"]:
        """Attends from x to the source, x itself or another. Softmax in float32.

        Args:
          mask: True where a query sees a key; or the segments that this follows from. A kernel that
            reads these shows nothing to diagnostics.
          rotation: of queries and keys, where positions are rotary.
          bias: what is added to the scores, or what it follows from, where positions are relative.
          offsets: where positions are added here, and not to what enters the stack.
        """
        keys_values = self.keys_values(source, rotation, offsets and offsets.keys)
        queries = self._queries(x if offsets is None else x + offsets.queries, rotation)
        weights = functools.partial(self._weights, bias=bias, deterministic=deterministic)
        keys, values = map(self._for_queries, keys_values)
        observe(self, values=values)
        kernel = KERNELS[self.config.attention_kernel]
        if isinstance(mask, Segments) and not kernel.reads_segments:
            mask = mask.pairs()
        heads = kernel.attend(queries, keys, values, mask, weights, self.config.attention_softcap)
        return self._outputs(constrain(heads, "batch", "length", "heads"), x)

    def cached(
        self,
        x: Float[Array, "B T D"],
        cache: Slots,
        mask: Bool[Array, "#B #Q S"],
        rotation: Rotation | None = None,
        bias: Float[Array, "1 H T S"] | Distances | None = None,
        *,
        hypotheses: int = 1,
    ) -> Float[Array, "B T D"]:
        """Attends from x to what `slots` made, without dropout.

        Args:
          mask: True where a query sees a slot of a row. Of several hypotheses, in adjacent rows,
            each sees slots of any of their rows, so a row has the queries of all (Q = hypotheses *
            T, and Q = T where there is one).
        """
        queries = self._queries(x, rotation)
        queries, bias = self._by_distance(queries, bias, cache.keys.shape[-1])
        if hypotheses > 1:
            queries = _of_all(queries, hypotheses)
            if bias is not None:
                bias = jnp.broadcast_to(bias, (x.shape[0], *bias.shape[1:]))
                bias = jnp.swapaxes(_of_all(jnp.swapaxes(bias, 1, 2), hypotheses), 1, 2)
        # Those that a key serves side by side, so that no key is copied for each of them
        grouped = (cache.keys.shape[1], self.config.num_heads // cache.keys.shape[1])
        if self.score.module:
            keys = jnp.transpose(cache.keys, (0, 3, 1, 2))
            scores = self.scores(queries, self._for_queries(keys))
        else:
            by_key = queries.reshape(*queries.shape[:2], *grouped, self.config.head_dim)
            # Groups first: XLA has no product of bfloat16 on CPU that transposes by itself.
            by_key = jnp.transpose(by_key, (0, 2, 3, 1, 4))
            scores = _products("BGRTK,BGKS->BGRTS", by_key, cache.keys)
            scores = scores.reshape(scores.shape[0], self.config.num_heads, *scores.shape[3:])
        if bias is not None:
            scores = scores + bias
        scores = soft_cap(scores, self.config.attention_softcap)
        logits = jnp.where(mask[:, None], scores, MASKED)
        # Over the slots of all rows of a sentence at once
        by_sentence = logits.reshape(-1, hypotheses, *logits.shape[1:])
        weights = self.weighing(by_sentence, self.sink, (1, -1)).reshape(logits.shape)
        weights = weights.astype(self.dtype)
        weights = weights.reshape(weights.shape[0], *grouped, *weights.shape[2:])
        heads = jnp.einsum("BGRTS,BGSK->BGRTK", weights, cache.values)
        heads = heads.reshape(heads.shape[0], self.config.num_heads, *heads.shape[3:])
        if hypotheses > 1:
            heads = jnp.sum(heads.reshape(-1, hypotheses, *heads.shape[1:]), axis=1)
        heads = jnp.swapaxes(heads, 1, 2).reshape(*x.shape[:2], *queries.shape[2:])
        return self._outputs(heads, x)

    def slots(self, x: Float[Array, "B S D"], rotation: Rotation | None = None) -> Slots:
        """What `keys_values` makes, laid out as `cached` reads it."""
        keys, values = self.keys_values(x, rotation)
        return Slots(jnp.transpose(keys, (0, 2, 3, 1)), jnp.swapaxes(values, 1, 2))

    def _for_queries(self, x: Float[Array, "B S G K"]) -> Float[Array, "B S H K"]:
        """Keys or values, each for all queries that it serves."""
        times = self.config.num_heads // x.shape[2]
        return x if times == 1 else constrain(jnp.repeat(x, times, axis=2), "batch", None, "heads")

    def _inward(self, x: Array, kernel: Array, bias: Array | None, norm: Norm | None) -> Array:
        """x W + b of each head (B, T, H, K), normalised if there is a norm."""
        heads = self.product("BTD,DHK->BTHK", x, kernel.astype(self.dtype))
        if bias is not None:
            heads = heads + bias.astype(self.dtype)[None, None]
        return _normed(norm, heads)

    def _queries(
        self, x: Float[Array, "B T D"], rotation: Rotation | None
    ) -> Float[Array, "B T H K"]:
        x = x.astype(self.dtype)
        queries = self._inward(x, self.query, self.query_bias, self.query_norm)
        queries = constrain(rotate(queries, rotation), "batch", "length", "heads")
        if self.score.scaled:
            queries = queries * self.config.head_dim**-0.5
        return keep(queries, "query")

    def _outputs(
        self, heads: Float[Array, "B T H K"], x: Float[Array, "B T D"]
    ) -> Float[Array, "B T D"]:
        """What a sublayer adds, of its heads and its input."""
        dtype = self.dtype
        heads = _normed(self.norm_of_heads, heads)
        if self.gate is not None:
            formula = f"BTD,D{self.gated}->BT{self.gated}"
            gate = keep(self.product(formula, x.astype(dtype), self.gate.astype(dtype)), "gate")
            gate = constrain(gate.reshape(*gate.shape[:3], -1), "batch", "length", "heads")
            heads = heads * jax.nn.sigmoid(gate)
        output = self.output.astype(dtype)
        out = self.product("BTHK,HKD->BTD", heads, output, jnp.float32)
        return out if self.output_bias is None else out + self.output_bias[None, None]

    def _by_distance(
        self,
        queries: Float[Array, "B T H K"],
        bias: Float[Array, "1 H T S"] | Distances | None,
        num_keys: int,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "#B H T S"] | None]:
        """The queries that meet the keys, and what is added to their scores."""
        if not isinstance(bias, Distances):
            return queries, bias
        dtype, length = self.dtype, queries.shape[1]
        scale = self.config.head_dim**-0.5 if self.score.scaled else 1.0
        u, v = (scale * x.astype(dtype)[None, None] for x in (bias.content, bias.distance))
        # Whether W meets R or the queries first is einsum's choice: what costs less.
        operands = queries + v, self.distance.astype(dtype), bias.vectors.astype(dtype)
        scores = _products("BTHK,DHK,ND->BHTN", *operands)
        missing = length + num_keys - 1 - bias.vectors.shape[0]  # of those that nobody sees
        scores = skew(jnp.pad(scores, [(0, 0), (0, 0), (0, 0), (0, missing)]))
        return queries + u, constrain(scores, "batch", "heads", "length")

    def _weights(
        self,
        queries: Float[Array, "B T H K"],
        keys: Float[Array, "B S H K"],
        mask: Bool[Array, "#B #T S"],
        bias: Float[Array, "1 H T S"] | Distances | None,
        deterministic: bool,
    ) -> Float[Array, "B H T S"]:
        """The weights after dropout, in the keys' dtype; diagnostics may ask for their shares.

        The largest logit is shown as it is before it is capped.
        """
        sizes = _sizes(queries, keys, mask)
        queries, bias = self._by_distance(queries, bias, keys.shape[1])
        if self.score.module:
            scores = self.scores(queries, keys)
        else:
            scores = _products("BTHK,BSHK->BHTS", queries, keys)
        if bias is not None:
            scores = scores + bias
        cap = self.config.attention_softcap
        logits = jnp.where(mask[:, None], soft_cap(scores, cap), MASKED)
        weights = self.weighing(logits, self.sink)
        # For each query; never computed unless a caller asks for it.
        shares = self.weighing.shares(weights)
        entropy = jnp.sum(jax.scipy.special.entr(shares), axis=-1)
        uncapped = logits if cap is None else jnp.where(mask[:, None], scores, MASKED)
        largest = jnp.max(uncapped, axis=-1)
        observe(self, weights=shares, entropy=entropy, largest_logit=largest, **sizes)
        return self.dropout(weights, deterministic=deterministic).astype(keys.dtype)


def _normed(norm: Norm | None, x: Float[Array, "B T H K"]) -> Float[Array, "B T H K"]:
    """By a norm, if any, of each head, or of all heads of a token, in the dtype of x."""
    if norm is None:
        return x
    if norm.axis == "head_dim":
        return norm(x).astype(x.dtype)
    return norm(x.reshape(*x.shape[:2], -1)).astype(x.dtype).reshape(x.shape)


def _sizes(
    queries: Float[Array, "B T H K"], keys: Float[Array, "B S H K"], mask: Bool[Array, "#B #T S"]
) -> dict[str, Float[Array, "B H T"]]:
    """The norm of each query, scaled as the score has it, and the mean one of the keys it sees.

    "query_norm" and "key_norm" are layers here, which share their names with nothing.
    """
    of_queries, of_keys = (
        jnp.linalg.norm(x.astype(jnp.float32), axis=-1).swapaxes(1, 2) for x in (queries, keys)
    )
    full_mask = jnp.broadcast_to(mask, (keys.shape[0], queries.shape[1], keys.shape[1]))[:, None]
    # A sum and no product, of which a model's cost is counted
    every = jnp.broadcast_to(of_keys[:, :, None], (*of_queries.shape, keys.shape[1]))
    sums, counts = jnp.sum(every, axis=-1, where=full_mask), jnp.sum(full_mask, axis=-1)
    return {"query_size": of_queries, "key_size": sums / jnp.maximum(counts, 1)}


def _of_all(x: Float[Array, "N T H _"], hypotheses: int) -> Float[Array, "N Q H _"]:
    """In each row the queries of all hypotheses of its sentence."""
    shape = (-1, hypotheses * x.shape[1], *x.shape[2:])
    return jnp.repeat(x.reshape(shape), hypotheses, axis=0)
