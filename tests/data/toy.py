"""A small set that TFDS knows by name, and settings of sources."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tests.defaults import settings
from transformer_jax.data.read.examples import SourceSettings


def source_settings(source: str, folder: Path, **changes: Any) -> SourceSettings:
    """The settings of a source that reads from `folder` and keeps what it prepares below it."""
    places = {"source": source, "dir": str(folder), "cache_dir": str(folder / "cache")}
    features = {"text_feature": "text", "label_feature": "label"}
    return settings(SourceSettings, "data", **(places | features | changes))


class ToyTranslation(tfds.core.GeneratorBasedBuilder):
    """Has a feature of every kind. TFDS knows it as "toy_translation"."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "en": tfds.features.Text(),
            "de": tfds.features.Text(),
            "tags": tfds.features.Sequence(tfds.features.Text()),
            "numbers": tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "B-x"])),
            "class": tfds.features.ClassLabel(names=["zero", "one", "two"]),
            "unlabelled": tfds.features.ClassLabel(names=["a"]),
            "score": tfds.features.Scalar(dtype=np.float32),
            "count": tfds.features.Scalar(dtype=np.int64),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        del dl_manager
        sizes = {"train": 6, "test": 2}
        return {split: self._generate_examples(split, n) for split, n in sizes.items()}

    def _generate_examples(self, split, n):
        for i in range(n):
            example = {"en": f"{split} {i}", "de": f"straße {i}", "class": i % 3, "unlabelled": -1}
            example |= {"tags": ["a", "é"][: i % 3], "numbers": [0, 1][: i % 3]}
            yield i, example | {"score": i / 2, "count": i}
