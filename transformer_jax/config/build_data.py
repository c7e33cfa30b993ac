"""From a config to its data, or one clear message: the part of `build` that needs no devices."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from transformer_jax.config import kinds
from transformer_jax.config.kinds import Kind
from transformer_jax.configs.default import Config
from transformer_jax.data.dataset import Dataset
from transformer_jax.data.prepare import pictures
from transformer_jax.data.prepare.recipe import SIDES, Side
from transformer_jax.data.read.examples import SourceSettings
from transformer_jax.data.read.images import ImageSettings
from transformer_jax.data.read.sources import SOURCES
from transformer_jax.data.settings import SPLITS, DataSettings, Part
from transformer_jax.evaluation.scores import METRICS
from transformer_jax.models import FAMILIES
from transformer_jax.models.layers.settings import UNORDERED
from transformer_jax.runs.workdir import CONFIG, LABELS, TOKENIZER
from transformer_jax.tasks.task import Task

# What is read of images alone.
IMAGES = ("image_size", "image_fit", "channels", "augment")
_SOURCE = tuple(field.name for field in dataclasses.fields(SourceSettings))
# What a row of data.parts may change.
_OF_PARTS = (
    *(f"data.{name}" for name in (*_SOURCE, *SPLITS) if name != "cache_dir"),
    "evaluate.metrics",
)


def dataset(config: Config, task: Task, workdir: Path | None, shares: int = 1) -> Dataset:
    """The data of a config, of which nothing is read yet.

    Args:
      workdir: its tokenizer and labels are used where they exist.
      shares: how many devices share the rows of a batch. Rows of padding fill up the last batch of
        an evaluation anyhow: so there are as many as every device can share.

    Raises:
      ValueError, FileNotFoundError: with one message on what cannot be and how to mend it.
    """
    _check(config, task)
    data = config.data.to_dict()
    names = "tokenizer", "mixture", "parts", "seed"
    tokenizer, mixture, parts, seed = (data.pop(name) for name in names)
    longest: dict[Side, int] = {side: data.pop(f"max_{side}_length") for side in SIDES}
    packed: dict[Side, int] = {side: data.pop(f"row_{side}_length") for side in SIDES}
    images = _images(config) if task.recipe.reads_images else None
    if images is not None:
        longest["source"] = images.places
        if config.data.packing and packed["source"] < images.places:
            raise ValueError(
                f"data.row_source_length={packed['source']} cannot hold an image of data."
                f"image_size={images.size}, which has {images.places} patches and prefix tokens"
            )
    whole = _part(config, "", 1)
    for name in (*SPLITS, *_SOURCE, *IMAGES):
        del data[name]
    settings = DataSettings(
        source=whole.source,
        mixture=tuple(_set(whole, *row) for row in mixture),
        parts=tuple(_part(config, *row) for row in parts) if "data.parts" in task.settings else (),
        metrics=whole.metrics,
        recipe=pictures.sized(task.recipe, images) if images else task.recipe,
        images=images,
        splits=whole.splits,
        tokenizer_kind=tokenizer["kind"],
        tokenizer_vocab_size=tokenizer["vocab_size"],
        tokenizer_train_bytes=tokenizer["train_bytes"],
        model_vocab_size=config.model.vocab_size,
        longest=longest,
        rows=row_places(config, task),
        contiguous=bool(_memory(config)[1]),
        mask_rate=config.task.mask_rate,
        mean_span_length=config.task.mean_span_length,
        seed=config.seed if seed is None else seed,
        evaluation_batch_size=math.ceil(config.evaluate.batch_size / shares) * shares,
        evaluation_readers=config.evaluate.batch_size,
        tokenizer_file=_tokenizer_file(config, workdir) if task.recipe.tokenized else None,
        labels_file=workdir / LABELS if workdir else None,
        **data,
    )
    return Dataset(settings)


def row_places(config: Config, task: Task) -> dict[Side, int]:
    """Places of a row of training, by its side; a place holds a token."""
    kind = "row" if config.data.packing else "max"
    places: dict[Side, int] = {side: config.data[f"{kind}_{side}_length"] for side in SIDES}
    if task.recipe.reads_images and not config.data.packing:
        places["source"] = _images(config).places
    return places


def _images(config: Config) -> ImageSettings:
    """How images become rows of patches.

    Raises ValueError as `ImageSettings`, where there is not a mean and a deviation of each channel,
    or where learned positions would mean different places in different images.
    """
    data, model = config.data, config.model
    for key, values in ("mean", model.pixel_mean), ("std", model.pixel_std):
        if len(values) not in (1, data.channels) or (key == "std" and min(values) <= 0):
            raise ValueError(
                f"model.pixel_{key}={values} is not one number or data.channels={data.channels}"
                f"{' that are more than 0' * (key == 'std')}"
            )
    if data.image_fit == "inside" and model.positions == "learned":
        raise ValueError(
            "model.positions='learned' counts patches by rows, and data.image_fit='inside' makes "
            "images of several sizes: set the fit to 'stretch' or 'cover', or the positions to "
            "'learned_2d'"
        )
    return ImageSettings(
        size=data.image_size,
        fit=data.image_fit,
        channels=data.channels,
        augment=data.augment,
        patch_size=model.patch_size,
        prefix_tokens=model.prefix_tokens,
    )


def _memory(config: Config) -> tuple[str, Any]:
    """The key that gives the family's models memory, and its value.

    Where it is true, rows go on where those of the batch before ended.
    """
    key = FAMILIES[config.model.family].memory_key
    return f"model.{key}", key and config.model[key]


def _part(config: Config, name: str, weight: float, *changes: str) -> Part:
    """A part of the data, by what it changes of the config, "KEY=VALUE" texts.

    Raises ValueError where a part cannot change that, or to that.
    """
    values: dict[str, Any] = {}
    for key in _OF_PARTS:
        section, _, field = key.partition(".")
        values[key] = config[section][field]
    for text in changes:
        key, _, value = text.partition("=")
        if key not in values:
            raise ValueError(
                f"data.parts: part {name!r} changes {key!r}; expected one of {', '.join(values)}"
            )
        kind = Kind(type(values[key]), False)
        values[key] = kinds.check(key, kind, kinds.parse(kind, value))
    for split in SPLITS:
        if "" in (names := values[f"data.{split}"]):
            raise ValueError(f"data.{split}={names} has an empty name: leave it out")
    metrics = values["evaluate.metrics"]
    if unknown := [metric for metric in metrics if metric not in METRICS]:
        raise ValueError(
            f"evaluate.metrics: {unknown[0]!r} is not one of {', '.join(map(repr, METRICS))}"
        )
    source = {name: values[f"data.{name}"] for name in _SOURCE if name != "cache_dir"}
    return Part(
        name,
        SourceSettings(**source, cache_dir=config.data.cache_dir),
        {split: values[f"data.{split}"] for split in SPLITS},
        weight,
        metrics,
    )


def _set(like: Part, source: str, place: str, file: str, weight: float) -> Part:
    """A set of a mixture, whose other settings are those of `like`."""
    where = {"name": place} if source == "tfds" else {"dir": place}
    settings = dataclasses.replace(like.source, source=source, **where)
    return dataclasses.replace(like, source=settings, splits={"train": (file,)}, weight=weight)


def _tokenizer_file(config: Config, workdir: Path | None) -> Path | None:
    """The work directory's, or that of the run whose parameters this one starts from."""
    file = workdir / TOKENIZER if workdir else None
    key = "fork_from" if config.checkpoint.fork_from else "init_from"
    if not config.checkpoint[key] or (file is not None and file.exists()):
        return file
    # A work directory, or a folder W/checkpoints/STEP in one.
    start = Path(config.checkpoint[key]).expanduser()
    folders = start, *start.absolute().parents[:2]
    files = [folder / TOKENIZER for folder in folders if (folder / TOKENIZER).exists()]
    if not files and any((folder / CONFIG).exists() for folder in folders):
        raise FileNotFoundError(
            f"checkpoint.{key}={str(start)!r} has no {TOKENIZER}: restore it, or, where it was "
            "imported from a folder without one, have save_pretrained of a fast tokenizer write it "
            "there, and import that folder again into another --workdir"
        )
    if not files:
        raise FileNotFoundError(
            f"checkpoint.{key}={str(start)!r} is no work directory, nor a checkpoint in one: "
            "there is no tokenizer.json"
        )
    return files[0]


