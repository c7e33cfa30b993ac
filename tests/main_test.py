"""Any error ends in one message; what nobody expected leaves its traceback in a file."""

import tempfile

import pytest

from tests.whole.command_line import call
from transformer_jax import main
from transformer_jax.config.load import load, to_json
from transformer_jax.configs import default


@pytest.fixture
def message(tmp_path, monkeypatch, capsys):
    """error -> what a command prints that raises it; files go into `tmp_path`."""
    monkeypatch.setattr(main, "_load", lambda changes: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def message(error, *flags):
        def raise_error(config):
            raise error

        monkeypatch.setattr(main, "_dispatch", raise_error)
        assert call(*flags) == 1
        out, err = capsys.readouterr()
        assert not out and err.startswith("error: ") and err.count("\n") == 1
        return err

    return message


@pytest.mark.parametrize("has_workdir", [True, False])
def test_an_unexpected_error_keeps_its_traceback_in_a_file(message, tmp_path, has_workdir):
    workdir = tmp_path / "run"
    workdir.mkdir()
    text = message(TypeError("not a number\nof any kind"), *[f"--workdir={workdir}"] * has_workdir)
    assert "unexpected TypeError: not a number;" in text and "report it" in text
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert str(path) in text and (path == workdir / "error.log") == has_workdir
    traceback = path.read_text()
    assert "Traceback" in traceback and "raise_error" in traceback


def test_a_folder_that_cannot_be_written_is_no_second_error(message, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    (tmp_path / "error.log").mkdir()
    assert "--verbosity=1 shows" in message(KeyError("x"), f"--workdir={tmp_path}")


@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError, RuntimeError])
def test_an_expected_error_leaves_no_file(message, tmp_path, kind):
    assert message(kind("no such thing"), f"--workdir={tmp_path}") == "error: no such thing\n"
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_another_process_fills_is_told_with_its_cure(message):
    text = message(RuntimeError("INTERNAL: Failed to initialize BLASLT support [executable_name]"))
    assert "full" in text and "XLA_PYTHON_CLIENT_PREALLOCATE=false" in text


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 23.8 GiB for an array"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nAllocator:\n..."),
    ],
)
def test_lack_of_memory_names_the_settings_that_decide_it(message, tmp_path, error):
    text = message(error)
    assert "llocat" in text
    assert all(key in text for key in ("data.batch_size", "model", "decode.beam_size"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--mode=generate"], default.get_config().data.cache_dir),
        (["--mode=inspect"], default.get_config().data.cache_dir),
        (["--mode=generate", "--config.data.cache_dir=mine"], None),
        (["--mode=generate", "--config=@/config.json"], None),
        (["--mode=train"], None),
    ],
)
def test_what_reads_a_run_takes_no_programs_from_where_that_says(
    tmp_path, monkeypatch, flags, expected
):
    """The folder would hold native code of whoever made the run. None: what the user names."""
    folders = []
    monkeypatch.setattr(main.compiled, "keep", folders.append)
    monkeypatch.setattr(main, "_dispatch", lambda changes: bool(main._load(changes)) - 1)
    config = load(default.__file__, {"data.cache_dir": "theirs"})
    (tmp_path / "config.json").write_text(to_json(config))
    assert call(f"--workdir={tmp_path}", *(flag.replace("@", str(tmp_path)) for flag in flags)) == 0
    assert folders == [expected] * (expected is not None)


def test_a_traceback_is_written_into_no_file_that_a_link_names(message, tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "error.log").symlink_to(tmp_path / "victim")
    text = message(KeyError("x"), f"--workdir={tmp_path}")
    assert f"The traceback is in {tmp_path}/error.log" in text
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_mistyped_value_of_a_flag_ends_in_one_line():
    with pytest.raises(SystemExit, match="^error: flag --split=tset: .*validation.test.*--help"):
        main._parse(["main", "--split=tset"])
