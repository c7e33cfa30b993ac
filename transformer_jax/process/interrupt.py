"""SIGINT (Ctrl-C) and SIGTERM: obeyed at once and in one line, whatever the program is doing.

Python calls the handler of a signal in the main thread, between two instructions: not while a
library compiles, decodes or trains a tokenizer there. But it writes the signal's number into a pipe
as soon as the signal comes, and here a thread waits at the other end of that pipe.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator

# The exit status of a process that one of the two signals has ended: the same command continues.
EXIT_STATUS = 128 + signal.SIGTERM

Action = Callable[[signal.Signals], None]

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_actions: list[tuple[Action, set[signal.Signals]]] = []  # what calls which; the last one counts


def install() -> None:
    """From now on both signals end this process (see `end`), except within `obeying`.

    The first thing that a program does, since importing libraries takes seconds.
    """
    _actions.append((end, _SIGNALS))
    _listen()


@contextlib.contextmanager
def obeying(action: Action, *others: signal.Signals) -> Iterator[None]:
    """Both signals, and the others, call action(signal): at once, and one at a time.

    To be entered in the main thread. `action` is called there or, while it is busy, in another one.
    """
    _actions.append((action, _SIGNALS.union(others)))
    restore = _listen() if len(_actions) == 1 else None
    # With a handler, whatever it does, a signal comes through the pipe.
    previous = {number: signal.signal(number, lambda *_: None) for number in others}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if restore is not None:
            restore()
        _actions.pop()


def end(number: signal.Signals) -> None:
    """Ends the process with one line, without waiting for any of its threads.

    In a program that has not called `install`, as a notebook, SIGINT is KeyboardInterrupt in the
    main thread, as it was before: what else is in its memory stays.
    """
    if number == signal.SIGINT and _actions[0][0] is not end:
        main = ctypes.c_ulong(threading.main_thread().ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(KeyboardInterrupt))
        return

    def last_words() -> None:
        tell(f"Interrupted ({number.name}). Nothing saved is lost: run the same command again.")
        if sys.stdout is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()

    # In another thread, since whoever reads the output may have stopped reading.
    with contextlib.suppress(RuntimeError):  # the interpreter ends already
        speaking = threading.Thread(target=last_words, daemon=True)
        speaking.start()
        speaking.join(1.0)
    os._exit(EXIT_STATUS)


def tell(line: str) -> None:
    """Writes a line to standard error; on a terminal below the line that shows the progress."""
    if sys.__stderr__ is None:  # closed, so that descriptor 2 may be any file
        return
    with contextlib.suppress(OSError, ValueError):
        # Without the locks and buffers of Python, which an interrupted thread may hold.
        error = sys.__stderr__.fileno()
        os.write(error, f"{chr(10) * os.isatty(error)}{line}\n".encode())


def _listen() -> Callable[[], None]:
    """Begins to call the last action at both signals; returns a function that ends it."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    turn = threading.RLock()  # reentrant: a signal may interrupt its own handler

    def obey() -> bool:
        """Obeys the signals that have come; returns whether more may come."""
        with turn:
            try:
                while numbers := os.read(reader, 64):
                    for number in numbers:
                        action, obeyed = _actions[-1]
                        if number in obeyed:
                            action(signal.Signals(number))
            except BlockingIOError:
                return True
            return False

    def watch() -> None:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        while poll.poll() and obey():
            pass
        os.close(reader)

    watching = threading.Thread(target=watch, daemon=True, name="interrupt")
    watching.start()
    old_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # So that a signal has been obeyed when the main thread continues
    previous = {number: signal.signal(number, lambda *_: obey()) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(old_writer)
        os.close(writer)
        watching.join()

    return restore
