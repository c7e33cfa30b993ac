"""What a family of Hugging Face's models is: settings that are read both ways, and its tensors."""

import collections
import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.layers.heads import HEADS
from transformer_jax.models.layers.settings import ARCHITECTURES
from transformer_jax.models.transformer.config import TransformerConfig, stacks
from transformer_jax.tools.convert.rows import Row, View
from transformer_jax.tools.convert.safetensors import Tensor, read_if_there

# Keys of config.json, of any family, that do not change what a model computes of ids (patterns).
_IDLE = """_* architectures attn_implementation bad_words_ids chunk_size_feed_forward do_sample
    dtype classif*_dropout early_stopping finetuning_task forced_* gradient_checkpointing id2label
    init* is_encoder_decoder keys_to_ignore_at_inference label2id *layerdrop *_penalty max_length
    min_length model_type name_or_path *_ngram_size num_beam* num_labels num_return_sequences
    output_* prefix problem_type remove_invalid_values return_dict* summary_* *suppress_tokens
    task_specific_params tf_legacy_loss temperature *_token_id tokenizer_class top_k top_p
    torch_dtype torchscript transformers.js_config transformers_version typical_p use_bfloat16
    use_cache""".split()
# Those that do, by the one value that every family has.
_USUAL = dict(
    add_cross_attention=False, is_causal=True, is_decoder=False, tie_encoder_decoder=False
)
# Activations by the names that they have in any family.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu2": "relu2",
    "relu": "relu",
    "silu": "swish",
    "swish": "swish",
}
# Settings by dotted key or by name, theirs or ours.
Values = dict[str, Any]
_NEEDED = object()
_UNSMOOTHED = "causal_lm", "masked_lm", "classification", "tagging"
_LONGEST = 4096  # tokens of a row of an imported config
# Which text a stack reads.
SIDES = {"encoder": "source", "decoder": "target"}


class Setting(NamedTuple):
    """One line: what both call it, read from their config.json and written into it.

    Attributes:
      theirs: its names there. The first one counts, any other one says the same or is left out.
      ours: keys of `config.model` that all have the value; "length" is the most tokens of a text.
      default: what it means that theirs is left out; a function makes it of our settings in the
        lines before. Without one it has to be there.
      values: their value -> ours, where these differ; for others there is no counterpart. Of
        several with one meaning the first is written.
    """

    theirs: str
    ours: str
    default: Any = _NEEDED
    values: Mapping[Any, Any] | None = None

    def read(self, theirs: "Settings", ours: Values) -> Any:
        """Our value. Raises ValueError where there is none, or theirs contradict each other."""
        name, *others = self.theirs.split()
        default = self.default(ours) if callable(self.default) else self.default
        value = theirs.need(name) if default is _NEEDED else theirs.get(name, default)
        for other in others:
            theirs.refuse(other, value)
        return value if self.values is None else theirs.choose(name, self.values, default)

    def written(self, ours: Values) -> Values:
        """Their settings."""
        value = ours[self.ours.split()[0]]
        if self.values is not None:
            value = next(theirs for theirs, meaning in self.values.items() if meaning == value)
        return dict.fromkeys(self.theirs.split(), value)


