"""The table of draws: how large the parameters of stacks, token tables and logits are at first.

A row gives standard deviations by what a kernel does and where it stands. What is drawn stays the
module's own, of which a uniform kernel is uniform, times what makes its deviation the row's: so two
rows draw alike but for a factor, and runs that differ in it are pairs. Biases, norms, positions and
stems are not of it. The gains of a scheme and `model.attention_gain` come on top.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer_jax.models.layers.parameter import Boxed


class Size(NamedTuple):
    """What a deviation depends on.

    Attributes:
      d_model: the width of the stream.
      inputs: of the kernel; of an embedding and the logits the width.
      layers: of the stack; layer: the number of each, from 1. Both 1 outside of stacks.
    """

    d_model: int
    inputs: int
    layers: int
    layer: Float[np.ndarray, " L"]


Deviation = Callable[[Size], Any]


class Draw(NamedTuple):
    """One row, of deviations: one number, or one for each layer.

    Attributes:
      embedding: of the token tables, which looked up rows are scaled from (model.embedding_scale).
      inward: of queries, keys and values.
      outward: of the outputs of attention.
      down: of those of the feed-forward sublayer.
      logits: of the kernel of logits, where it is not a token table.
      hidden: of the hidden layer that an activation follows; None: as inward.
      gated: of that which a gate multiplies; None: as hidden.
      scaled: whether looked up rows enter the stream times sqrt(D); codes that the others are of
        multiply them by nothing.
    """

    embedding: Deviation
    inward: Deviation
    outward: Deviation
    down: Deviation
    logits: Deviation
    hidden: Deviation | None = None
    gated: Deviation | None = None
    scaled: bool = False


def _fixed(deviation: float) -> Deviation:
    return lambda size: deviation


def _fan_in(size: Size) -> float:
    return size.inputs**-0.5


def _width(size: Size) -> float:
    return size.d_model**-0.5


def _small(size: Size) -> float:
    return math.sqrt(2 / (5 * size.d_model))


def _by_depth(size: Size) -> float:
    return 0.02 / math.sqrt(2 * size.layers)


def _by_layer(size: Size) -> Float[np.ndarray, " L"]:
    return 0.02 / np.sqrt(2 * size.layer)


def _normalized(size: Size) -> float:
    return (2 * size.layers * size.d_model) ** -0.5


def _wang(size: Size) -> float:
    return 2 / (size.layers * math.sqrt(size.d_model))


def _mitchell(size: Size) -> Float[np.ndarray, " L"]:
    return 1 / np.sqrt(2 * size.inputs * size.layer)


def _small_hidden(size: Size) -> float:
    return 0.4 * _width(size)


_GPT = _fixed(0.02)

DRAWS: dict[str, Draw | None] = {
    # Glorot and Bengio 2010: sqrt(2 / (inputs + outputs)); tables d_model^-0.5.
    "xavier": None,
    # OLMo-core's "normal": 0.02 of all, which BERT has, too.
    "normal": Draw(_GPT, _GPT, _GPT, _GPT, _GPT),
    # Radford et al. 2019, section 2.3, and Megatron's: what ends a branch over sqrt(2 L).
    "gpt2": Draw(_GPT, _GPT, _by_depth, _by_depth, _GPT),
    # OLMo's "mitchell": what ends a branch shrinks with its layer.
    "mitchell": Draw(_width, _width, _mitchell, _mitchell, _width),
    # OLMo-core's "llama": what a gate multiplies shrinks with what ends the branch.
    "llama": Draw(_fixed(1.0), _GPT, _by_depth, _by_depth, _width, gated=_by_depth),
    # OLMo-core's "llama_depth": by the number of the layer in place of that of all.
    "llama_depth": Draw(_fixed(1.0), _GPT, _by_layer, _by_layer, _width, gated=_by_layer),
    # LeCun et al. 1998: inputs^-0.5.
    "fan_in": Draw(_width, _fan_in, _fan_in, _fan_in, _width, scaled=True),
    # nGPT's (2410.01131), for models that are normalised or not.
    "normalized": Draw(_width, _width, _normalized, _normalized, _width),
    # Nguyen and Salazar 2019 (1910.05895), small, and what ends a branch as GPT-NeoX's "wang".
    "small": Draw(_small, _small, _wang, _wang, _small),
    # nanochat's: what ends a branch is 0 at first, the hidden layer 0.4 of the others.
    "speedrun": Draw(
        _fixed(0.8), _width, _fixed(0.0), _fixed(0.0), _fixed(0.001), hidden=_small_hidden
    ),
}


def one_table(name: str, d_model: int) -> bool:
    """Whether a row draws token tables and the kernel of logits alike, so that one can be both."""
    row, size = DRAWS[name], Size(d_model, d_model, 1, np.ones(1))
    return row is None or row.embedding(size) == row.logits(size)


def factor(
    name: str, path: tuple[str, ...], box: Boxed, d_model: int, *, gated: bool
) -> Float[np.ndarray, "*L"] | None:
    """What makes a draw that of a row; None where it stays as its module draws it.

    Args:
      path: of the parameter, as ("decoder", "feed_forward", "up").
      gated: whether feed-forward sublayers have a gate.
    """
    row, places = DRAWS[name], _places(path, gated)
    if row is None or not places:
        return None
    assert box.matrix is not None
    inputs, outputs = box.matrix
    shape = box.unbox().shape
    ends = shape[-inputs - outputs :]
    sides = math.prod(ends[:inputs]), math.prod(ends[inputs:])
    layers = shape[0] if "layers" in box.names else 1
    size = Size(d_model, sides[0], layers, np.arange(1, layers + 1))
    deviation = next(filter(None, (getattr(row, place) for place in places)))
    default = d_model**-0.5 if places == ("embedding",) else math.sqrt(2 / sum(sides))
    return np.asarray(deviation(size) / default, np.float32)


def _places(path: tuple[str, ...], gated: bool) -> tuple[str, ...]:
    """The fields of a row of which the first that is there is of the parameter at a path."""
    match path:
        case (name, "table") if name.endswith("embedding"):
            return ("embedding",)
        case ("logits", "kernel"):
            return ("logits",)
        case (_, "self_attention" | "cross_attention", "query" | "key" | "value"):
            return ("inward",)
        case (_, "self_attention" | "cross_attention", "output"):
            return ("outward",)
        case (_, "feed_forward", "up") if gated:
            return "gated", "hidden", "inward"
        case (_, "feed_forward", "up" | "gate"):
            return "hidden", "inward"
        case (_, "feed_forward", "down"):
            return ("down",)
    return ()
