"""The embedded corpus as a data set of TFDS."""

from collections.abc import Iterator

import tensorflow_datasets as tfds

from transformer_jax.data.corpora.grammar import corpus


class EnglishGermanGrammar(tfds.core.GeneratorBasedBuilder):
    """The corpus as a TFDS data set, in the order of the permutation."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}
    COUNTS = {"train": 100_000, "validation": 1_000, "test": 2_000}

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "source": tfds.features.Text(),
                    "target": tfds.features.Text(),
                    "tags": tfds.features.Text(),
                    "pronoun": tfds.features.Text(),
                    "antecedent": tfds.features.Text(),
                    "antecedent_role": tfds.features.Text(),
                }
            ),
            supervised_keys=("source", "target"),
            disable_shuffling=True,  # already permuted; the street sentences stay in front
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        return {split: self._generate_examples(split) for split in self.COUNTS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        yield from enumerate(corpus.examples(split, self.COUNTS[split]))
