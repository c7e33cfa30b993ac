"""What a family of Hugging Face's models is: its settings, and where its tensors go in ours."""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert.safetensors import Tensor

# One layer's tensors, or those that no layer has.
Arrays = Sequence[np.ndarray]

# Keys of config.json, of any family, that do not change what a model computes of ids (patterns).
_IDLE = """_* architectures attn_implementation bad_words_ids chunk_size_feed_forward do_sample
    dtype classifier_dropout early_stopping finetuning_task forced_* gradient_checkpointing
    id2label init* is_encoder_decoder keys_to_ignore_at_inference label2id *_penalty max_length
    min_length model_type name_or_path *_ngram_size num_beam* num_labels num_return_sequences
    output_* prefix problem_type remove_invalid_values return_dict* *suppress_tokens
    task_specific_params tf_legacy_loss temperature *_token_id tokenizer_class top_k top_p
    torch_dtype torchscript transformers.js_config transformers_version typical_p use_bfloat16
    use_cache""".split()
# Those that do, by the one value that every family has.
_USUAL = dict(
    add_cross_attention=False, is_causal=True, is_decoder=False, tie_encoder_decoder=False
)

# What our model is in all families that do not name it.
_PLAIN = dict(
    attention_score="scaled_dot_product", embedding_norm=False, logits_bias=False, qk_norm=False
)


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
      name: the `model_type`.
      settings: their config.json -> ours, by dotted key. Raises ValueError for a setting that
        has no counterpart.
      config: (our model of this architecture and these positions, lengths of texts) -> their
        config.json but for what all have alike. Raises ValueError where it is none of the family's.
      rows: our model -> all of its parameters.
      left: glob patterns of tensors that hold nothing, such as masks.
      optional: a pattern of our parameters that a checkpoint may lack, all of them together.
      unread: those of heads and the like that have no counterpart here.
      copies: (a tensor that is in no row, the one in a row that it has to be equal to).
      aliases: (a name in the rows, another one that the tensor may have where that is missing).
      prefix: of the names of the bare model within one with a head; where no name has it, the
        checkpoint is a bare model.
      idle: patterns of keys of config.json, besides `_IDLE`, that do not change what it computes.
    """

    name: str
    settings: Callable[["Settings"], dict[str, Any]]
    config: Callable[[TransformerConfig, Lengths], dict[str, Any]]
    rows: Callable[[TransformerConfig], tuple[Row, ...]]
    left: tuple[str, ...] = ()
    optional: str = ""
    unread: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    idle: tuple[str, ...] = ()


class Settings:
    """Their config.json, asked for what it says."""

    def __init__(self, values: Mapping[str, Any], name: str, tensors: Mapping[str, Tensor]):
        """name: of the file, for messages. tensors: that come with it."""
        self._values = values
        self._name = name
        self._tensors = tensors
        self._asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """A setting that may be left out."""
        self._asked.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        """A setting. Raises ValueError where there is none."""
        if (value := self.get(name)) is None:
            raise ValueError(f"{self._name}: there is no {name!r}, which a {self._kind} has")
        return value

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
        return Settings(values, f"{self._name}: {name}", self._tensors)

    def check_known(self, idle: Iterable[str]) -> None:
        """Raises ValueError for a setting that nothing asked for, unless it is an idle one."""
        for name, value in self._values.items():
            if name in _USUAL:
                self.refuse(name, _USUAL[name])
            elif (
                value not in (None, {}, [])
                and name not in self._asked
                and not matches(name, (*_IDLE, *idle))
            ):
                raise ValueError(
                    f"{self._name}: {name}={value!r} is not known here, and may change what the "
                    "model computes: remove it from the file if it does not"
                )

    def labels(self, kernel: str) -> tuple[str, ...]:
        """The labels of a classifier by their numbers. Raises ValueError for other outputs."""
        self.refuse("problem_type", "single_label_classification")
        weights, names = self.tensor(kernel), self.part("id2label")._values
        count = len(names) if weights is None else len(weights)
        names = names or {str(i): f"LABEL_{i}" for i in range(count)}
        found = tuple(str(names.get(str(i))) for i in range(count))
        if len(names) != count or len({*found}) != count or count < 2:
            raise ValueError(
                f"{self._name}: id2label={dict(names)!r} does not name the {count} outputs of "
                f"{kernel}; a classifier here has two or more, each with a name of its own"
            )
        return found

    def tensor(self, name: str) -> np.ndarray | None:
        """A tensor; None: there is none."""
        return self._tensors[name].read() if name in self._tensors else None

    @property
    def _kind(self) -> str:
        return str(self._values.get("model_type"))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of these glob patterns'."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


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


def lengths(most: int, *sides: str) -> dict[str, int]:
    """Our settings for texts of at most so many tokens."""
    return {f"data.{kind}_{side}_length": most for kind in ("max", "row") for side in sides}


def check(config: TransformerConfig, **values: Any) -> None:
    """Raises ValueError where our model differs from these values and the others of `_PLAIN`."""
    values = _PLAIN | values
    if differing := [name for name, value in values.items() if getattr(config, name) != value]:
        found = ", ".join(f"model.{name}={getattr(config, name)!r}" for name in differing)
        wanted = ", ".join(f"{values[name]!r}" for name in differing)
        raise ValueError(f"{found} has no counterpart there, only {wanted}")
