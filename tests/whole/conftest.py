"""Runs on a tiny corpus, which a file's tests share."""

import functools

import pytest

from tests.whole.command_line import CONFIG, OTHERS, call
from transformer_jax.config.load import load, to_json
from transformer_jax.configs import default


@pytest.fixture(scope="module")
def folder(tmp_path_factory, compiled_once):
    """A corpus, a config file, and a finished run in `run`."""
    folder = tmp_path_factory.mktemp("main")
    for split, count in (("train", 64), ("test", 6)):
        lines = ["abcd"[n % 4] + " " + "efg"[n % 3] for n in range(count)]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
        labelled = [f"{'yes' if 'a' in line else 'no'} {line}\n" for line in lines]
        (folder / f"{split}.labelled").write_text("".join(labelled))
    _train(folder, "run", {})
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """A function from a name in `OTHERS` to its finished work directory."""

    @functools.cache
    def train(name):
        changes = OTHERS[name]
        if name == "classes":
            changes = changes | {"checkpoint.init_from": str(train("masked"))}
        return _train(folder, name, changes)

    return train


def _train(folder, name, changes):
    folders = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}
    config = load(default.__file__, CONFIG | folders | changes)
    (folder / f"{name}.json").write_text(to_json(config))
    assert call(f"--config={folder}/{name}.json", f"--workdir={folder}/{name}") == 0
    return folder / name
