"""From a config file and changes to it to one checked, frozen config.

The default config is the schema: its keys are all there are, its values give the types, and a key
may be None where the default's is. `kinds` checks a value, `effects` whether it has an effect.

What a run is called, and what a work directory belongs to, follows from `identity`: from what
differs from the default. So a key that is added renames nothing, as long as its default is what the
code did before; a config.json without it means that.
"""

import difflib
import functools
import itertools
import json
import operator
import re
import runpy
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from transformer_jax.config import kinds, rows
from transformer_jax.config.kinds import Kind, shorten
from transformer_jax.configs import default
from transformer_jax.configs.default import Config
from transformer_jax.data.read.open_file import decode_lines
from transformer_jax.runs.workdir import CHECKPOINTS, flatten, reading
from transformer_jax.training.schedule import SCHEDULES
from transformer_jax.training.update_rules import OPTIMIZERS

# What each key of the config may be
Schema = Mapping[str, Kind]

CONFIGS = Path(default.__file__).parent
# How ConfigDict's message on a key that is not there begins.
_MISTYPED = r"(?:Key )?[\"'](\w+)[\"']"
# The keys and whole sections that a rerun in the same work directory may change. Data of another
# content in another folder is refused by its fingerprint.
FREE_TO_CHANGE = (
    "train.log_every",
    "train.evaluate_every",
    "train.evaluate_at",
    "train.diagnostics_every",
    "train.diagnostics_at",
    "train.sharpness_every",
    "train.probes",
    "log",
    "data.dir",
    "data.cache_dir",
    "data.workers",
    "checkpoint.every",
    "checkpoint.at",
    "checkpoint.keep_last",
    "checkpoint.best_metric",
    "checkpoint.average_last",
    "evaluate",
    "decode",
    "mesh",
    "model.remat",
    "model.attention_kernel",
)
# What a run may change besides of the one that it is a fork of: nothing of what its state means.
FREE_IN_FORK = """
    optimizer.schedule optimizer.learning_rate optimizer.warmup_steps optimizer.burn_in_steps
    optimizer.decay_steps optimizer.decay_shape optimizer.stable_steps
    optimizer.final_learning_rate optimizer.weight_decay optimizer.weight_decay_power
    optimizer.clip_norm train.steps checkpoint
""".split()


def load(config_file: str, overrides: Mapping[str, object] | Sequence[str] = ()) -> Config:
    """Returns the frozen config of a file with the overrides applied, every value checked.

    Args:
      config_file: "FILE.py" or "FILE.py:ARG", which defines `get_config(ARG)`; or "config.json", as
        a work directory holds it. "configs/NAME.py" that is not there is one of ours.
      overrides: by dotted key; or "KEY=VALUE" texts, as of a command line. The last one wins.

    Raises:
      ValueError: for an unknown key, a value of the wrong type or outside its set.
      FileNotFoundError: when there is no such file.
    """
    base, schema = _defaults(default.get_config)
    if not isinstance(overrides, Mapping):
        pairs = (text.partition("=") for text in overrides)
        overrides = {key: kinds.parse(_kind(schema, key), text) for key, _, text in pairs}
    # First of all, since values may name them.
    named = overrides.get("rows")
    if named is not None:
        named = rows.load(kinds.check("rows", _kind(schema, "rows"), named))
    config = _read(schema, config_file, named)
    checked = _check_all(schema, {key: x for key, x in overrides.items() if key != "rows"})
    try:
        # Through the ConfigDict, so that what a file derives by `get_ref` follows its override.
        config.update_from_flattened_dict(checked)
        flat = flatten(config)
    except (ArithmeticError, TypeError) as error:
        message = f"{error!r} in what it derives by get_ref"
        raise ValueError(f"config file {config_file}: {message}") from error
    return replace(base, _check_all(schema, flat))


def replace(config: Config, changes: Mapping[str, Any]) -> Config:
    """The config with other values, by dotted key; their types alone are checked."""
    changed = ConfigDict(config.to_dict())
    changed.update_from_flattened_dict(changes)
    return FrozenConfigDict(changed)


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


