"""From a config to what decides its data, or one clear message: the part of `build` about data."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.default import Config
from transformer_jax import tasks
from transformer_jax.config import kinds
from transformer_jax.config.kinds import Kind
from transformer_jax.data.dataset import Dataset
from transformer_jax.data.prepare.recipe import SIDES, Side
from transformer_jax.data.read.examples import SourceSettings
from transformer_jax.data.read.sources import SOURCES
from transformer_jax.data.serve.mixture import counts_of
from transformer_jax.data.settings import SPLITS, DataSettings, Named, Part
from transformer_jax.evaluation.answer_scores import METRICS
from transformer_jax.models import FAMILIES
from transformer_jax.runs.workdir import CONFIG, LABELS, TOKENIZER
from transformer_jax.tasks.task import Task

_SOURCE = tuple(field.name for field in dataclasses.fields(SourceSettings))
# What a row of data.parts may change.
_OF_PARTS = (
    *(f"data.{name}" for name in (*_SOURCE, *SPLITS) if name != "cache_dir"),
    "evaluate.metrics",
)


def dataset(config: Config, workdir: Path | None) -> Dataset:
    """The data of a checked config, without the devices and the model. Raises as `build`."""
    task = tasks.choose(config.task.name, config.model.architecture)
    check(config, task)
    return Dataset(settings(config, task, config.evaluate.batch_size, workdir))


def settings(
    config: Config, task: Task, evaluation_batch_size: int, workdir: Path | None
) -> DataSettings:
    data = config.data.to_dict()
    tokenizer, rows = data.pop("tokenizer"), data.pop("parts")
    longest: dict[Side, Any] = {side: data.pop(f"max_{side}_length") for side in SIDES}
    packed: dict[Side, Any] = {side: data.pop(f"row_{side}_length") for side in SIDES}
    whole = _named(config, "", 1)
    for name in (*SPLITS, *_SOURCE):
        del data[name]
    return DataSettings(
        source=whole.source,
        mixture=tuple(_part(whole.source, *row) for row in data.pop("mixture")),
        parts=tuple(_named(config, *row) for row in rows) if _in_parts(task) else (),
        metrics=whole.metrics,
        recipe=task.recipe,
        splits=whole.splits,
        tokenizer_kind=tokenizer["kind"],
        tokenizer_vocab_size=tokenizer["vocab_size"],
        tokenizer_train_bytes=tokenizer["train_bytes"],
        model_vocab_size=config.model.vocab_size,
        longest=longest,
        rows=packed if data["packing"] else longest,
        contiguous=goes_on(config),
        mask_rate=config.task.mask_rate,
        mean_span_length=config.task.mean_span_length,
        seed=config.seed,
        evaluation_batch_size=evaluation_batch_size,
        evaluation_readers=config.evaluate.batch_size,
        tokenizer_file=_tokenizer_file(config, workdir) if task.recipe.tokenized else None,
        labels_file=workdir / LABELS if workdir else None,
        **data,
    )


def goes_on(config: Config) -> bool:
    """Whether rows go on where those of the batch before ended: the model keeps what it read."""
    keeps = "memory_length" in FAMILIES[config.model.family].reads
    return keeps and config.model.memory_length > 0


def _in_parts(task: Task) -> bool:
    """Whether the data may consist of parts."""
    return "data.parts" in task.settings


def _named(config: Config, name: str, weight: float, *changes: str) -> Named:
    """A part of the data, by what it changes of the config, "KEY=VALUE" texts.

    Raises ValueError where a part cannot change that, or to that.
    """
    found: dict[str, Any] = {key: _value(config, key) for key in _OF_PARTS}
    for text in changes:
        key, _, value = text.partition("=")
        if key not in found:
            raise ValueError(
                f"data.parts: part {name!r} changes {key!r}; expected one of {', '.join(found)}"
            )
        kind = Kind(type(found[key]), False)
        found[key] = kinds.check(key, kind, kinds.parse(kind, value))
    source = {name: found[f"data.{name}"] for name in _SOURCE if name != "cache_dir"}
    metrics = found["evaluate.metrics"]
    if unknown := [metric for metric in metrics if metric not in METRICS]:
        raise ValueError(
            f"evaluate.metrics: {unknown[0]!r} is not one of {', '.join(map(repr, METRICS))}"
        )
    return Named(
        name,
        SourceSettings(**source, cache_dir=config.data.cache_dir),
        {split: found[f"data.{split}"] for split in SPLITS},
        weight,
        metrics,
    )


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return config[section][name]


def _part(like: SourceSettings, source: str, place: str, file: str, weight: float) -> Part:
    """A set of a mixture, whose other settings are those of `like`."""
    where = {"name": place} if source == "tfds" else {"dir": place}
    return Part(dataclasses.replace(like, source=source, **where), (file,), weight)


def _check_parts(config: Config, task: Task) -> None:
    """Checks the rows of data.parts, and that there are parts to train, validate and test with."""
    if not _in_parts(task) or not config.data.parts:
        return
    names = [name for name, *_ in config.data.parts]
    for number, name in enumerate(names):
        if not name or "/" in name or names.index(name) != number:
            raise ValueError(
                f"data.parts: the name {name!r} of row {number} is empty, has a slash, or is that "
                "of another row"
            )
    _check_weights("data.parts", [weight for _, weight, *_ in config.data.parts])
    parts = [_named(config, *row) for row in config.data.parts]
    for split in SPLITS[:2]:
        held_out = split == "validation" and config.data.validation_size
        if not held_out and not any(one.splits[split] for one in parts):
            raise ValueError(f"data.parts: no part has a data.{split}: name a split in one")
        for one in parts if held_out else ():
            _check_held_out(config, one.splits[split], f" of part {one.name!r}")
    if config.data.mixture:
        raise ValueError("data.mixture cannot be mixed in addition to data.parts: leave one empty")


def _check_held_out(config: Config, named: tuple[str, ...], of_part: str = "") -> None:
    """Raises ValueError where validation is held out of train, and a split is named for it too."""
    if named:
        raise ValueError(
            f"data.validation_size={config.data.validation_size} asks for examples of train, and "
            f"data.validation={named}{of_part} for others: set one of them to 0 or ()"
        )


def _check_mixture(config: Config) -> None:
    """Checks the rows of data.mixture."""
    if not config.data.mixture:
        return
    for number, (source, *_) in enumerate(config.data.mixture):
        if source not in SOURCES:
            raise ValueError(
                f"data.mixture: the source {source!r} of row {number} is not one of "
                f"{', '.join(SOURCES)}"
            )
    _check_weights("data.mixture", [weight for *_, weight in config.data.mixture])
    if config.data.validation_size:
        raise ValueError(
            f"data.validation_size={config.data.validation_size} cannot be held out of a mixture: "
            "name a data.validation"
        )


def _check_weights(key: str, weights: Sequence[float]) -> None:
    try:
        counts_of(weights)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _tokenizer_file(config: Config, workdir: Path | None) -> Path | None:
    """The work directory's, or that of the run whose parameters this one starts from."""
    own = workdir / TOKENIZER if workdir else None
    if not config.checkpoint.init_from or (own is not None and own.exists()):
        return own
    # A work directory, or a folder W/checkpoints/STEP in one.
    start = Path(config.checkpoint.init_from).expanduser()
    folders = start, *start.absolute().parents[:2]
    found = [folder / TOKENIZER for folder in folders if (folder / TOKENIZER).exists()]
    if not found and any((folder / CONFIG).exists() for folder in folders):
        raise FileNotFoundError(
            f"checkpoint.init_from={str(start)!r} has no {TOKENIZER}: restore it, or, where it was "
            "imported from a folder without one, have save_pretrained of a fast tokenizer write it "
            "there, and import that folder again into another --workdir"
        )
    if not found:
        raise FileNotFoundError(
            f"checkpoint.init_from={str(start)!r} is no work directory, nor a checkpoint in one: "
            "there is no tokenizer.json"
        )
    return found[0]


