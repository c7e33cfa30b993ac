"""The TFDS data set: the same examples in the same order, built without TensorFlow and JAX."""

import subprocess
import sys
from typing import Any

import tensorflow_datasets as tfds

from transformer_jax.data.corpora import grammar

BUILD = """
import sys
from transformer_jax.data.grammar import EnglishGermanGrammar

EnglishGermanGrammar.COUNTS = {"train": 40, "validation": 10, "test": 5}
builder = EnglishGermanGrammar(data_dir=sys.argv[1], file_format="array_record")
builder.download_and_prepare()
source = builder.as_data_source()
assert len(source["train"]) == 40
assert not {"tensorflow", "jax"} & set(sys.modules), "the builder must need neither"
print(builder.data_dir)
"""


def test_tfds_builder_keeps_order_and_needs_no_tensorflow(tmp_path):
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    built = subprocess.run(command, check=True, capture_output=True, text=True)
    source: Any = tfds.builder_from_directory(built.stdout.splitlines()[-1]).as_data_source()
    for split, count in (("train", 40), ("validation", 10), ("test", 5)):
        read = [{k: v.decode() for k, v in example.items()} for example in source[split]]
        assert read == list(grammar.examples(split, count))
