"""Folders that are built once: whole, by one process, whatever breaks off."""

import multiprocessing

import pytest

from transformer_jax.data.cache import build_once, fingerprint


def test_fingerprint_tells_parts_apart():
    variants = [("a", "b"), ("ab",), ("a\nb",), (["a", "b"],), ("b", "a"), ("a",), ()]
    assert len({fingerprint(*parts) for parts in variants}) == len(variants)
    assert fingerprint({"x": 1, "y": 2}) == fingerprint({"y": 2, "x": 1})


def test_data_that_speaks_of_a_full_disk_is_not_one(tmp_path):
    def build(folder):
        raise ValueError(
            "f:2: expected a JSON object; got 'No space left, he requested and got it'"
        )

    with pytest.raises(ValueError, match="f:2: expected"):
        build_once(tmp_path / "thing", build)


def _build(folder, barrier, log):
    def build(temporary):
        with log.open("a") as file:
            file.write("built\n")
        (temporary / "a").write_text("1")
        (temporary / "b").write_text("2")

    barrier.wait()
    build_once(folder, build)
    assert (folder / "a").read_text() + (folder / "b").read_text() == "12"


def test_two_processes_at_once_build_one(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    arguments = (tmp_path / "thing", barrier, tmp_path / "log")
    processes = [context.Process(target=_build, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "built\n"
