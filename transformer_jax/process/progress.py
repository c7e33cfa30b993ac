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

# What tqdm fills in, on a terminal and elsewhere.
_METER = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_PLAIN = "{desc}: {n:,} of {total:,} {unit}{postfix}"
_LEFT = ", {remaining} left"

_lock = threading.RLock()
_under_way: list["Bar"] = []  # the last one is shown
_hidden = False


def hide() -> None:
    """Shows nothing from now on: one process of a job is enough."""
    global _hidden
    _hidden = True


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    """Shows what is being done and for how long, then how long it took."""
    line, last = Bar(what), ""
    try:
        yield
        if line.seconds() >= (NOTED_SECONDS if _columns() else FIRST_SECONDS):
            last = f"{what} took {line.seconds():.1f} s"
    finally:
        line.end(last)


@contextlib.contextmanager
def bar(what: str, *, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Shows how many of `total` things are done; yields a function to call with how many more."""
    meter = Bar(what, total=total, unit=unit)
    try:
        yield lambda count: meter.update(meter.done + count)
    finally:
        meter.end()


class Bar:
    """Shows how many of `total` things are done and the time left; without `total`, the time.

    The time is measured from the first `update` on: before the first of the things was done, the
    program compiled.
    """

    def __init__(self, what: str, *, total: int | None = None, unit: str = "", done: int = 0):
        self.done = done
        self._what, self._total, self._unit, self._note = what, total, unit, ""
        self._first: int | None = None  # how many were done at the first update
        self._since = time.monotonic()
        self._due = self._since + FIRST_SECONDS  # when the next plain line is
        self._ended = threading.Event()
        with _lock:
            _under_way.append(self)
        threading.Thread(target=self._refresh, daemon=True, name="progress").start()

    def update(self, done: int, note: str = "") -> None:
        """Sets how many are done, and a note to show; displays nothing itself, so costs nothing."""
        if self._first is None:
            self._first, self._since = done, time.monotonic()
        self.done, self._note = done, note

    def seconds(self) -> float:
        """The time since the first update, or since the start."""
        return time.monotonic() - self._since

    def close(self) -> None:
        """Leaves the line as it is now if anything is done. May be called twice."""
        self.end("" if self._first is None else self._text(_columns()))

    def end(self, last: str = "") -> None:
        """Takes the line away; `last` stays in its place."""
        with _lock:
            if self in _under_way:
                self._ended.set()
                _under_way.remove(self)
                _write(("\x1b[K" if _columns() else "") + (f"{last}\n" if last else ""))

    def show(self) -> None:
        """Draws the line on a terminal; elsewhere prints it when it is due."""
        columns, now = _columns(), time.monotonic()
        if columns:
            # The cursor goes back, so that a warning does not begin behind the line.
            _write(f"\r{self._text(columns)[: columns - 1]}\x1b[K\r")
        elif now >= self._due:
            _write(f"{self._text(None)}\n")
            self._due = now + EVERY_SECONDS

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_SECONDS):
            with _lock:
                if _under_way[-1:] == [self]:
                    self.show()

    def _text(self, columns: int | None) -> str:
        if self._total is None:
            return f"{self._what}: {self.seconds():.0f} s"
        # Only here, since importing it takes a while, and most commands show no bar.
        from tqdm import tqdm

        return tqdm.format_meter(
            self.done,
            self._total,
            self.seconds(),
            ncols=columns and columns - 1,
            prefix=self._what,
            unit=self._unit,
            bar_format=_METER if columns else _PLAIN + _LEFT * (self.done < self._total),
            postfix=self._note,
            initial=self.done if self._first is None else self._first,
        )


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
