"""What a setting may be: its type, and the table that lists its choices."""

import ast
import functools
import math
import re
import warnings
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from transformer_jax.config.bounds import LARGEST, bounds
from transformer_jax.data.prepare.tokenizer import TOKENIZERS
from transformer_jax.data.read.images import AUGMENTATIONS, FITS
from transformer_jax.data.read.sources import SOURCES
from transformer_jax.evaluation.decoder import METHODS
from transformer_jax.evaluation.scores import BLEU_TOKENIZERS
from transformer_jax.inspection.measures import PROBES
from transformer_jax.models import FAMILIES
from transformer_jax.models.layers.attention import ATTENTION_BIASES, QK_NORMS, SCORES
from transformer_jax.models.layers.attention_weights import ATTENTION_GATES, ATTENTION_WEIGHTS
from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.layers.feed_forward import ACTIVATIONS
from transformer_jax.models.layers.heads import POOLINGS
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.layers.norm import NORMS
from transformer_jax.models.layers.positions import POSITIONS, POSITIONS_IN
from transformer_jax.models.layers.settings import ARCHITECTURES, DTYPES
from transformer_jax.models.layers.stack import REMAT
from transformer_jax.models.layers.stems import STEMS
from transformer_jax.models.recurrent.config import RECURRENCES
from transformer_jax.models.transformer.draws import DRAWS
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS
from transformer_jax.models.transformer.patterns import LAYER_KINDS
from transformer_jax.models.transformer.schemes import SCHEMES
from transformer_jax.runs.trackers import TRACKERS
from transformer_jax.tasks import TASKS
from transformer_jax.training.probe import LISTS
from transformer_jax.training.schedule import DECAY_SHAPES, SCHEDULES
from transformer_jax.training.update_rules import OPTIMIZERS

# The settings that name one of a few things, or some of them, and the tables whose keys these are.
CHOICES: Mapping[str, Collection[str]] = {
    "data.source": SOURCES,
    "data.tokenizer.kind": TOKENIZERS,
    "data.image_fit": FITS,
    "data.augment": AUGMENTATIONS,
    "task.name": TASKS,
    "decode.method": METHODS,
    "evaluate.checkpoint": ("last", "best"),
    "evaluate.parameter_dtype": DTYPES,
    "evaluate.bleu_tokenizer": BLEU_TOKENIZERS,
    "log.trackers": TRACKERS,
    "model.family": FAMILIES,
    "model.residual": SCHEMES,
    "model.architecture": ARCHITECTURES,
    "model.pooling": POOLINGS,
    "model.tied_embeddings": TIED_EMBEDDINGS,
    "model.stem": STEMS,
    "model.dtype": DTYPES,
    "model.remat": REMAT,
    "model.encoder_residual": SCHEMES,
    "model.decoder_residual": SCHEMES,
    "model.init": DRAWS,
    "model.parameterization": PARAMETERIZATIONS,
    "model.attention_score": SCORES,
    "model.attention_weights": ATTENTION_WEIGHTS,
    "model.attention_gate": ATTENTION_GATES,
    "model.qk_norm_over": QK_NORMS,
    "model.attention_bias": ATTENTION_BIASES,
    "model.layer_pattern": LAYER_KINDS,
    "model.activation": ACTIVATIONS,
    "model.norm": NORMS,
    "model.positions": POSITIONS,
    "model.positions_in": POSITIONS_IN,
    "model.attention_kernel": KERNELS,
    "model.recurrence": RECURRENCES,
    "optimizer.name": OPTIMIZERS,
    "optimizer.schedule": SCHEDULES,
    "optimizer.decay_shape": DECAY_SHAPES,
    "train.bad_step": ("stop", "skip", "restore"),
    "train.probes": PROBES,  # the first item of each row
}
# The keys whose tuples hold rows instead of texts, with an example.
ROWS = {
    "optimizer.groups": (("embedding/*", 0.1, 0.0),),
    "optimizer.layer_warm_ups": (("decoder/*", 10, 12, 200),),
    "data.mixture": (("json", "~/web", "part-*.json", 3.0),),
    "data.parts": (("reverse", 1.0, "data.source_language=de", "data.target_language=en"),),
    "train.probes": (("sink_mass", 100),),
}
# The keys whose texts have a form, and what is of that form; "" is free.
_UTF_8 = r"[^\ud800-\udfff]*", "a text in UTF-8"  # which names of files need not be
FORMS = {
    "mesh.topology": (r"(\d+x)?[a-z0-9]+-\d+", "a TPU's accelerator type, as 'v5e-16'"),
    "data.prefix": _UTF_8,
    "data.document_separator": _UTF_8,
}
# The keys whose tuples list steps, or name such a list.
STEPS = ("checkpoint.at", "train.evaluate_at", "train.diagnostics_at")
_OPEN = {"data.parts": 2}  # the rows that have any number of texts behind so many items
_MAX_FLOAT32 = 3.4e38
_EXPECTED = {
    int: "a whole number",
    float: f"a finite number, at most {_MAX_FLOAT32:g}",
    bool: "true or false",
    str: "a text",
}