# The sizes, by the names that most families have for them.
SIZES = (
    Setting("hidden_size", "d_model"),
    Setting("num_hidden_layers", "num_layers"),
    Setting("num_attention_heads", "num_heads"),
    Setting("intermediate_size", "d_ff"),
)
# What encoder-decoders that come of fairseq have.
FAIRSEQ = (
    Setting("d_model", "d_model"),
    Setting("encoder_layers num_hidden_layers", "num_encoder_layers"),
    Setting("decoder_layers", "num_decoder_layers"),
    Setting("encoder_attention_heads decoder_attention_heads", "num_heads"),
    Setting("encoder_ffn_dim decoder_ffn_dim", "d_ff"),
    Setting("dropout", "dropout_rate embedding_dropout_rate", 0.1),
    Setting("activation_dropout", "feed_forward_dropout_rate", 0.0),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`.

    Attributes:
      name: the `model_type`.
      heads: our heads -> their class and our task. A checkpoint of another class is read as that
        of the first.
      ours: what our models of this family are, by key of `config.model`; what is neither here nor
        in `both` nor of `also` is as in `_usual`.
      theirs: what theirs are, where config.json says so.
      both: what either may choose.
      rows: our model -> all of its parameters.
      read: (their settings, ours by then, which has the "head" too) -> more of ours, for what takes
        more than a line. Raises ValueError for what has no counterpart.
      write: our settings -> more of their config.json.
      also: our settings -> by key, the values that have a counterpart.
      channels: d_model -> for each channel of the residual stream here, which one it is there.
      views: (their settings, ours by dotted key) -> by glob pattern, what is made of tensors first
        (see `Tensor.through`).
      ignored: glob patterns of tensors that hold nothing, such as masks.
      fixed: (our model, the most tokens of a text) -> tensors that are written though no parameter
        is in them.
      optional: a pattern of our parameters that a checkpoint may lack, all of them together.
      unread: those of heads and the like that have no counterpart here.
      copies: (a tensor that is in no row, the one in a row that it has to be equal to).
      aliases: (a name in the rows, another one that the tensor may have where that is missing).
      renamed: the name of a tensor -> the one in the rows, where files have several.
      labels: of `Settings.labels`.
      prefix: of the names of the bare model within one with a head; where no name has it, the
        checkpoint is a bare model.
      text_config: what a config.json means that has all in an object of that name, and leaves these
        out; None: there is no such object.
      idle: patterns of keys of config.json, besides `_IDLE`, that do not change what it computes.
    """

    name: str
    heads: Mapping[str, tuple[str, str]]
    ours: Mapping[str, Any]
    both: tuple[Setting, ...]
    rows: Callable[[TransformerConfig], list[Row]]
    theirs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    read: Callable[["Settings", Values], Values] = lambda theirs, ours: {}
    write: Callable[[Values], Values] = lambda ours: {}
    also: Callable[[Values], dict[str, tuple[Any, ...]]] = lambda ours: {}
    channels: Callable[[int], np.ndarray] = np.arange
    views: Callable[["Settings", Values], dict[str, View]] = lambda theirs, ours: {}
    ignored: tuple[str, ...] = ()
    fixed: Callable[[TransformerConfig, int], dict[str, np.ndarray]] = lambda config, length: {}
    optional: str = ""
    unread: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    renamed: Callable[[str], str] = lambda name: name
    labels: tuple[Any, ...] = ("classifier.weight",)
    prefix: str = ""
    idle: tuple[str, ...] = ()
    text_config: Mapping[str, Any] | None = None

    def settings(self, theirs: "Settings") -> Values:
        """Our settings of their config.json, by dotted key.

        Raises ValueError for a setting that has no counterpart.
        """
        kind = (theirs.get("architectures") or [""])[0]
        heads = [head for head, (name, _) in self.heads.items() if name == kind]
        head = heads[0] if heads else next(iter(self.heads))
        for name, value in self.theirs.items():
            theirs.refuse(name, value)
        ours = {**self.ours, "head": head}
        for line in self.both:
            ours |= dict.fromkeys(line.ours.split(), line.read(theirs, ours))
        ours |= self.read(theirs, ours)
        if "data.image_size" not in ours:
            length = ours.pop("length", None) or ours["max_length"]
            if length > _LONGEST:
                theirs.notes.append(
                    f"Rows have {_LONGEST} tokens, since {length} would fit into no memory: for "
                    "others set data.max_*_length and data.row_*_length."
                )
                length = _LONGEST
            sides = [SIDES[stack] for stack in ARCHITECTURES[ours["architecture"]]]
            ours |= {f"data.{k}_{side}_length": length for k in ("max", "row") for side in sides}
        task: Values = {"task.name": self.heads[ours.pop("head")][1]}
        if task["task.name"] in _UNSMOOTHED:  # so that losses are those of its training
            task["task.label_smoothing"] = 0.0
        return task | {name if "." in name else f"model.{name}": v for name, v in ours.items()}

    def unfit(self, config: TransformerConfig) -> dict[str, tuple[Any, ...]]:
        """The settings by which our model is none of the family's, each with what would do.

        Dropout is of the training alone.
        """
        ours = _effective(config)
        fitting: dict[str, tuple[Any, ...]] = {"head": tuple(self.heads)}
        fitting |= {name: (value,) for name, value in (_usual(config) | dict(self.ours)).items()}
        for line in self.both:
            first, *others = line.ours.split()
            fitting[first] = (ours.get(first),)  # any
            if line.values is not None:
                fitting[first] = tuple(dict.fromkeys(line.values.values()))
            fitting |= {name: (ours[first],) for name in others}
        fitting |= self.also(ours)
        residual = fitting.pop("residual")
        fitting |= {f"{stack}_residual": residual for stack in stacks(config)}
        return {
            name: values
            for name, values in fitting.items()
            if ours.get(name) not in values and not name.endswith("dropout_rate")
        }

    def config(self, config: TransformerConfig, length: int) -> Values:
        """Their config.json of our model, but for what all have alike.

        length: the most tokens of a text. Raises ValueError where it is none of the family's.
        """
        if unfit := self.unfit(config):
            misfits = ", ".join(f"model.{name}={getattr(config, name)!r}" for name in unfit)
            wanted = ", ".join(" or ".join(map(repr, values)) for values in unfit.values())
            raise ValueError(f"{misfits} has no counterpart there, only {wanted}")
        ours = _effective(config) | {"length": length}
        theirs = {"architectures": [self.heads[config.head][0]], **self.theirs}
        for line in self.both:
            theirs |= line.written(ours)
        return theirs | self.write(ours)


def _usual(config: TransformerConfig) -> Values:
    """What our model is in all families that do not name it."""
    return dict(
        attention_bias=None,
        attention_gate="none",
        attention_score="scaled_dot_product",
        attention_softcap=None,
        attention_weights="softmax",
        bias=True,
        embedding_norm=False,
        feed_forward_dropout_rate=0.0,
        head_dim=config.d_model // config.num_heads,
        logits_bias=False,
        logits_softcap=None,
        layer_pattern=("full",),
        norm="layer_norm",
        num_kv_heads=config.num_heads,
        positions_in="stream",
        qk_norm=False,
        qk_norm_over="head",
        rotary_fraction=1.0,
        rotary_scaling=(),
        tied_embeddings="all",
        window=None,
        window_rotary_base=None,
    )


def _effective(config: TransformerConfig) -> Values:
    """Our model's settings, where those that change nothing in it have their usual value."""
    ours = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    ours["num_kv_heads"] = config.kv_heads
    head, stack_names = HEADS[config.head], stacks(config)
    if len(stack_names) == 1:
        ours["num_layers"] = ours[f"num_{stack_names[0]}_layers"]
        ours["residual"] = ours[f"{stack_names[0]}_residual"]
        logits = head.labels or TIED_EMBEDDINGS[config.tied_embeddings].logits
        ours["tied_embeddings"] = "all" if logits else "none"
    if stack_names == ("encoder",):
        ours["logits_bias"] = False
    if not head.pooled:
        ours["pooling"] = "first"
    return ours


class Settings:
    """Their config.json, asked for what it says."""

    def __init__(self, values: Mapping[str, Any], name: str, tensors: Mapping[str, Tensor]):
        """name: of the file, for messages. tensors: that come with it."""
        self._values = values
        self._name = name
        self._tensors = tensors
        self._read_names: set[str] = set()
        self.notes: list[str] = []  # what import says of them

    def get(self, name: str, default: Any = None) -> Any:
        """A setting that may be left out. Raises ValueError where a number is none."""
        self._read_names.add(name)
        value = self._values.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(default, float) and value is not None and not number:
            raise ValueError(f"{self._name}: {name}={value!r} is not a number")
        return default if value is None else value

    def nullable(self, name: str, default: Any) -> Any:
        """A setting of which null is a value. default: what it means that it is left out."""
        value = self.get(name)
        return default if name not in self._values else value

    def need(self, name: str) -> Any:
        """A setting. Raises ValueError where there is none."""
        if (value := self.get(name)) is None:
            kind = self._values.get("model_type")
            raise ValueError(f"{self._name}: there is no {name!r}, which a {kind} has")
        return value

    def choose(self, name: str, table: Mapping[Any, Any], default: Any = None) -> Any:
        """What a setting's value means. Raises ValueError where it has no counterpart."""
        value = self.get(name, default)
        value = tuple(value) if isinstance(value, list) else value
        if value not in [*table]:
            known = ", ".join(map(repr, table))
            raise ValueError(
                f"{self._name}: {name}={value!r} has no counterpart here, only {known}"
            )
        return table[value]

    def refuse(self, name: str, value: Any) -> None:
        """Raises ValueError unless a setting has this value, or is left out."""
        self.choose(name, {value: None}, value)

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
                and name not in self._read_names
                and not matches(name, (*_IDLE, *idle))
            ):
                raise ValueError(
                    f"{self._name}: {name}={value!r} is not known here, and may change what the "
                    "model computes: remove it from the file if it does not"
                )

    def labels(self, kernel: str, besides: int = 0, repeat: bool = False) -> tuple[str, ...]:
        """The labels of a classifier by their numbers. Raises ValueError for other outputs.

        besides: outputs of no label, the last ones. repeat: whether several labels may have one
        name; then their numbers are put behind it.
        """
        self.refuse("problem_type", "single_label_classification")
        weights, names = self.tensor(kernel), self.part("id2label")._values
        count = len(names) if weights is None else len(weights) - besides
        names = names or {str(i): f"LABEL_{i}" for i in range(count)}
        labels = tuple(str(names.get(str(i))) for i in range(count))
        if repeat:
            times = collections.Counter(labels)
            labels = tuple(f"{n} {i}" if times[n] > 1 else n for i, n in enumerate(labels))
        least = max(2 - besides, 1)
        if len(names) != count or len({*labels}) != count or count < least:
            raise ValueError(
                f"{self._name}: id2label={dict(names)!r} does not name the {count} outputs of "
                f"{kernel}; a classifier here has {'two' if least > 1 else 'one'} or more, each "
                "with a name of its own"
            )
        return labels

    def whole(self, name: str, *default: int) -> tuple[int, ...]:
        """Whole numbers above 0, one or a list of them. Raises ValueError for anything else."""
        value = self.get(name, [*default])
        numbers = tuple(value) if isinstance(value, list) else (value,)
        if not numbers or not all(type(number) is int and number > 0 for number in numbers):
            raise ValueError(f"{self._name}: {name}={value!r} is not made of whole numbers above 0")
        return numbers

    def beside(self, name: str) -> "Settings":
        """The settings in another file of the folder, none where there is no such file."""
        path = Path(self._name).parent / name
        return Settings(read_if_there(path), str(path), self._tensors)

    def tensor(self, name: str) -> np.ndarray | None:
        """A tensor; None: there is none."""
        return self._tensors[name].read() if name in self._tensors else None


def any_of(*names: str) -> Callable[[Values], dict[str, tuple[Any, ...]]]:
    """A `Family.also` by which these settings of ours may have any value."""
    return lambda ours: {name: (ours[name],) for name in names}


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of these glob patterns'."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