def _check(config: Config, task: Task) -> None:
    """Checks how the settings of the data go together, and with the rest of the config."""
    data = config.data
    _check_splits(config, task)
    least = 3 if task.recipe.tokenized else 1  # a token, and what stands before and behind it
    for side in task.recipe.sides:
        longest, row = data[f"max_{side}_length"], data[f"row_{side}_length"]
        if side == "source" and task.recipe.reads_images:
            continue  # whose patches are counted
        if longest < least:
            raise ValueError(f"data.max_{side}_length={longest} is not at least {least}")
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
    if data.packing and config.model.architecture in UNORDERED:
        raise ValueError(
            "data.packing=True puts several images into a row, and model.architecture="
            f"{config.model.architecture!r} tells the boxes of one: set it to False"
        )
    micro_batches = config.train.accumulation_steps
    for key, parts in ("data.streams", data.streams), ("train.accumulation_steps", micro_batches):
        if data.batch_size % parts:
            raise ValueError(f"data.batch_size={data.batch_size} is no multiple of {key}={parts}")
    key, memory = _memory(config)
    if memory and not task.recipe.tokenized:
        raise ValueError(
            f"{key}={memory} reads one text from beginning to end, and task.name="
            f"{task.recipe.name!r} reads numbers: set it to {type(memory)()}"
        )
    if memory and data.mixture:
        raise ValueError(
            f"{key}={memory} reads one text from beginning to end, and no data.mixture: set one of "
            f"them to {type(memory)()} or ()"
        )


def _check_splits(config: Config, task: Task) -> None:
    """Checks that there is something to train, validate and test with."""
    data = config.data
    _check_mixture(config)
    if "data.parts" in task.settings and data.parts:
        _check_parts(config)
        return
    if not data.train and not data.mixture:
        raise ValueError("data.train is empty: name a split")
    if data.validation_size:
        _check_held_out(config, data.validation)
    elif not data.validation:
        raise ValueError(
            "data.validation is empty: name a split, or hold some of train out by "
            "data.validation_size"
        )


def _check_parts(config: Config) -> None:
    """Checks the rows of data.parts, and that there are parts to train, validate and test with."""
    data = config.data
    names = [name for name, *_ in data.parts]
    for number, name in enumerate(names):
        if not name or "/" in name or names.index(name) != number:
            raise ValueError(
                f"data.parts: the name {name!r} of row {number} is empty, has a slash, or is that "
                "of another row"
            )
    parts = [_part(config, *row) for row in data.parts]
    for split in SPLITS[:2]:
        held_out = split == "validation" and data.validation_size
        if not held_out and not any(part.splits[split] for part in parts):
            raise ValueError(f"data.parts: no part has a data.{split}: name a split in one")
        for part in parts if held_out else ():
            _check_held_out(config, part.splits[split], f" of part {part.name!r}")
    if data.mixture:
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
    if config.data.validation_size:
        raise ValueError(
            f"data.validation_size={config.data.validation_size} cannot be held out of a mixture: "
            "name a data.validation"
        )