def check(config: Config, task: Task) -> None:
    """Checks the settings of the data, among themselves and against the rest of the config."""
    data, sides = config.data, task.recipe.sides
    at_least("data", data, **{f"max_{side}_length": 3 for side in sides})
    at_least("data", data, batch_size=1, streams=1, validation_size=0, workers=1)
    at_least("data.tokenizer", data.tokenizer, train_bytes=1)
    # Also where nothing reads them.
    lengths = [f"{kind}_{side}_length" for kind in ("max", "row") for side in SIDES]
    at_least("data", data, **dict.fromkeys(lengths, 1))
    _check_mixture(config)
    _check_parts(config, task)
    parts = _in_parts(task) and data.parts
    for split in () if parts else SPLITS:
        held_out = split == "validation" and data.validation_size
        mixed = split == "train" and data.mixture
        if not data[split] and not held_out and not mixed and split != "test":
            hint = ", or hold some of train out by data.validation_size"
            raise ValueError(f"data.{split} is empty: name a split{hint * (split == SPLITS[1])}")
        if held_out:
            _check_held_out(config, data.validation)
    for side in sides:
        longest, row = data[f"max_{side}_length"], data[f"row_{side}_length"]
        if data.packing and row < longest:
            raise ValueError(
                f"data.row_{side}_length={row} cannot hold an example of data.max_{side}_length="
                f"{longest} tokens"
            )
    if task.recipe.labels and data.text_feature == data.label_feature:
        raise ValueError(
            f"data.text_feature and data.label_feature are both {data.text_feature!r}: a text "
            "cannot be its own label"
        )
    parts = data.streams
    if data.batch_size % parts:
        raise ValueError(
            f"data.batch_size={data.batch_size} is no multiple of data.streams={parts}"
        )
    if data.batch_size % config.train.accumulation_steps:
        raise ValueError(
            f"data.batch_size={data.batch_size} is no multiple of train.accumulation_steps="
            f"{config.train.accumulation_steps}"
        )
    if goes_on(config) and data.mixture:
        raise ValueError(
            f"model.memory_length={config.model.memory_length} reads one text from beginning "
            "to end, and no data.mixture: set one of them to 0 or ()"
        )
    if not 0 < data.train_share <= 1:
        raise ValueError(f"data.train_share={data.train_share} does not lie in (0, 1]")
    if not 0 < config.task.mask_rate <= 1:
        raise ValueError(f"task.mask_rate={config.task.mask_rate} does not lie in (0, 1]")
    if config.task.mean_span_length < 1:
        raise ValueError(f"task.mean_span_length={config.task.mean_span_length} is less than 1")


def at_least(section: str, settings: Any, **minima: int) -> None:
    """Raises ValueError where a setting is less than its least value."""
    for name, least in minima.items():
        if (value := getattr(settings, name)) < least:
            raise ValueError(f"{section}.{name}={value} is less than {least}")
