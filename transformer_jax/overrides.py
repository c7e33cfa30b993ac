"""From a config file and changes to it to one checked, frozen config.

The default config is the schema: its keys are all there are, its values give the types, and a key
may be None where the default's is. `CHOICES` says which table lists what a named setting may be.

What a run is called, and what a work directory belongs to, follows from `identity`: from what
differs from the default. So a key that is added renames nothing, as long as its default is what the
code did before; a config.json without it means that.
"""

import ast
import importlib.util
import json
import math
from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from configs import default
from configs.default import Config
from transformer_jax.data.sources import SOURCES
from transformer_jax.data.tokenizer import TOKENIZERS
from transformer_jax.evaluation.metrics import BLEU_TOKENIZERS
from transformer_jax.evaluation.search import METHODS
from transformer_jax.models import FAMILIES
from transformer_jax.models.transformer import config as model_config
from transformer_jax.models.transformer.schemes import SCHEMES
from transformer_jax.tasks import TASKS
from transformer_jax.training.optimizer import OPTIMIZERS, SCHEDULES

# The settings that name one of a few things, and the tables whose keys these are.
CHOICES: Mapping[str, Collection[str]] = {
    "data.source": SOURCES,
    "data.tokenizer.kind": TOKENIZERS,
    "task.name": TASKS,
    "decode.method": METHODS,
    "evaluate.checkpoint": ("last", "best"),
    "evaluate.bleu_tokenizer": BLEU_TOKENIZERS,
    "model.family": FAMILIES,
    "model.residual": SCHEMES,
    **{f"model.{name}": table for name, table in model_config.CHOICES.items() if name != "head"},
    "optimizer.name": OPTIMIZERS,
    "optimizer.schedule": SCHEDULES,
}
# The keys whose tuples hold rows instead of texts, with an example.
ROWS = {"optimizer.groups": (("embedding/*", 0.1, 0.0),)}
# What a rerun in the same work directory may change. Data of another content in another folder is
# refused by its fingerprint. A name that ends in a dot is a whole section.
FREE_TO_CHANGE = (
    "train.log_every",
    "train.evaluate_every",
    "train.diagnostics_every",
    "data.dir",
    "data.cache_dir",
    "checkpoint.every",
    "checkpoint.keep_last",
    "checkpoint.best_metric",
    "checkpoint.average_last",
    "evaluate.",
    "decode.",
    "mesh.",
    "model.remat",
    "model.attention_kernel",
)


def load(config_file: str, overrides: Mapping[str, object] | Sequence[str] = ()) -> Config:
    """Returns the frozen config of a file with the overrides applied, every value checked.

    Args:
      config_file: "FILE.py" or "FILE.py:ARG", which defines `get_config(ARG)`; or "config.json", as
        a work directory holds it.
      overrides: by dotted key; or "KEY=VALUE" texts, as of a command line. The last one wins.

    Raises:
      ValueError: for an unknown key, a value of the wrong type or outside its set.
      FileNotFoundError: when there is no such file.
    """
    schema = default.get_config()
    config = _read(schema, config_file)
    if not isinstance(overrides, Mapping):
        pairs = (text.partition("=") for text in overrides)
        overrides = {key: _parse(schema, key, value) for key, _, value in pairs}
    checked = {key: _check(schema, key, value) for key, value in overrides.items()}
    # Through the ConfigDict, so that what a file derives by `get_ref` follows its override.
    config.update_from_flattened_dict(checked)
    return FrozenConfigDict(_nest(_check_all(schema, flatten(config))))


