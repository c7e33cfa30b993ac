"""Small data of every kind of example, and data sets of it as tasks see them."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.data.toy import source_settings
from tests.defaults import SMALL
from transformer_jax.config import build_data
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.data.dataset import Dataset
from transformer_jax.data.prepare.recipe import NumberedBatch, Recipe
from transformer_jax.data.read.sources import LABELLED, NUMBERS, PAIRS, PICTURES, TAGGED, TEXTS
from transformer_jax.data.settings import DataSettings
from transformer_jax.tasks import TASKS

TOKENIZED = [name for name, task in TASKS.items() if task.recipe.tokenized]
SPLITS = {"train": ("train",), "validation": ("validation",), "test": ("test",)}
# A config of small batches of the files that `write` leaves.
TINY = SMALL | {
    **{f"data.{split}": names for split, names in SPLITS.items()},
    "data.row_source_length": 12,
    "data.row_target_length": 16,
    "data.batch_size": 4,
    "data.streams": 2,
    "evaluate.batch_size": 3,
    # Of images: five places each.
    "data.image_size": (8, 8),
    "data.channels": 1,
    "model.patch_size": 4,
}
# The source of the columns that a task reads, and the folder with its files.
SOURCE_OF = {
    PAIRS: ("text", "pairs"),
    TEXTS: ("text", "texts"),
    LABELLED: ("labelled", "labelled"),
    TAGGED: ("conll", "tagged"),
    NUMBERS: ("json", "numbers"),
    PICTURES: ("digits", "digits"),
}

_WORDS = "a b c d e f g h".split()
SENTENCES = {
    split: [" ".join([split, *_WORDS[: 1 + n % 5]]) for n in range(size)]
    for split, size in (("train", 13), ("validation", 5), ("test", 4))
}
# In turn; validation and test have one each that no other split has.
LABELS = {"train": ["yes", "no"], "validation": ["yes", "maybe"], "test": ["no", "never"]}
PROMPTS = ["train a b", "e", "train a b c d e f g h"]


def write(folder: Path) -> None:
    """A folder for each source, with the sentences and labels above."""
    for _, name in SOURCE_OF.values():
        (folder / name).mkdir()
    for split, sentences in SENTENCES.items():
        pairs = [(text, LABELS[split][n % 2]) for n, text in enumerate(sentences)]
        tagged = ["".join(f"{word} {tag}\n" for word in text.split()) for text, tag in pairs]
        for name, lines in {
            f"pairs/{split}.en": sentences,
            f"pairs/{split}.de": [text.upper() for text in sentences],
            f"texts/{split}": sentences,
            f"labelled/{split}": [f"{label} {text}" for text, label in pairs],
            f"tagged/{split}": tagged,
        }.items():
            (folder / name).write_text("".join(f"{line}\n" for line in lines))


@functools.cache
def _settings() -> DataSettings:
    return build_data.dataset(load(default.__file__, TINY), TASKS["translation"], None).settings


def make_settings(folder: Path, task: str | Recipe, **changes: Any) -> DataSettings:
    """Small settings of the task, or of any recipe, whose source is in the folder."""
    recipe = TASKS[task].recipe if isinstance(task, str) else task
    source, name = SOURCE_OF[recipe.reads]
    files = source_settings(source, folder / name, cache_dir=str(folder / "cache"))
    changes = {"source": files, "recipe": recipe, "mask_rate": 0.3} | changes
    settings = dataclasses.replace(_settings(), **changes)
    # As a config has it: without packing, a row is an example.
    return settings if settings.packing else dataclasses.replace(settings, rows=settings.longest)


def dataset(folder: Path, task: str | Recipe = "translation", **changes: Any) -> Dataset:
    return Dataset(make_settings(folder, task, **changes))


def rows_of(batches: Sequence[NumberedBatch], name: str = "inputs") -> dict[int, Any]:
    """What stands at the real places of every example, by its number."""
    real = "targets_segment_ids" if name == "targets" else "inputs_segment_ids"
    return {
        int(number): row[segments > 0].tolist()
        for batch, numbers in batches
        for number, row, segments in zip(numbers, batch[name], batch[real], strict=True)
        if number >= 0
    }
