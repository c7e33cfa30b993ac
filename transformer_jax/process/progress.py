"""Lines on standard error that show what the program is doing, and how far it is.

On a terminal the innermost of what is under way has the last line, which is written anew every
second. Elsewhere, as in a log file, it prints a plain line after `FIRST_SECONDS` and then one every
`EVERY_SECONDS`. What takes less prints nothing.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

FIRST_SECONDS = 5.0
EVERY_SECONDS = 30.0
NOTED_SECONDS = 2.0  # a phase that took as long leaves a line on the terminal
_REFRESH_SECONDS = 1.0

_lock = threading.RLock()
_under_way: list["_Line"] = []  # the last one is shown
_refreshing = False
_hidden = False


def hide() -> None:
    """Shows nothing from now on: one process of a job is enough."""
    global _hidden
    _hidden = True


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    """Shows what is being done and for how long, then how long it took."""
    started = time.monotonic()

    def text(columns: int | None) -> str:
        return f"{what}: {time.monotonic() - started:.0f} s"

    line = _Line(text)
    try:
        yield
    except BaseException:
        line.close()
        raise
    seconds = time.monotonic() - started
    noted = line.printed if _columns() is None else seconds >= NOTED_SECONDS
    line.close(f"{what} took {seconds:.1f} s" if noted else "")


@contextlib.contextmanager
def bar(what: str, *, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Shows how many of `total` things are done; yields a function to call with how many more."""
    shown = Bar(what, total=total, unit=unit)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        shown.update(done)

    try:
        yield advance
    finally:
        shown.close()


class Bar:
    """Shows how many of `total` things are done, the speed and the time left.

    Both are measured from the first `update` on: before the first of the things was done, the
    program compiled.
    """

    def __init__(self, what: str, *, total: int, unit: str, done: int = 0):
        self._what = what
        self._total = total
        self._unit = unit
        self._done = self._first = done
        self._since = time.monotonic()
        self._note = ""
        self._updated = False
        self._line = _Line(self._text)

    def update(self, done: int, note: str = "") -> None:
        """Sets how many are done, and a note to show; displays nothing itself, so costs nothing."""
        if not self._updated:
            self._first, self._since, self._updated = done, time.monotonic(), True
        self._done, self._note = done, note

    def close(self, *, leave: bool = False) -> None:
        """Takes the line away, or leaves it as it is now if anything is done. May be called twice.

        leave: also where it has lasted no `FIRST_SECONDS`.
        """
        self._line.close(self._text(_columns()) if leave and self._updated else "")

    def _text(self, columns: int | None) -> str:
        # Only here, since importing it takes a while, and most commands show no bar.
        from tqdm import tqdm

        elapsed = time.monotonic() - self._since
        if columns is not None:
            return tqdm.format_meter(
                self._done,
                self._total,
                elapsed,
                ncols=columns - 1,
                prefix=self._what,
                bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
                postfix=self._note,
                initial=self._first,
            )
        parts = [f"{self._what}: {self._done:,} of {self._total:,} {self._unit}"]
        if self._note:
            parts.append(self._note)
        if self._first < self._done < self._total:
            left = elapsed / (self._done - self._first) * (self._total - self._done)
            parts.append(f"{tqdm.format_interval(left)} left")
        return ", ".join(parts)


class _Line:
    """What is under way. text: columns of the terminal (None: there is none) -> what is shown."""

    def __init__(self, text: Callable[[int | None], str]):
        global _refreshing
        self._text = text
        self._due = time.monotonic() + FIRST_SECONDS  # when the next plain line is
        self._drawn = False
        self.printed = False
        with _lock:
            _under_way.append(self)
            if not _refreshing:
                _refreshing = True
                threading.Thread(target=_refresh, daemon=True, name="progress").start()

    def show(self) -> None:
        columns, now = _columns(), time.monotonic()
        if columns is not None:
            # The cursor goes back, so that a warning does not begin behind the line.
            _write(f"\r{self._text(columns)[: columns - 1]}\x1b[K\r")
            self._drawn = True
        elif now >= self._due:
            _write(f"{self._text(None)}\n")
            self._due, self.printed = now + EVERY_SECONDS, True

    def close(self, last: str = "") -> None:
        """Takes the line away; `last` stays in its place."""
        with _lock:
            if self not in _under_way:
                return
            _under_way.remove(self)
            over = "\x1b[K" if self._drawn or (last and _columns() is not None) else ""
            _write(f"{over}{last}\n" if last else over)


def _refresh() -> None:
    """Shows the innermost line again and again, as long as there is one."""
    global _refreshing
    while True:
        time.sleep(_REFRESH_SECONDS)
        with _lock:
            if not _under_way:
                _refreshing = False
                return
            _under_way[-1].show()


def _columns() -> int | None:
    """The width of the terminal that standard error is; None where it is none."""
    if os.environ.get("TERM") == "dumb":
        return None
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):  # closed, or replaced
        return None


def _write(text: str) -> None:
    if not _hidden:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
