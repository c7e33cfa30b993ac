"""Later processes take compiled programs from the disk, whatever has become of the folder."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from transformer_jax.devices import compiled
from transformer_jax.devices.compiled import make_room
from transformer_jax.devices.mesh import make_mesh

# Prints what it computes, and how many programs came from the disk.
PROGRAM = """
import sys
import jax
import jax.numpy as jnp
from transformer_jax.devices import compiled

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
for folder in sys.argv[1:]:
    compiled.keep(folder)
x = jnp.arange(12.0).reshape(3, 4)
total = jax.jit(lambda x: jnp.tanh(x @ x.T).sum())(x)
print(total, events.count("/jax/compilation_cache/cache_hits"))
"""


@pytest.fixture
def compute(monkeypatch):
    """A function from cache_dirs to what PROGRAM prints; it may write nothing to stderr."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")

    def compute(*cache_dirs):
        command = [sys.executable, "-c", PROGRAM, *map(str, cache_dirs)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        number, hits = done.stdout.split()
        return number, int(hits)

    return compute


def test_programs_are_kept_apart_by_the_instructions_of_the_processor(tmp_path):
    """Whatever else /proc/cpuinfo says, as the speed of the moment, and for all cores alike."""

    def kind(*cores):
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text("\n\n".join(cores) + "\n")
        return compiled._kind(cpuinfo)

    old, new = "flags\t: sse avx", "flags\t: sse avx avx512f"
    assert kind(old) == kind(f"cpu MHz\t: 2000\n{old}", old)
    assert len({kind(old), kind(new), compiled._kind(tmp_path / "none")}) == 3


def mtimes(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*-cache")}


@pytest.mark.long
def test_a_second_process_compiles_nothing_and_a_broken_file_is_compiled_anew(compute, tmp_path):
    """The first folder of a process stays, so that what is to be read from no other folder says so
    before one is named."""
    number, hits = compute(tmp_path, tmp_path / "second")
    files = mtimes(tmp_path / "compiled")
    assert files and hits == 0 and not (tmp_path / "second").exists()
    assert compute(tmp_path) == (number, len(files))
    assert mtimes(tmp_path) == files
    whole = max(files).read_bytes()
    half = whole[: len(whole) // 2]  # as a process leaves it that is killed while it writes
    for path, content in zip(sorted(files), (b"", b"neither", half), strict=False):
        path.write_bytes(content)
    number_again, hits = compute(tmp_path)
    assert number_again == number and hits < len(files)


@pytest.mark.parametrize("cache_dir", ["file", "~nobody_of_this_name/cache"])
def test_a_folder_that_cannot_be_made_stops_nothing(compute, tmp_path, monkeypatch, cache_dir):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert compute(cache_dir)[1] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_users_own_folder_wins(compute, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "own"))
    compute(tmp_path / "cache")
    assert mtimes(tmp_path / "own") and not (tmp_path / "cache").exists()


def test_room_is_made_by_deleting_what_was_longest_not_used(tmp_path):
    for number, name in enumerate("abcd"):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 + number, 500))
    os.utime(tmp_path / "a", (2000, 500))  # written first, and read last
    (tmp_path / "empty").touch()  # which JAX would never write again
    make_room(tmp_path, 400)
    assert {path.name for path in tmp_path.iterdir()} == set("abcd")
    make_room(tmp_path, 399)
    assert {path.name for path in tmp_path.iterdir()} == set("acd")
    make_room(tmp_path, 100)
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    make_room(tmp_path / "nowhere", 0)


def test_options_reach_the_platform_that_they_are_meant_for_and_no_other():
    tpu: Any = SimpleNamespace(devices=SimpleNamespace(flat=[SimpleNamespace(platform="tpu")]))
    assert compiled.options(tpu) == compiled.OPTIONS["tpu"]
    assert compiled.options(make_mesh((1, 1, 1, 1), jax.devices())) == {}
