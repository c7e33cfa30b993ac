"""Memory and cores: what this machine has of them. Knows no JAX."""

import contextlib
import ctypes
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

# Of mallopt, in the GNU C library's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_NEVER = 2**31 - 1


class Memory(NamedTuple):
    """Bytes. whole: all that the process could ever take, swap included; free: what it can now."""

    whole: float
    free: float


def memory(root: Path = Path("/")) -> Memory:
    """The machine's memory, or less where a control group (a container, a Slurm job) allows less.

    root: the folder that holds proc/ and sys/.
    """
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:  # not Linux
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Memory(whole, whole)
    sizes = {name: 1024 * int(size) for name, size in re.findall(r"(\w+):\s+(\d+) kB", text)}
    whole = sizes["MemTotal"]
    free = sizes.get("MemAvailable", whole)
    for limit, used in _groups(root):
        whole, free = min(whole, limit), min(free, limit - used)
    return Memory(whole + sizes.get("SwapTotal", 0), max(free, 0))


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each control group, of both versions, that this process belongs to."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            top, files, cached = "sys/fs/cgroup", ("memory.max", "memory.current"), ""
        elif "memory" in controllers.split(","):
            top, cached = "sys/fs/cgroup/memory", "total_"
            files = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # Limits of the groups above hold too. A container may see none but the topmost.
        group = PurePosixPath(name)
        for above in (group, *group.parents):
            folder = root / top / above.relative_to("/")
            try:
                limit, used = ((folder / file).read_text().strip() for file in files)
                statistics = (folder / "memory.stat").read_text()
            except OSError:
                continue
            # What is cached of files gives way.
            pattern = rf"^{cached}(?:in)?active_file (\d+)$"
            given_back = sum(map(int, re.findall(pattern, statistics, re.MULTILINE)))
            if limit.isdecimal():
                yield int(limit), int(used) - given_back


def check_constant(name: str, number: int, cure: str) -> None:
    """Raises ValueError where an array of so many bytes is too large to be part of a program.

    It is there four times while the program is compiled: NumPy's, JAX's, and two of the compiler.

    cure: what makes it smaller.
    """
    needed, whole = 4 * number, memory().whole
    if needed > whole:
        raise ValueError(
            f"this machine has {size(whole)} of memory, too little to compile {name} with "
            f"{size(needed)}. {cure}"
        )


def cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Has memory that is freed from now on stay with the process, for what it takes next.

    XLA on a CPU takes all that a step needs at its start, and frees it at its end. What exceeds 32
    or 64 MiB would go back to the system each time, which hands it out again page by page, zeroed:
    a quarter to a third of the time of steps that take more. For that, all threads have to share
    one heap, the only one that can grow so large. To be called before threads that allocate start,
    those of libraries that start some when they are imported too (pyarrow): the heap of one that
    has ended goes to the next thread that starts.

    Other C libraries than GNU's are left as they are.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _NEVER)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)


def give_back_freed_memory() -> None:
    """Gives the system what `keep_freed_memory` has kept so far."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def size(number: float) -> str:
    """Bytes as "1.5 GiB"."""
    units = "KiB MiB GiB TiB PiB EiB".split()
    power = min(max(int(math.log2(max(number, 1)) // 10), 1), len(units))
    return f"{number / 2 ** (10 * power):,.1f} {units[power - 1]}"
