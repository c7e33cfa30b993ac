"""A folder that `save_pretrained` wrote: its config, labels, tokenizer, and tensors to be read."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.commands import restore
from transformer_jax.config.load import difference, load
from transformer_jax.configs import default
from transformer_jax.configs.default import Config
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.runs.workdir import TOKENIZER
from transformer_jax.tasks import TASKS
from transformer_jax.tools.convert import (
    FAMILIES,
    pickled,
    safetensors,
    sentences,
    special_tokens,
    tensors,
)
from transformer_jax.tools.convert.family import Family, Settings, matches

# A step, as of step1000, stage1-step5000-tokens20B, checkpoint-500, step_20k and 1000.
_STEP = re.compile(r"(?:(?:.*\D)?(?:step|checkpoint)[-_]?)?(\d+)(k?)(?:-tokens\w+)?")


class Source(NamedTuple):
    """What a folder holds.

    Attributes:
      config: ours of the model.
      labels: of a classifier.
      tensors: theirs by the names that the family's rows have.
      tokenizer: None where there is none.
      notes: what is to say of the settings.
    """

    folder: Path
    family: Family
    config: Config
    labels: tuple[str, ...]
    tensors: dict[str, safetensors.Tensor]
    tokenizer: Tokenizer | None
    notes: list[str]

    @property
    def pictures(self) -> bool:
        """Whether the model reads images, and no texts."""
        return not TASKS[self.config.task.name].recipe.tokenized

    @property
    def fingerprint(self) -> str:
        """What decides the ids of texts."""
        return self.tokenizer.fingerprint if self.tokenizer else restore.NO_TOKENIZER


def revisions(folder: Path) -> dict[int, Path]:
    """The folders in it by the steps that their names say, which each has one of; the least first.

    Raises FileNotFoundError and ValueError.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"--checkpoint={folder}: there is no such folder")
    folders: dict[int, Path] = {}
    for path in sorted(path for path in folder.glob("[!.]*") if path.is_dir()):
        if not (match := _STEP.fullmatch(path.name)):
            raise ValueError(f"{path}: its name says no step, as step1000 does: rename or move it")
        step = int(match[1]) * 1000 ** len(match[2])
        if folders.setdefault(step, path) != path:
            raise ValueError(f"{folders[step]} and {path} are both of step {step}: move one away")
    if not folders:
        raise FileNotFoundError(f"--checkpoint={folder} has no folders, as step1000")
    return dict(sorted(folders.items()))


def read_all(
    folders: Mapping[int, Path], read: Callable[[Path], Source]
) -> tuple[Source, dict[int, dict[str, safetensors.Tensor]]]:
    """What the first folder holds, and the tensors of each by its step.

    Raises ValueError where they are not of one model.
    """
    first, by_step = None, {}
    for step, folder in folders.items():
        source = read(folder)
        first = first or source
        shapes = [{(name, x.shape) for name, x in each.tensors.items()} for each in (first, source)]
        lines = difference(first.config, source.config)
        lines += [f"the tensor {name}" for name, _ in sorted(shapes[0] ^ shapes[1])]
        lines += ["the labels"] * (first.labels != source.labels)
        lines += [TOKENIZER] * (first.fingerprint != source.fingerprint)
        if lines:
            raise ValueError(
                f"{folder} and {first.folder} are not of one model: {lines[0]} differs"
            )
        by_step[step] = source.tensors
    assert first is not None
    return first, by_step


def read(
    folder: Path, overrides: dict[str, Any], languages: Sequence[str | None], others: bool
) -> Source:
    """Reads all but the tensors.

    overrides: settings in the place of what the folder says. languages: of the source and the
    target. others: whether pickled files are read, too.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file is broken, or something has no counterpart here.
    """
    weights = safetensors.find(folder, {pickled.ONE_FILE: pickled.tensors} if others else {})
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    values = safetensors.read_json(path)
    if (kind := str(values.get("model_type"))) not in FAMILIES:
        raise ValueError(f"{path}: model_type={kind!r} is not one of {', '.join(FAMILIES)}")
    if "quantization_config" in values:
        raise ValueError(
            f"{path}: the weights are quantised (quantization_config), which nothing here reads: "
            "take the checkpoint that they were made of"
        )
    family = FAMILIES[kind]
    if family.text_config is not None and "text_config" in values:
        values = {**family.text_config, **values["text_config"], "model_type": family.name}
    weights = tensors.named(weights, family)
    theirs = Settings(values, str(path), weights)
    settings = family.settings(theirs)
    for key, value in settings.items():
        # Tensors are missed by name below, but those of a million layers would take minutes.
        if key.endswith("_layers") and isinstance(value, int) and value > max(len(weights), 1000):
            raise ValueError(f"{path}: {value} layers, but the files hold {len(weights)} tensors")
    for pattern, view in family.views(theirs, settings).items():
        weights |= {n: t.through(view) for n, t in weights.items() if matches(n, [pattern])}
    theirs.check_known(family.idle)
    labels = ()
    if TASKS[settings["task.name"]].recipe.labels:
        if "model.pooling" in overrides:
            raise ValueError(f"{folder} has a head: leave out model.pooling")
        labels = theirs.labels(*family.labels)
    elif "model.pooling" in settings and "model.pooling" not in overrides:
        settings |= sentences.settings(folder, settings["data.max_source_length"])
    config = load(default.__file__, settings | overrides)
    tokenizer = None
    if "data.image_size" not in settings:
        tokenizer = special_tokens.tokenizer(folder, config.model.architecture, languages)
    size = config.model.vocab_size
    if tokenizer is not None and tokenizer.vocab_size > size:
        raise ValueError(
            f"{folder}: {TOKENIZER} has {tokenizer.vocab_size} tokens, and the model {size}: they "
            "are not of one checkpoint"
        )
    return Source(folder, family, config, labels, weights, tokenizer, theirs.notes)


def notes(source: Source) -> list[str]:
    """What is to say of it, such as how texts are read here, unlike there."""
    lines = source.notes + sentences.left_out(source.folder)
    if source.tokenizer is not None:
        special, architecture = source.tokenizer.special, source.config.model.architecture
        lines += special_tokens.unlike(source.folder, special, architecture)
    elif not source.pictures:
        lines.append(
            f"{source.folder} has no {TOKENIZER}, so that no command can read texts or export the "
            f"model: {restore.GIVE_TOKENIZER}"
        )
    return lines
