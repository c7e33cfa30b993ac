"""A manifest tells a whole folder from a harmed one."""

from pathlib import Path

import pytest

from transformer_jax.checkpoint import manifest


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "state" / "d").mkdir(parents=True)
    (tmp_path / "state" / "d" / "array").write_bytes(bytes(100))
    (tmp_path / "progress.json").write_text("{}")
    manifest.write(tmp_path)
    return tmp_path


def flip_a_bit(folder: Path) -> None:
    (folder / "state" / "d" / "array").write_bytes(bytes(99) + b"\1")


def truncate(folder: Path) -> None:
    (folder / "progress.json").write_text("{")


def remove_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def tear_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-9])


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")


def remove_array(folder: Path) -> None:
    (folder / "state" / "d" / "array").unlink()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (flip_a_bit, "content of state/d/array has changed"),
        (truncate, "progress.json has 1 bytes, the manifest says 2"),
        (remove_manifest, "manifest.json is missing"),
        (tear_manifest, "manifest.json cannot be parsed"),
        (empty_manifest, "manifest.json cannot be parsed"),
        (remove_array, "state/d/array is missing"),
    ],
)
def test_harm_is_found_and_named(folder, harm, reason):
    assert manifest.fault(folder) is None
    harm(folder)
    assert reason in (manifest.fault(folder) or "")


def test_no_folder_is_not_whole(tmp_path):
    assert manifest.fault(tmp_path / "nowhere") == "manifest.json is missing"
    (tmp_path / "file").touch()
    assert manifest.fault(tmp_path / "file") == "manifest.json is missing"


def test_unhashed_files_are_checked_by_their_sizes(folder):
    flip_a_bit(folder)
    assert manifest.fault(folder, unhashed="state") is None
    assert manifest.fault(folder, unhashed="stat") is not None  # a folder, not a prefix
    (folder / "state" / "d" / "array").write_bytes(bytes(99))
    assert "99 bytes" in (manifest.fault(folder, unhashed="state") or "")