def changes(config: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """Returns both values of each key whose value differs, by dotted key."""
    before, after = flatten(config), flatten(other)
    return {key: (before[key], after[key]) for key in before if before[key] != after[key]}


def difference(config: Config, other: Config) -> list[str]:
    """Returns one line "KEY: VALUE -> OTHER VALUE" for each key whose value differs."""
    pairs = changes(config, other).items()
    return [f"{key}: {before!r} -> {after!r}" for key, (before, after) in pairs]


def identity(config: Config) -> dict[str, Any]:
    """Returns what a run is, by dotted key: what differs from the default and may not change.

    Of a file of rows it is the content, wherever that lies.
    """
    differing = changes(_defaults(default.get_config)[0], config).items()
    settings = {key: value for key, (_, value) in differing if not _is_of(key, FREE_TO_CHANGE)}
    return settings | {"rows": rows.digest(settings["rows"])} if "rows" in settings else settings


def _is_of(key: str, names: Iterable[str]) -> bool:
    """Whether a key is one of these, or in a section that is."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def check_workdir(saved: Config, config: Config, reached: int = 0) -> None:
    """Checks that a work directory made with `saved` may continue with `config`.

    Free to change are trackers, intervals of logging, measuring and saving, the settings of
    checkpoints, evaluation and decoding, folders, and what decides how but not what is computed
    (the mesh, what the backward pass computes again, the attention kernel). `train.steps` may grow
    where no learning rate up to `reached`, the newest checkpoint's step, depends on it;
    `train.bad_step` may be no more "stop".

    Raises:
      ValueError: with the difference, when anything else has changed.
    """
    if lines := refused(identity(saved), identity(config), reached):
        raise ValueError(
            "the work directory belongs to another config; choose another --workdir "
            "(checkpoint.fork_from goes on from this run there), or undo:\n  " + "\n  ".join(lines)
        )


def refused(saved: Mapping[str, Any], ours: Mapping[str, Any], reached: int) -> list[str]:
    """Returns the lines of `difference` that `check_workdir` refuses, of two identities."""
    before, after = (replace(_defaults(default.get_config)[0], flat) for flat in (saved, ours))
    row, steps = SCHEDULES[before.optimizer.schedule], before.train.steps
    constant = steps - before.optimizer.decay_steps if row.reads else -1  # up to this step
    grows, why, name = after.train.steps > steps, "", before.optimizer.name
    if grows and OPTIMIZERS[name].by_steps:
        why = f" (every step of optimizer.name={name!r} depends on it)"
    elif grows and row.ends and reached > constant:
        why = f" (the learning rate of step {reached}, which is reached, depends on it)"
    elif grows:
        after = replace(after, {"train.steps": before.train.steps})
    if before.train.bad_step == "stop":
        after = replace(after, {"train.bad_step": "stop"})
    lines = difference(before, after)
    return [line + why if line.startswith("train.steps:") else line for line in lines]


def refused_in_fork(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Returns the lines of `difference` that a run may not have to the one that it is a fork of."""
    lines, name = refused(saved, ours, reached=0), saved.get("optimizer.name")
    free = set(FREE_IN_FORK)
    if name and OPTIMIZERS[name].by_steps:
        free.remove("train.steps")
    return [line for line in lines if not _is_of(line.partition(":")[0], free)]


def to_json(config: Config | Mapping[str, Any]) -> str:
    """Returns the config as JSON text that `load` reads back from a file, to an equal config."""
    return json.dumps(ConfigDict(config).to_dict(), indent=2, sort_keys=True) + "\n"


def _read(schema: Schema, config_file: str, named: str | None) -> Config:
    """Reads a config file of either kind; whatever goes wrong inside it is told with its name.

    named: what names the file of rows in place of the config's (None: that is loaded).
    """
    stem, colon, argument = config_file.partition(".py:")
    path = Path(stem + ".py" if colon else config_file)
    if not path.exists() and path.parent in (Path(), Path(CONFIGS.name)):
        file = CONFIGS / path.name
        path = file if file.is_file() else path  # so that its name is enough anywhere
    if not path.is_file():
        if path.exists() or path.is_symlink():
            raise ValueError(f"config file {path} is a folder, or a link to no file")
        raise FileNotFoundError(f"there is no config file {path}{_neighbours(path)}")
    if path.suffix not in (".py", ".json"):
        raise ValueError(f"{path} is not a config file: those end in .py, a saved one in .json")
    try:
        if path.suffix == ".json":
            return _read_json(schema, path, named)
        defined = runpy.run_path(str(path))
        if "get_config" not in defined:
            raise ValueError("it defines no get_config")
        config = defined["get_config"](argument)
        if not isinstance(config, ConfigDict):
            raise ValueError("get_config returns no ConfigDict; does it end with `return config`?")
        _check_complete(schema, flatten(config))
        unfrozen: Any = getattr(config, "as_configdict", lambda: config)()
        unfrozen.rows = rows.load(unfrozen.rows) if named is None else named
        return unfrozen
    except (Exception, SystemExit) as error:
        message = _mistake(schema, path, error)
        raise ValueError(f"config file {config_file}: {message}") from error


def _read_json(schema: Schema, path: Path, named: str | None) -> Config:
    """The config that a work directory holds; keys that are younger have their default."""
    with reading(path, "restore it, in a work directory from checkpoints/STEP/config.json"):
        content = json.loads("\n".join(decode_lines(path.read_bytes(), path.name)))
        if not isinstance(content, dict):
            raise ValueError("it is not the config of a run, which begins with {")
    flat = flatten(content)
    if unknown := flat.keys() - schema.keys():
        raise ValueError(
            f"it has the keys {', '.join(sorted(unknown))}, which this version does not know: its "
            "run belongs to another version. Use that one, or train anew in another --workdir"
        )
    config = default.get_config()
    if named is None:
        saved = kinds.check("rows", schema["rows"], flat.get("rows", config.rows))
        folder = path.resolve().parent
        named = rows.load(saved, folder.parents[1] if folder.parent.name == CHECKPOINTS else folder)
    flat["rows"] = named
    config.update_from_flattened_dict(_check_all(schema, flatten(config) | flat))
    return config


def _neighbours(path: Path) -> str:
    """What a config file that is not there may have been meant to be."""
    if path.suffix == ".json":
        return ""
    names = [file.stem for file in CONFIGS.glob("*.py") if file.stem[0] != "_"]
    near = [f"configs/{name}.py" for name in difflib.get_close_matches(path.stem, names)]
    return f"; did you mean {' or '.join(near)}?" if near else "; ./launch.sh configs lists some"


def _mistake(schema: Schema, path: Path, error: BaseException) -> str:
    """What went wrong in a config file, in one line, with the place."""
    if isinstance(error, SyntaxError):
        return str(error)
    # The deepest line of this file, or of a config that it starts from.
    folders = (path.resolve().parent, CONFIGS.resolve())
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if Path(frame.filename).resolve().parent in folders]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    # ConfigDict's message on a mistyped key is a repr of its whole section.
    cause = error.args[0] if isinstance(error, AttributeError) and error.args else error
    text = str(cause.args[0]) if isinstance(cause, KeyError) and cause.args else ""
    if name := re.match(_MISTYPED, text):
        line = (frames[-1].line or "") if frames else ""
        written = re.search(rf"[\w.]*\b{name[1]}\b[\w.]*", line)
        key = written[0].partition(".")[2] if written else ""
        return _unknown(schema, key or name[1]) + place
    if isinstance(error, ValueError | OSError):
        return f"{error}{place}"
    return shorten(repr(error), 300) + place