class Kind(NamedTuple):
    """The type of a key's values, whether None is one, and what tuples hold that hold no rows."""

    type: type
    may_be_none: bool
    item: Any = str


def show(value: object) -> str:
    """A value as a message shows it."""
    return shorten(repr(value))


def shorten(text: str, most: int = 100) -> str:
    """A text as a message shows it: a long one by its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def parse(kind: Kind, text: str) -> object:
    """Returns the value that a command line's text stands for, still unchecked.

    It is written as in Python; the quotation marks around a text may be left out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "\8", which is no escape and stays as it is
        return _parsed(kind, text)


def _parsed(kind: Kind, text: str) -> object:
    if kind.may_be_none and text == "None":
        return None
    if kind.type is str:
        return _text(text)
    if kind.type is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind.type in (int, float):
        try:
            return int(text)
        except ValueError:
            pass
    try:
        return float(text) if kind.type in (int, float) else ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text  # these five are what literal_eval raises


def _text(text: str) -> str:
    """A text as in Python, with or without quotation marks; what is none stands for itself."""
    try:
        if text[:1] in ("'", '"'):
            return ast.literal_eval(text)
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except (ValueError, SyntaxError):
        return text


def check(key: str, kind: Kind, value: Any) -> Any:
    """Returns the value in the type that the key has.

    Raises:
      ValueError: it has another type, or is none of the key's choices, or outside its bounds.
    """
    if value is None and kind.may_be_none:
        return None
    fitted = _fitted(key, kind, value)
    if fitted is None:
        rows = f"rows, as {ROWS[key]!r}" if key in ROWS else "texts, as ('train',)"
        rows = "numbers, as (1, 2)" if kind.item is not str else rows
        rows = f"steps, as (0, 10, 500) or {tuple(LISTS)}" if key in STEPS else rows
        expected = _EXPECTED.get(kind.type, f"a tuple of {rows}")
        none = value is None or value == "None"
        unset = " or None" if kind.may_be_none else "; it cannot be None" if none else ""
        raise ValueError(f"{key}={show(value)} is not {expected}{unset}")
    if kind.type in (int, float) and not (allowed := bounds(key, kind.type)).holds(fitted):
        raise ValueError(f"{key}={show(value)} is not {allowed}")
    if key in FORMS and fitted and not re.fullmatch(FORMS[key][0], fitted):
        raise ValueError(f"{key}={show(value)} is not {FORMS[key][1]}")
    named = fitted if kind.type is tuple else (fitted,)
    for name in [row[0] for row in named] if key in ROWS else named:
        if key in CHOICES and name not in CHOICES[key]:
            choices = ", ".join(map(repr, CHOICES[key]))
            raise ValueError(f"{key}={show(name)} is not one of {choices}")
    return fitted


def _fitted(key: str, kind: Kind, value: Any) -> Any:
    """The value in this type; None where it has another."""
    if key in STEPS:
        value = (value,) if isinstance(value, str | int) else value  # as a command line has one
    if kind.type is tuple and isinstance(value, tuple | list):
        fit = _step if key in STEPS else functools.partial(_row, key) if key in ROWS else None
        items = tuple(fit(item) if fit else _item(kind.item, item) for item in value)
        return None if None in items else items
    # The text 'None' as a folder or a name is a slip of whoever meant to unset it.
    return None if value == "None" and key not in CHOICES else _item(kind.type, value)


def _item(kind: type, value: Any) -> Any:
    """The value as one of this kind, None where it is none."""
    if kind not in (int, float):
        return value if isinstance(value, kind) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if kind is int and (isinstance(value, int) or (math.isfinite(value) and value == int(value))):
        return int(value)
    if kind is float and -_MAX_FLOAT32 <= value <= _MAX_FLOAT32:
        return float(value)
    return None


def _step(value: Any) -> int | str | None:
    """The value as a step or the name of a list of them, None where it is neither."""
    if value in LISTS:
        return value
    step = _item(int, value)
    return step if step is not None and 0 <= step <= LARGEST else None


def _row(key: str, value: Any) -> tuple | None:
    """A row of such a key's in the types of its example, None where it does not fit."""
    kinds = [type(item) for item in ROWS[key][0]]
    if not isinstance(value, tuple | list):
        return None
    if key in _OPEN:
        kinds = kinds[: _OPEN[key]] + [str] * (len(value) - _OPEN[key])
    if len(value) != len(kinds):
        return None
    row = tuple(_item(kind, item) for kind, item in zip(kinds, value, strict=True))
    return None if None in row else row
