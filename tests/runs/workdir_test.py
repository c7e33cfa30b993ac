"""A work directory has one process at a time, and its files are old or new, never half of it."""

import os
import subprocess
import sys

import pytest

from transformer_jax.runs import workdir


def test_one_process_at_a_time_has_the_lock(tmp_path):
    code = (
        "import sys; from transformer_jax.runs import workdir; workdir.lock(sys.argv[1]);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    command, pipe = [sys.executable, "-c", code, str(tmp_path)], subprocess.PIPE
    holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
    with pytest.raises(RuntimeError, match=f"in use by process {holder.pid} on"):
        workdir.lock(tmp_path)
    holder.kill()
    holder.communicate()
    for folder in (tmp_path, tmp_path, tmp_path / "runs" / "new"):  # again changes nothing
        workdir.lock(folder)
        assert str(os.getpid()) in (folder / workdir.LOCK).read_text()


def test_it_starts_no_jax():
    code = "import sys, transformer_jax.runs.workdir; assert not {'jax', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("results", content) for content in (b"", b'{"a":', b"[1, 2]", b'{"name": "\xe4"}')),
        ("results", b'{"status": null}'),
        ("results", b'{"steps": "7"}'),
        ("results", b'{"first_bad_step": [7]}'),
        ("results", b'{"spikes": 3}'),
        ("results", b'{"time/wall_seconds": null}'),
        *(("labels", content) for content in (b"", b'["a"', b"[]", b"[1, 2]", b'{"a": 1}')),
    ],
)
def test_a_broken_file_is_named_with_its_remedy(tmp_path, name, content):
    path = tmp_path / f"{name}.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is broken .*: .*remove it"):
        workdir.read_results(tmp_path) if name == "results" else workdir.read_labels(path)


@pytest.mark.parametrize("name", ["", "checkpoints", "tensorboard", "spikes"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, name):
    folder = tmp_path / "run"
    workdir.check_folders(folder)  # it need not be there yet
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    for path in (folder, folder / "deeper") if name == "" else (folder,):
        with pytest.raises(NotADirectoryError, match=f"{folder / name} is not a folder"):
            workdir.check_folders(path)


@pytest.mark.parametrize("samples", ['["a b"]', '[["a"]]', '[["a", [1]]]', "[[null, []]]", "7"])
def test_a_sample_is_a_line_and_its_results(tmp_path, samples):
    line = '{"step": 1, "samples": [["a", ["b", "c"]]]}\n'
    (tmp_path / "samples.jsonl").write_text(line)
    assert workdir.read_samples(tmp_path) == [{"step": 1, "samples": [["a", ["b", "c"]]]}]
    (tmp_path / "samples.jsonl").write_text(f'{line}{{"step": 2, "samples": {samples}}}\n')
    with pytest.raises(ValueError, match="samples.jsonl is broken .*: remove it"):
        workdir.read_samples(tmp_path)
