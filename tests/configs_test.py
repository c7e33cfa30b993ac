"""Every config file loads, is checked, and says only what the default does not."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from configs import default
from transformer_jax import overrides
from transformer_jax.models import config as model_config

FILES = sorted(
    path for path in (Path(__file__).parents[1] / "configs").glob("*.py") if path.stem[0] != "_"
)


def test_the_files_are_found():
    assert {"default", "quickstart", "multi30k", "scan"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_config_loads(path):
    assert overrides.load(str(path)).seed == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_config_imports_nothing_else(path):
    tree = ast.parse(path.read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert set(modules) <= {"ml_collections", "configs", "typing"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_streams_and_micro_batches_divide_the_batch(path):
    config = overrides.load(str(path))
    assert config.data.batch_size % config.data.streams == 0
    assert config.data.batch_size % config.train.accumulation_steps == 0


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("model.architecture", model_config.Architecture),
        ("model.residual", model_config.Residual),
        ("model.activation", model_config.Activation),
        ("model.norm", model_config.Norm),
        ("model.positions", model_config.Positions),
        ("model.tied_embeddings", model_config.TiedEmbeddings),
        ("model.dtype", model_config.Dtype),
    ],
)
def test_the_choices_of_the_config_are_the_models(key, names):
    assert set(default.CHOICES[key]) == set(get_args(names))


@pytest.mark.parametrize("split", ["simple", "length", "addprim_jump"])
def test_scan_takes_its_split_as_argument(split):
    scan = Path(__file__).parents[1] / "configs" / "scan.py"
    config = overrides.load(f"{scan}:{split}")
    assert all(split in name for name in (*config.data.train, *config.data.test))


def test_scan_has_no_other_split():
    scan = Path(__file__).parents[1] / "configs" / "scan.py"
    with pytest.raises(ValueError, match="simple, length, addprim_jump"):
        overrides.load(f"{scan}:jump")
