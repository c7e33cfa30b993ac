"""A work directory has one process at a time, and its files are old or new, never half of it."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.runs import workdir

ROOT = Path(workdir.__file__).parents[2]


def test_one_process_at_a_time_has_the_lock(tmp_path):
    code = (
        "import sys; from transformer_jax.runs import workdir; workdir.lock(sys.argv[1]);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(RuntimeError, match=f"in use by process {holder.pid} on"):
        workdir.lock(tmp_path)
    holder.kill()
    holder.communicate()
    workdir.lock(tmp_path)
    workdir.lock(tmp_path)  # again, which changes nothing
    assert str(os.getpid()) in (tmp_path / workdir.LOCK).read_text()


def test_locking_makes_the_directory(tmp_path):
    workdir.lock(tmp_path / "runs" / "new")
    assert (tmp_path / "runs" / "new" / workdir.LOCK).exists()


def test_a_file_is_old_or_new_but_never_half(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    workdir.write_atomically(path, "Grün\n")
    assert path.read_bytes() == "Grün\n".encode()

    def full(descriptor):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            workdir.write_atomically(path, "new")
    assert path.read_text("utf-8") == "Grün\n"
    workdir.write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


def test_results_are_read_as_they_were_written(tmp_path):
    assert workdir.read_results(tmp_path) == {}
    results = {"status": "finished", "test/bleu": 31.5, "spikes": [{"step": 3}], "name": "Grün"}
    workdir.write_results(tmp_path, results)
    assert workdir.read_results(tmp_path) == results
    workdir.write_results(tmp_path, {"status": "failed"})
    assert workdir.read_results(tmp_path) == {"status": "failed"}


def test_plain_values_are_json():
    value = {
        "numbers": [np.float32(0.5), np.int64(3), jnp.int32(4), True],
        "vectors": (jnp.arange(3), np.array([0.5, math.nan])),
        "infinite": {"a": -math.inf, "b": np.float32(math.inf), "c": math.nan},
        "text": "Grün",
        "none": None,
    }
    plain = workdir.plain(value)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain == {
        "numbers": [0.5, 3, 4, True],
        "vectors": [[0, 1, 2], [0.5, None]],
        "infinite": {"a": None, "b": None, "c": None},
        "text": "Grün",
        "none": None,
    }
    assert [type(number) for number in plain["numbers"]] == [float, int, int, bool]


def test_it_starts_no_jax():
    code = (
        "import sys, transformer_jax.runs.workdir; assert not {'jax', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True)


@pytest.mark.parametrize("content", [b"", b'{"a":', b"[1, 2]", b'{"name": "\xe4"}'])
def test_broken_results_are_named(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is broken .*: remove it"):
        workdir.read_results(tmp_path)


@pytest.mark.parametrize("content", [b"", b'["a"', b"[]", b"[1, 2]", b'{"a": 1}', b'["\xe4"]'])
def test_broken_labels_are_named(tmp_path, content):
    path = tmp_path / "labels.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is broken .*: copy"):
        workdir.read_labels(path)


@pytest.mark.parametrize("name", ["", "checkpoints", "tensorboard", "spikes"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, name):
    folder = tmp_path / "run"
    workdir.check_folders(folder)  # it need not be there yet
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    for path in (folder, folder / "deeper") if name == "" else (folder,):
        with pytest.raises(NotADirectoryError, match=f"{folder / name} is not a folder"):
            workdir.check_folders(path)


def test_a_work_directory_that_cannot_be_written_is_told_apart(tmp_path, monkeypatch):
    assert workdir.is_writable(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / workdir.LOCK)
    assert workdir.is_writable(tmp_path)
    (tmp_path / workdir.LOCK).touch()  # another user's
    assert not workdir.is_writable(tmp_path)

    def refuse(path, *arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    message = f"{tmp_path} cannot be written .Read-only file system.: choose another --workdir"
    with pytest.raises(PermissionError, match=message):
        workdir.lock(tmp_path)