@functools.cache  # it takes as long as all else that loads a config
def _defaults(get_config: Callable[[], Config]) -> tuple[Config, Schema]:
    config, schema = get_config(), {}
    for key, value in flatten(config).items():
        *sections, name = key.split(".")
        owner = functools.reduce(operator.getitem, sections, config)
        # Tuples that are empty, or hold rows, tell no type of an item.
        items = value if isinstance(value, tuple) and key not in kinds.ROWS else ()
        schema[key] = Kind(owner.get_type(name), value is None, *map(type, items[:1]))
    return FrozenConfigDict(config), schema


def _kind(schema: Schema, key: str) -> Kind:
    """What a key may be. ValueError: there is no such key."""
    if key in schema:
        return schema[key]
    if within := [other for other in schema if other.startswith(f"{key}.")]:
        raise ValueError(f"{key} is a section of the config; set its keys, as {within[0]}")
    raise ValueError(_unknown(schema, key))


def _check_all(schema: Schema, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Checks every value."""
    return {key: kinds.check(key, _kind(schema, key), value) for key, value in flat.items()}


def _check_complete(schema: Schema, flat: Mapping[str, Any]) -> None:
    """Raises ValueError naming the keys that are missing, or their section where all of it is."""

    def lacks(name: str) -> bool:
        return not any(key == name or key.startswith(f"{name}.") for key in flat)

    names = dict.fromkeys(
        next(filter(lacks, itertools.accumulate(key.split("."), "{}.{}".format)))
        for key in schema
        if key not in flat
    )
    if names:
        raise ValueError(f"the config lacks {', '.join(names)}; start from default.get_config()")


def nearest(keys: Iterable[str], word: str) -> list[str]:
    """The three keys that are most like a word."""
    return sorted(keys, key=lambda key: -_likeness(word, key))[:3]


def _unknown(schema: Schema, key: str) -> str:
    near = ", ".join(nearest(schema, key))
    return f"there is no config key {shorten(key)}; the nearest are {near}"


def _likeness(key: str, leaf: str) -> float:
    """How alike two dotted keys are, by their whole or by their last name, 0 to 1."""
    pairs = ((key, leaf), (key.split(".")[-1], leaf.split(".")[-1]))
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