def replace(config: Config, changes: Mapping[str, object]) -> Config:
    """The config with other values, by dotted key; they are not checked."""
    return FrozenConfigDict(_nest(flatten(config) | dict(changes)))


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits a command line into other arguments and the overrides in it, as "KEY=VALUE" texts.

    An override is `--config.KEY=VALUE` or `--config.KEY VALUE`; ValueError when a value is missing.
    """
    others, overrides = [], []
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--":
            return [*others, argument, *arguments], overrides
        if not argument.startswith("--config."):
            others.append(argument)
            continue
        text = argument.removeprefix("--config.")
        if "=" not in text:
            value = next(arguments, None)
            if value is None or value.startswith("--"):
                raise ValueError(f"{argument} needs a value: write {argument}=VALUE")
            text = f"{text}={value}"
        overrides.append(text)
    return others, overrides


def flatten(config: Config) -> dict[str, object]:
    """Returns the leaves of a config by dotted key, in alphabetical order."""
    flat = {}
    for name in sorted(config):
        value = config[name]
        if isinstance(value, ConfigDict):
            flat |= {f"{name}.{key}": leaf for key, leaf in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def changes(config: Config, other: Config) -> dict[str, tuple[object, object]]:
    """Returns both values of each key whose value differs, by dotted key."""
    before, after = flatten(config), flatten(other)
    return {key: (before[key], after[key]) for key in before if before[key] != after[key]}


def difference(config: Config, other: Config) -> list[str]:
    """Returns one line "KEY: VALUE -> OTHER VALUE" for each key whose value differs."""
    return _lines(changes(config, other))


def _lines(changes: Mapping[str, tuple[object, object]]) -> list[str]:
    return [f"{key}: {before!r} -> {after!r}" for key, (before, after) in changes.items()]


def identity(config: Config) -> dict[str, object]:
    """Returns what a run is, by dotted key: what differs from the default and may not change."""
    differing = changes(default.get_config(), config).items()
    return {key: value for key, (_, value) in differing if not is_free(key)}


def is_free(key: str) -> bool:
    """Whether a rerun in the same work directory may change this key."""
    return any(key == name or (name[-1] == "." and key.startswith(name)) for name in FREE_TO_CHANGE)


def check_workdir(saved: Config, config: Config) -> None:
    """Checks that a work directory made with `saved` may continue with `config`.

    Free to change are intervals of logging, evaluation and saving, the settings of checkpoints,
    evaluation and decoding, folders, and what decides how but not what is computed (the mesh,
    what the backward pass computes again, the attention kernel). `train.steps` may grow under a
    schedule whose learning rates do not depend on it.

    Raises:
      ValueError: with the difference, when anything else has changed.
    """
    if lines := refused(saved, config):
        raise ValueError(
            "the work directory belongs to another config; choose another --workdir, or undo:\n  "
            + "\n  ".join(lines)
        )


def refused(saved: Config, config: Config) -> list[str]:
    """Returns the lines of `difference` that `check_workdir` refuses."""
    longer = config.train.steps > saved.train.steps
    open_ended = not SCHEDULES[saved.optimizer.schedule].ends
    return _lines(
        {
            key: values
            for key, values in changes(saved, config).items()
            if not (is_free(key) or (key == "train.steps" and longer and open_ended))
        }
    )


def to_json(config: Config) -> str:
    """Returns the config as JSON text that `load` reads back from a file, to an equal config."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def _read(schema: Config, config_file: str) -> Config:
    """Reads a config file of either kind; whatever goes wrong inside it is told with its name."""
    stem, colon, argument = config_file.partition(".py:")
    path = Path(stem + ".py" if colon else config_file)
    if not path.is_file():
        raise FileNotFoundError(f"there is no config file {path}")
    if path.suffix not in (".py", ".json"):
        raise ValueError(f"{path} is not a config file: those end in .py, a saved one in .json")
    try:
        if path.suffix == ".json":
            config = default.get_config()
            saved = flatten(_saved(path))
            if unknown := saved.keys() - flatten(schema).keys():
                raise ValueError(
                    f"it has the keys {', '.join(sorted(unknown))}, which this version does not "
                    "know: its run belongs to another version. Use that one, or train anew in "
                    "another --workdir"
                )
            config.update_from_flattened_dict(_check_all(schema, flatten(schema) | saved))
            return config
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        config = module.get_config(argument)
        if not isinstance(config, ConfigDict):
            raise ValueError("get_config returns no ConfigDict; does it end with `return config`?")
        return config
    except SyntaxError as error:
        raise ValueError(f"config file {config_file}: {error}") from error
    except Exception as error:
        # ConfigDict's message on a mistyped key ends with a line that holds the nearest name.
        message = str(error.args[0] if error.args else error).strip().splitlines() or [repr(error)]
        raise ValueError(f"config file {config_file}: {message[-1]}") from error


