"""Where lines come from and go to is checked before the work, and no result is lost after it."""

import sys
from pathlib import Path

import pytest

from transformer_jax.commands import input_output
from transformer_jax.commands.generate import as_line


def test_a_target_of_someone_else_is_refused(tmp_path, monkeypatch):
    # Root may write.
    monkeypatch.setattr(input_output.os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(ValueError, match="cannot be written"):
        input_output.check_target(str(tmp_path / "new"))


def test_closed_streams_are_named(monkeypatch):
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, None)
    with pytest.raises(ValueError, match="standard output is closed.*--output=FILE"):
        input_output.check_target("-")
    with pytest.raises(ValueError, match="standard input is closed.*--input=FILE"):
        input_output.read_lines("-")


def test_a_file_is_replaced_as_a_whole(tmp_path):
    (tmp_path / "out").write_text("longer than before\n")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    input_output.write(str(tmp_path / "link"), "ä\n")
    assert (tmp_path / "out").read_bytes() == "ä\n".encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_results_for_a_full_disk_are_kept_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(input_output.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OSError, match="--output=/dev/full could not be written") as error:
        input_output.write("/dev/full", "decoded for hours\n")
    (copy,) = tmp_path.iterdir()
    assert copy.read_text() == "decoded for hours\n" and str(copy) in str(error.value)


@pytest.mark.parametrize(
    ("text", "line"), [("a\u2028b\fc\x85", "a\u2028b\fc\x85"), ("a\r\nb\nc\n", "a b c"), ("", "")]
)
def test_a_result_is_a_line_that_differs_in_line_breaks_alone(text, line):
    assert as_line(text) == f"{line}\n"
