"""What a process may take of memory, read from made-up machines."""

import platform
import sys

import pytest

from tests.processes import printed
from transformer_jax.process import machine

GIB = 2**30
MEMINFO = f"""\
MemTotal:       {16 * 2**20} kB
MemFree:        {1 * 2**20} kB
MemAvailable:   {10 * 2**20} kB
SwapTotal:      {2 * 2**20} kB
"""


@pytest.fixture
def root(tmp_path):
    return _write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"})


def _write(root, texts):
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(str(text))
    return root


def test_a_machine_without_limits_has_all_of_its_memory(root):
    assert machine.memory(root) == (18 * GIB, 10 * GIB)


def test_the_least_limit_of_the_groups_around_holds_and_cached_files_are_free(root):
    """Version 2: the own group has no limit, the one above 8 GiB, of which 1 cannot be taken."""
    _write(
        root,
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/step/memory.max": "max",
            "sys/fs/cgroup/job/step/memory.current": 3 * GIB,
            "sys/fs/cgroup/job/step/memory.stat": "anon 0\n",
            "sys/fs/cgroup/job/memory.max": 8 * GIB,
            "sys/fs/cgroup/job/memory.current": 4 * GIB,
            "sys/fs/cgroup/job/memory.stat": f"inactive_file {2 * GIB}\nactive_file {GIB}\n",
        },
    )
    assert machine.memory(root) == (10 * GIB, 7 * GIB)


def test_a_container_that_does_not_see_its_own_group_has_the_limit_of_the_topmost(root):
    """Version 1, as in Docker."""
    _write(
        root,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 4 * GIB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 3 * GIB,
            "sys/fs/cgroup/memory/memory.stat": f"active_file 5\ntotal_active_file {GIB}\n",
        },
    )
    assert machine.memory(root) == (6 * GIB, 2 * GIB)


def test_this_machine_has_a_size_even_without_proc(tmp_path):
    whole, free = machine.memory(tmp_path)
    assert whole == free > 0
    whole, free = machine.memory()
    assert 0 < free <= whole


# Prints the pages that the system hands out while memory is taken, filled and freed once more.
PROGRAM = """
import resource, sys, threading
from transformer_jax.process import machine

if sys.argv[1] == "keep":
    machine.keep_freed_memory()
elif sys.argv[1] == "api":
    import transformer_jax
    transformer_jax.load  # with libraries that start threads when they are imported
size = 100 << 20

def steps():
    b"x" * size
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * size
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=steps)  # as XLA's, which is not the main one
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is the GNU C library's")
def test_memory_that_is_freed_is_not_asked_for_again():
    def pages(argument):
        return int(printed(sys.executable, "-c", PROGRAM, argument))

    assert pages("keep") < 10
    assert pages("api") < 10
    assert pages("not") > 10  # otherwise the C library does so by itself, and we need not
