"""What a family of Hugging Face's models is: its settings, and where its tensors go in ours."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.prepare.tokenizer import SpecialIds
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert.safetensors import Tensor

# One layer's tensors, or those that no layer has.
Arrays = Sequence[np.ndarray]


class Row(NamedTuple):
    """Tensors of theirs that become parameters of ours.

    Attributes:
      theirs: names; "{}" stands for the number of a layer, from 0.
      ours: paths; those of layers are stacked along the first axis.
      read: their tensors (of one layer) -> ours.
      write: ours -> theirs.
      stack: whose layers "{}" counts.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    read: Callable[..., Arrays]
    write: Callable[..., Arrays]
    stack: str | None = None


class Lengths(NamedTuple):
    """Most tokens of a text. read: of either side. written: of what decoding makes of a source."""

    read: int
    written: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`.

    Attributes:
      settings: their config.json -> ours, by dotted key. Raises ValueError for a setting that
        has no counterpart.
      config: (our model, special ids, lengths of texts) -> their config.json. Raises ValueError
        where the model is none of the family's.
      rows: our model -> all of its parameters.
      left: glob patterns of tensors that are not taken.
      aliases: (a name in the rows, another one that the tensor may have where that is missing).
      prefix: that names may have in front, and have when they are written.
    """

    settings: Callable[["Settings"], dict[str, Any]]
    config: Callable[[TransformerConfig, SpecialIds, Lengths], dict[str, Any]]
    rows: Callable[[TransformerConfig], tuple[Row, ...]]
    left: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    prefix: str = ""


class Settings:
    """Their config.json, asked for what it says."""

    def __init__(self, values: Mapping[str, Any], name: str, tensors: Mapping[str, Tensor]):
        """name: of the file, for messages. tensors: that come with it."""
        self._values = values
        self._name = name
        self._tensors = tensors

    def get(self, name: str, default: Any = None) -> Any:
        """A setting that may be left out."""
        value = self._values.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        """A setting. Raises ValueError where there is none."""
        if self._values.get(name) is None:
            raise ValueError(f"{self._name}: there is no {name!r}, which a {self._kind} has")
        return self._values[name]

    def choose(self, name: str, table: Mapping[Any, Any], default: Any = None) -> Any:
        """What a setting's value means. Raises ValueError where it has no counterpart."""
        value = self.get(name, default)
        if isinstance(value, dict | list) or value not in table:
            known = ", ".join(map(repr, table))
            raise ValueError(
                f"{self._name}: {name}={value!r} has no counterpart here, only {known}"
            )
        return table[value]

    def refuse(self, name: str, value: Any) -> None:
        """Raises ValueError unless a setting has this value, or is left out."""
        self.choose(name, {value: None}, value)

    def number(self, name: str, default: float) -> float:
        """A number that may be left out. Raises ValueError where it is none."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self._name}: {name}={value!r} is not a number")
        return float(value)

    def part(self, name: str) -> "Settings":
        """The settings of an object in them, none where it is left out."""
        values = self.get(name, {})
        if not isinstance(values, dict):
            raise ValueError(f"{self._name}: {name}={values!r} is not an object")
        return Settings(values, self._name, self._tensors)

    def differ(self, first: str, second: str) -> bool:
        """Whether both tensors are there, and not the same."""
        if first not in self._tensors or second not in self._tensors:
            return False
        one, other = (self._tensors[name].read() for name in (first, second))
        return not np.array_equal(one, other)

    def same(self, first: str, second: str) -> None:
        """Raises ValueError where both tensors are there, and not the same."""
        if self.differ(first, second):
            raise ValueError(
                f"{self._name}: {first} and {second} are one table by this file, but differ: "
                "remove the one that is not meant from the weights"
            )

    @property
    def _kind(self) -> str:
        return str(self._values.get("model_type"))


def as_it_is(theirs: str, ours: str, stack: str | None = None) -> Row:
    """A tensor that both have in one layout."""
    return Row((theirs,), (ours,), lambda x: (x,), lambda x: (x,), stack)


def turned(theirs: str, ours: str, stack: str | None = None) -> Row:
    """A matrix that they have as (outputs, inputs)."""
    return Row((theirs,), (ours,), lambda x: (x.T,), lambda x: (x.T,), stack)


def inward(theirs: str, ours: str, stack: str, head_dim: int) -> Row:
    """A matrix (H K, D) of theirs that is (D, H, K) here."""
    return Row(
        (theirs,),
        (ours,),
        lambda x: (x.T.reshape(x.shape[1], -1, head_dim),),
        lambda x: (x.reshape(x.shape[0], -1).T,),
        stack,
    )


def by_head(theirs: str, ours: str, stack: str, head_dim: int) -> Row:
    """A vector (H K) of theirs that is (H, K) here."""
    return Row(
        (theirs,), (ours,), lambda x: (x.reshape(-1, head_dim),), lambda x: (x.reshape(-1),), stack
    )


def outward(theirs: str, ours: str, stack: str, head_dim: int) -> Row:
    """A matrix (D, H K) of theirs that is (H, K, D) here."""
    return Row(
        (theirs,),
        (ours,),
        lambda x: (x.T.reshape(-1, head_dim, x.shape[0]),),
        lambda x: (x.reshape(-1, x.shape[-1]).T,),
        stack,
    )


def dropped(theirs: str, stack: str, size: int) -> Row:
    """A bias of keys: the softmax cancels it, so that we have none. Zeros are written."""
    return Row((theirs,), (), lambda x: (), lambda: (np.zeros(size, np.float32),), stack)


def norm(theirs: str, ours: str, stack: str | None = None, *, bias: bool = True) -> list[Row]:
    """Scale and bias of a norm."""
    rows = [as_it_is(f"{theirs}.weight", f"{ours}/scale", stack)]
    return rows + [as_it_is(f"{theirs}.bias", f"{ours}/bias", stack)] * bias


def attention(
    theirs: Mapping[str, str], ours: str, stack: str, config: TransformerConfig
) -> list[Row]:
    """An attention of separate matrices. theirs: names of query, key, value and output."""
    size = config.head_dim
    rows = [
        inward(f"{theirs[name]}.weight", f"{ours}/{name}", stack, size)
        for name in ("query", "key", "value")
    ]
    rows.append(outward(f"{theirs['output']}.weight", f"{ours}/output", stack, size))
    if config.bias:
        rows += [
            by_head(f"{theirs[name]}.bias", f"{ours}/{name}_bias", stack, size)
            for name in ("query", "value")
        ]
        rows.append(dropped(f"{theirs['key']}.bias", stack, config.kv_heads * size))
        rows.append(as_it_is(f"{theirs['output']}.bias", f"{ours}/output_bias", stack))
    return rows


def linear(theirs: str, ours: str, stack: str | None, *, bias: bool) -> list[Row]:
    """A matrix (outputs, inputs) of theirs, and its bias."""
    rows = [turned(f"{theirs}.weight", ours, stack)]
    return rows + [as_it_is(f"{theirs}.bias", f"{ours}_bias", stack)] * bias


def ends(ids: SpecialIds) -> int | list[int]:
    """What ends a text, as their eos_token_id has it: a list where there are several."""
    return [*ids.ends] if ids.other_eos else ids.eos


def check(config: TransformerConfig, **values: Any) -> None:
    """Raises ValueError where our model differs from what a family has."""
    differing = [name for name, value in values.items() if getattr(config, name) != value]
    if differing:
        found = ", ".join(f"model.{name}={getattr(config, name)!r}" for name in differing)
        wanted = ", ".join(f"{values[name]!r}" for name in differing)
        raise ValueError(f"{found} has no counterpart there, only {wanted}")
