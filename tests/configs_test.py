"""Every config file loads, builds, and says only what the default does not."""

import ast
import json

import numpy as np
import pytest

from tests.tracked import CONFIGS
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.data.corpora import bigram
from transformer_jax.data.prepare import tokenizer
from transformer_jax.devices.mesh import AXES
from transformer_jax.tasks.span_corruption import SENTINELS
from transformer_jax.tools import accelerators

each = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


@each
def test_a_config_builds_without_its_data_where_vocabularies_are_given(path, tmp_path):
    """So that all its settings fit together; a model's vocabulary may be smaller than planned.

    On one device: what is meant for a TPU slice is left to preflight.
    """
    extra = [tokenizer.MASK, *SENTINELS]
    tokenizer.train_tokenizer("bytes", (), 0, extra).save(tmp_path / "tokenizer.json")
    (tmp_path / "labels.json").write_text(json.dumps(["yes", "no"]))
    one_device = {f"mesh.{axis}": 1 for axis in AXES} | {"model.attention_kernel": "xla"}
    config = load(str(path), one_device)
    run = build(config, tmp_path)
    assert run.model.config.architecture == config.model.architecture
    if run.task.recipe.labels:
        assert run.model.config.num_labels == 2


@each
def test_a_config_imports_configs_alone_and_its_header_names_its_slice(path):
    tree, topology = ast.parse(path.read_text()), load(str(path)).mesh.topology
    assert not topology or accelerators.parse(topology).name in (ast.get_docstring(tree) or "")
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert set(modules) <= {"ml_collections", "transformer_jax.configs", "typing"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


@pytest.mark.parametrize("split", ["simple", "length", "addprim_jump"])
def test_scan_takes_its_split_as_argument(split):
    config = load(f"configs/scan.py:{split}")
    assert all(split in name for name in (*config.data.train, *config.data.test))


@pytest.mark.parametrize(
    ("name", "argument", "words"),
    [
        ("scan", "jump", "simple, length, addprim_jump"),
        ("scan_recurrent", "jump", "'jump' is not a"),
        ("ptb_lstm", "text8", "'text8' is not a"),
    ],
)
def test_what_is_no_data_set_of_a_config_is_refused(name, argument, words):
    with pytest.raises(ValueError, match=words):
        load(f"configs/{name}.py:{argument}")


def test_a_batch_of_bigram_copy_is_32_rows_of_words_and_their_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(bigram, "SPLITS", {"train": 200, "validation": 3, "test": 2})
    data = build(load("configs/bigram_copy.py", {"data.cache_dir": str(tmp_path)})).data
    batch = next(data.train_streams())
    assert batch["targets"].shape == (32, 32) and np.all(batch["targets_segment_ids"] == 1)
    # The last word of the text, and so of one row of the split, is eos.
    np.testing.assert_array_equal(batch["targets"][:, :15], batch["targets"][:, 16:31])
    assert np.count_nonzero(batch["targets"][:, 15] != batch["targets"][:, 31]) <= 1
    assert data.unigram_entropy is not None
    assert abs(data.unigram_entropy - bigram.unigram_entropy()) < 0.1