def _saved(path: Path) -> ConfigDict:
    """The content of a config.json; ValueError in one line where it is none."""
    mend = "restore it, in a work directory from checkpoints/STEP/config.json"
    try:
        values = json.loads(path.read_text("utf-8"))
    except ValueError as error:  # of an encoding as well, whose first argument is no message
        raise ValueError(f"{error}; {mend}") from error
    if not isinstance(values, dict):
        raise ValueError(f"it holds no settings; {mend}")
    return ConfigDict(values)


def _check_all(schema: Config, flat: Mapping[str, object]) -> dict[str, object]:
    """Checks every value, and that every key is there."""
    if missing := flatten(schema).keys() - flat.keys():
        raise ValueError(f"the config lacks {', '.join(sorted(missing))}; start from the default")
    return {key: _check(schema, key, value) for key, value in flat.items()}


def _parse(schema: Config, key: str, text: str) -> object:
    """Returns the value that a command line's text stands for under this key, still unchecked."""
    kind, may_be_none = _kind(schema, key)
    if may_be_none and text == "None":
        return None
    if kind is str:
        return text
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        try:
            return int(text)
        except ValueError:
            pass
    try:
        return float(text) if kind in (int, float) else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _check(schema: Config, key: str, value: Any) -> Any:
    """Returns the value in the type that the key has; ValueError when it does not fit."""
    kind, may_be_none = _kind(schema, key)
    if value is None and may_be_none:
        return None
    if (number := _number(kind, value)) is not None:
        return number
    if kind is tuple and isinstance(value, tuple | list):
        items = [_row(key, item) if key in ROWS else item for item in value]
        if all(isinstance(item, tuple if key in ROWS else str) for item in items):
            return tuple(items)
    choices = CHOICES.get(key)
    if kind is str and isinstance(value, str) and choices is not None:
        if value in choices:
            return value
        raise ValueError(f"{key}={value!r} is not one of {', '.join(map(repr, choices))}")
    # The text 'None' as a folder or a name is a slip of whoever meant to unset it.
    if kind is str and isinstance(value, str) and value != "None":
        return value
    if kind is bool and isinstance(value, bool):
        return value
    items = f"rows, as {ROWS[key]!r}" if key in ROWS else "texts, as ('train',)"
    expected = {
        **{int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"},
        tuple: f"a tuple of {items}",
    }[kind]
    unset = " or None" if may_be_none else "; it cannot be None" if value in (None, "None") else ""
    raise ValueError(f"{key}={value!r} is not {expected}{unset}")


def _number(kind: type, value: Any) -> Any:
    """The value as a number of this kind, None where it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        if kind is float or (kind is int and value == int(value)):
            return kind(value)
    return None


def _row(key: str, value: Any) -> tuple | None:
    """A row of such a key's in the types of its example, None where it does not fit."""
    example = ROWS[key][0]
    if not isinstance(value, tuple | list) or len(value) != len(example):
        return None
    row = tuple(
        item if isinstance(like, str) and isinstance(item, str) else _number(type(like), item)
        for like, item in zip(example, value, strict=True)
    )
    return None if None in row else row


def _kind(schema: Config, key: str) -> tuple[type, bool]:
    """Returns the type of a key's value, and whether it may be None. ValueError: no such key."""
    leaves = flatten(schema)
    if inside := [leaf for leaf in leaves if leaf.startswith(f"{key}.")]:
        raise ValueError(f"{key} is a section of the config; set its keys, as {inside[0]}")
    if key not in leaves:
        near = sorted(leaves, key=lambda leaf: -_likeness(key, leaf))[:3]
        raise ValueError(f"there is no config key {key}; the nearest are {', '.join(near)}")
    section, _, name = key.rpartition(".")
    owner = schema
    for part in filter(None, section.split(".")):
        owner = owner[part]
    return owner.get_type(name), leaves[key] is None


def _likeness(key: str, leaf: str) -> float:
    """How alike two dotted keys are, by their whole or by their last name, 0 to 1."""
    pairs = ((key, leaf), (key.split(".")[-1], leaf.split(".")[-1]))
    return max(SequenceMatcher(None, *pair).ratio() for pair in pairs)


def _nest(flat: Mapping[str, object]) -> dict:
    """The inverse of `flatten`."""
    nested: dict = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        owner = nested
        for section in sections:
            owner = owner.setdefault(section, {})
        owner[name] = value
    return nested
