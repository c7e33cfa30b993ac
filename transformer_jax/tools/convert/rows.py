"""How tensors of theirs become parameters of ours and back: rows that are read both ways."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.models.layers.attention import biases_of
from transformer_jax.models.layers.norm import NORMS
from transformer_jax.models.transformer.config import TransformerConfig

# One layer's tensors, or those that no layer has.
Arrays = Sequence[np.ndarray]
View = Callable[[np.ndarray], np.ndarray]


class Row(NamedTuple):
    """Tensors of theirs that become parameters of ours.

    Attributes:
      theirs: names; "{}" stands for the number of a layer, from 0.
      ours: paths; those of layers are stacked along the first axis.
      read: their tensors (of one layer) -> ours.
      write: ours -> theirs.
      stack: whose layers "{}" counts.
      first: the first of them that has it there; before it ours are ones.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    read: Callable[..., Arrays]
    write: Callable[..., Arrays]
    stack: str | None = None
    first: int = 0


def one(theirs: str, ours: str, read: View, write: View, stack: str | None = None) -> Row:
    """A tensor that is one parameter in another layout."""
    return Row((theirs,), (ours,), lambda x: (read(x),), lambda x: (write(x),), stack)


def as_it_is(theirs: str, ours: str, stack: str | None = None) -> Row:
    """A tensor that both have in one layout."""
    return one(theirs, ours, lambda x: x, lambda x: x, stack)


def first(theirs: str, ours: str) -> Row:
    """The only one of a tensor along its first axis."""
    return one(theirs, ours, lambda x: x[0], lambda x: x[None])


def linear(
    theirs: str,
    ours: str,
    stack: str | None = None,
    *,
    bias: bool = True,
    inputs: tuple[int, ...] = (),
    outputs: tuple[int, ...] = (),
) -> list[Row]:
    """A matrix (outputs, inputs) of theirs, and its bias.

    inputs, outputs: their axes here, such as (H, K), where there are several.
    """

    def read(x):
        return x.T.reshape(inputs + x.shape[1:] * (not inputs) + (outputs or x.shape[:1]))

    def write(x):
        return x.reshape(-1, math.prod(outputs or x.shape[-1:])).T

    rows = [one(f"{theirs}.weight", ours, read, write, stack)]
    split = one(
        f"{theirs}.bias", f"{ours}_bias", lambda x: x.reshape(outputs or -1), np.ravel, stack
    )
    return [*rows, split] if bias else rows


def norm(theirs: str, ours: str, config: TransformerConfig, stack: str | None = None) -> list[Row]:
    """Scale and bias of a norm, where it has them."""
    row = NORMS[config.norm]
    rows = [as_it_is(f"{theirs}.weight", f"{ours}/scale", stack)] * row.scale
    return rows + [as_it_is(f"{theirs}.bias", f"{ours}/bias", stack)] * row.bias


def attention(theirs: Sequence[str], ours: str, config: TransformerConfig, stack: str) -> list[Row]:
    """An attention of separate matrices. theirs: the names of query, key, value and output."""
    (query, key, value, output) = theirs
    bias_name = config.attention_bias if ours.endswith("self_attention") else None
    biases = biases_of(bias_name, config.bias)
    heads, kv_heads = ((number, config.head_dim) for number in (config.num_heads, config.kv_heads))
    rows = [
        *linear(query, f"{ours}/query", stack, bias=biases.inward, outputs=heads),
        *linear(key, f"{ours}/key", stack, bias=biases.keys, outputs=kv_heads),
        *linear(value, f"{ours}/value", stack, bias=biases.inward, outputs=kv_heads),
        *linear(output, f"{ours}/output", stack, bias=biases.outward, inputs=heads),
    ]
    if biases.inward and not biases.keys:
        # The softmax cancels a bias of keys, so that we have none. Zeros are written.
        zeros = np.zeros(math.prod(kv_heads), np.float32)
        rows.append(Row((f"{key}.bias",), (), lambda x: (), lambda: (zeros,), stack))
    return rows


def queries_keys_values(theirs: str, config: TransformerConfig, stack: str) -> Row:
    """The matrices of self-attention, which are one there."""
    heads, kv_heads = ((number, config.head_dim) for number in (config.num_heads, config.kv_heads))
    sizes = {"query": heads, "key": kv_heads, "value": kv_heads}
    ours = {f"{stack}/self_attention/{name}": size for name, size in sizes.items()}
    return _joined(theirs, ours, stack)


def gate_and_up(theirs: str, config: TransformerConfig, stack: str) -> Row:
    """The first matrices of a gated feed-forward part, which are one there."""
    ours = {f"{stack}/feed_forward/{name}": (config.d_ff,) for name in ("gate", "up")}
    return _joined(theirs, ours, stack)


def _joined(theirs: str, ours: Mapping[str, tuple[int, ...]], stack: str) -> Row:
    """A matrix (outputs, inputs) of theirs in which ours follow each other.

    ours: paths -> axes of their outputs here, as (H, K).
    """
    ends = np.cumsum([math.prod(outputs) for outputs in ours.values()])[:-1]

    def read(x):
        parts = zip(np.split(x, ends), ours.values(), strict=True)
        return [part.T.reshape(-1, *outputs) for part, outputs in parts]

    def write(*x):
        return (np.concatenate([part.reshape(len(part), -1).T for part in x]),)

    return Row((theirs,), tuple(ours), read, write, stack)


def fairseq(stack: str, norms: str) -> dict[str, str | list[str]]:
    """The names of a layer, for `layers`, in families that come of fairseq, as BART's.

    norms: "pre_norm" or "post_norm".
    """
    names: dict[str, str | list[str]] = {"feed_forward/up": "fc1", "feed_forward/down": "fc2"}
    kinds = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
    for kind, name in [*kinds.items()][: 2 if stack == "decoder" else 1]:
        names[kind] = [f"{name}.{part}_proj" for part in ("q", "k", "v", "out")]
        names[f"{kind}_residual/{norms}"] = f"{name}_layer_norm"
    return names | {f"feed_forward_residual/{norms}": "final_layer_norm"}


def layers(
    theirs: str, stack: str, config: TransformerConfig, names: Mapping[str, str | Sequence[str]]
) -> list[Row]:
    """The rows of every layer of a stack.

    Args:
      theirs: what a layer is called, with "{}" for its number.
      names: what a layer has here, a module or a matrix -> its name there; of an attention the
        names of query, key, value and output, or "self_attention/output" alone.
    """
    rows = []
    for module, name in names.items():
        ours = f"{stack}/{module}"
        if not isinstance(name, str):
            rows += attention([f"{theirs}.{part}" for part in name], ours, config, stack)
        elif module.endswith("_norm"):
            rows += norm(f"{theirs}.{name}", ours, config, stack)
        elif module == "self_attention/output":
            bias = biases_of(config.attention_bias, config.bias).outward
            heads = config.num_heads, config.head_dim
            rows += linear(f"{theirs}.{name}", ours, stack, bias=bias, inputs=heads)
        else:
            rows += linear(f"{theirs}.{name}", ours, stack, bias=config.bias)
    return rows
