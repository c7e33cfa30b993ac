"""A folder that `save_pretrained` wrote: its config, labels, tokenizer, and tensors to be read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.commands import restore
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.configs.default import Config
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.runs.workdir import TOKENIZER
from transformer_jax.tasks import TASKS
from transformer_jax.tools.convert import (
    FAMILIES,
    safetensors,
    sentences,
    special_tokens,
    tensors,
)
from transformer_jax.tools.convert.family import Family, Settings, matches


class Source(NamedTuple):
    """What a folder holds.

    Attributes:
      config: ours of the model.
      pictures: whether it reads images, and no texts.
      labels: of a classifier.
      tensors: theirs by the names that the family's rows have.
      tokenizer: None where there is none.
    """

    folder: Path
    family: Family
    config: Config
    pictures: bool
    labels: tuple[str, ...]
    tensors: dict[str, safetensors.Tensor]
    tokenizer: Tokenizer | None

    @property
    def fingerprint(self) -> str:
        """What decides the ids of texts."""
        return self.tokenizer.fingerprint if self.tokenizer else restore.NO_TOKENIZER


def read(folder: Path, chosen: Mapping[str, str], languages: Sequence[str | None]) -> Source:
    """Reads all but the tensors.

    chosen: settings in the place of those that the folder gives. languages: the codes of source and
    target.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file is broken, or something has no counterpart here.
    """
    family, settings, labels, found = _model(folder, chosen)
    config, pictures = load(default.__file__, settings), "data.image_size" in settings
    tokenizer, model = None, config.model
    if not pictures:
        tokenizer = special_tokens.tokenizer(folder, model.architecture, languages)
    if tokenizer is not None and tokenizer.vocab_size > model.vocab_size:
        raise ValueError(
            f"{folder}: {TOKENIZER} has {tokenizer.vocab_size} tokens, and the model "
            f"{model.vocab_size}: they are not of one checkpoint"
        )
    return Source(folder, family, config, pictures, labels, found, tokenizer)


def told(source: Source) -> list[str]:
    """What is to say of how texts are read and vectors made here, unlike there."""
    lines = sentences.left_out(source.folder)
    if source.tokenizer is not None:
        architecture = source.config.model.architecture
        return lines + special_tokens.unlike(source.folder, source.tokenizer.special, architecture)
    if source.pictures:
        return lines
    return [
        *lines,
        f"{source.folder} has no {TOKENIZER}, so that no command can read texts or export the "
        f"model: {restore.GIVE_TOKENIZER}",
    ]


def _model(
    folder: Path, chosen: Mapping[str, str]
) -> tuple[Family, dict[str, Any], tuple[str, ...], dict[str, safetensors.Tensor]]:
    """The family of a checkpoint, our settings, labels and tensors. chosen: of the settings."""
    found = safetensors.find(folder)
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    values = special_tokens.read(path)
    if (kind := str(values.get("model_type"))) not in FAMILIES:
        raise ValueError(f"{path}: model_type={kind!r} is not one of {', '.join(FAMILIES)}")
    if "quantization_config" in values:
        raise ValueError(
            f"{path}: the weights are quantised (quantization_config), which nothing here reads: "
            "take the checkpoint that they were made of"
        )
    family = FAMILIES[kind]
    found = tensors.named(found, family)
    theirs = Settings(values, str(path), found)
    settings = family.settings(theirs)
    for key, value in settings.items():
        # Tensors are missed by name below, but those of a million layers would take minutes.
        if key.endswith("_layers") and isinstance(value, int) and value > max(len(found), 1000):
            raise ValueError(f"{path}: {value} layers, but the files hold {len(found)} tensors")
    for pattern, view in family.views(theirs, settings).items():
        found |= {n: t._replace(view=view) for n, t in found.items() if matches(n, [pattern])}
    theirs.check_known(family.idle)
    if TASKS[settings["task.name"]].recipe.labels:
        if chosen:
            raise ValueError(f"{folder} has a head: leave out {', '.join(chosen)}")
        return family, settings, theirs.labels(*family.labels), found
    if "model.pooling" in settings:
        settings |= chosen or sentences.settings(folder, settings["data.max_source_length"])
    return family, settings, (), found
