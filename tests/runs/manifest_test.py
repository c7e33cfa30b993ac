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


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        *((ARRAY, bytes(99) + bytes([n]), f"content of {ARRAY} has changed") for n in range(1, 9)),
        ("progress.json", b"{", "progress.json has 1 bytes, the manifest says 2"),
        ("manifest.json", None, "manifest.json is missing"),
        ("manifest.json", b'{"files": {', "manifest.json cannot be parsed"),
        ("manifest.json", b"[]", "manifest.json cannot be parsed"),
        (ARRAY, None, f"{ARRAY} is missing"),
    ],
)
def test_harm_is_found_and_named(folder, name, content, reason):
    assert manifest.fault(folder) is None
    manifest.write(folder)  # of a copy with a changed file: it is no file of its own
    assert manifest.fault(folder) is None
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    assert reason in (manifest.fault(folder) or "")


def test_unhashed_files_are_checked_by_their_sizes(folder):
    (folder / ARRAY).write_bytes(bytes(99) + b"\1")
    assert manifest.fault(folder, unhashed="state") is None
    assert manifest.fault(folder, unhashed="stat") is not None  # a folder, not a prefix
    (folder / ARRAY).write_bytes(bytes(99))
    assert "99 bytes" in (manifest.fault(folder, unhashed="state") or "")
