"""What attention makes of a query's logits, and the gates on what its heads return."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.layers.masks import MASKED


class AttentionWeights(NamedTuple):
    """One row.

    Attributes:
      function: (logits, axes of a query's keys) -> the weights of these keys.
      added: whether one more logit takes its share of a softmax, and looks at nothing. trained:
        whether it is a number of each head that is trained, from 0 on; otherwise it is 0.
    """

    function: Callable[..., Any]
    added: bool = False
    trained: bool = False

    def __call__(
        self,
        logits: Float[Array, "*B H T S"],
        sink: Float[Array, "H"] | None = None,
        axis: int | tuple[int, ...] = -1,
    ) -> Float[Array, "*B H T S"]:
        """The weights, float32. They add up to 1 in a softmax without an added logit alone.

        sink: the trained logits, where there are any. axis: those of a query's keys.
        """
        weights = self.function(logits, axis)
        if not self.added:
            return weights
        total = jax.nn.logsumexp(logits, axis, keepdims=True)
        if sink is not None:
            total = total - jnp.expand_dims(sink, (*range(logits.ndim - 3), -2, -1))
        # exp(x) / (sum exp + exp(b)): the softmax times sigmoid(log sum exp - b)
        return weights * jax.nn.sigmoid(total)

    def shares(self, weights: Float[Array, "*B H T S"]) -> Float[Array, "*B H T S"]:
        """Where a query looks: a softmax's weights, and any others over their sum; 0 where that is.

        Weights that add up to anything tell as little of a sink or an induction head as the size of
        a value would.
        """
        if self.function is jax.nn.softmax:
            return weights
        total = jnp.sum(weights, axis=-1, keepdims=True)
        return weights / jnp.maximum(total, jnp.finfo(weights.dtype).tiny)


def _count(logits: Float[Array, "*shape"], axis: int | tuple[int, ...]) -> Float[Array, "*shape"]:
    """T: how many keys each query sees, at least 1.

    Not the length of the row, or what stands beside a text, padding and the room of a cache, would
    change what becomes of it.
    """
    count = jnp.sum(logits > MASKED, axis, keepdims=True, dtype=logits.dtype)
    return jnp.maximum(count, 1)


ATTENTION_WEIGHTS = {
    "softmax": AttentionWeights(jax.nn.softmax),
    "off_by_one": AttentionWeights(jax.nn.softmax, added=True),  # Miller 2023
    "sink": AttentionWeights(jax.nn.softmax, added=True, trained=True),  # gpt-oss (2508.10925)
    # Ramapuram et al. 2024 (2409.04431): sigmoid(x - ln T)
    "sigmoid": AttentionWeights(lambda x, axis: jax.nn.sigmoid(x - jnp.log(_count(x, axis)))),
    # Wortsman et al. 2023 (2309.08586): relu(x) / T
    "relu": AttentionWeights(lambda x, axis: jax.nn.relu(x) / _count(x, axis)),
}
# What the outputs of heads are multiplied by, sigmoid(X W_g) of the attention's input X (Qiu et al.
# 2025, 2505.06708): the axes of W_g's outputs, one number for each head or each of its entries. W_g
# is drawn as 0, so that every gate is 1/2 at first.
ATTENTION_GATES = {"none": "", "head": "H", "entry": "HK"}
