"""A manifest tells a whole folder from a harmed one."""

from pathlib import Path

import pytest

from transformer_jax.runs import manifest

ARRAY = "state/d/array"


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / ARRAY).parent.mkdir(parents=True)
    (tmp_path / ARRAY).write_bytes(bytes(100))
    (tmp_path / "progress.json").write_text("{}")
    manifest.write(tmp_path)
    return tmp_path


def test_unhashed_files_are_checked_by_their_sizes(folder):
    (folder / ARRAY).write_bytes(bytes(99) + b"\1")
    assert manifest.fault(folder, unhashed="state") is None
    assert manifest.fault(folder, unhashed="stat") is not None  # a folder, not a prefix
    (folder / ARRAY).write_bytes(bytes(99))
    assert "99 bytes" in (manifest.fault(folder, unhashed="state") or "")
