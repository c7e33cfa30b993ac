"""Has every process of a killed command note when it enters and leaves a phase, a save, a deletion.

A line of the file `NOTES` is a time of the clock that all processes share, the process, + or -, and
a name. Python imports this when it starts.
"""

import atexit
import gc
import os
import re
import sys
import time

from transformer_jax.process import progress

FILE = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
UNFINISHED = re.compile(r"checkpoints/\d+\.tmp$")

SETTINGS = (
    ("process.hosts", "START_SECONDS", 40),
    ("process.watch", "GONE_SECONDS", 20.0),
    ("data.prepare.prepare", "_ALONE", 1),
)


def note(sign: str, name: str) -> None:
    os.write(FILE, f"{time.monotonic_ns()} {os.getpid()} {sign}{name}\n".encode())


class Bar(progress.Bar):
    """A phase or a bar that is noted."""

    def __init__(self, what, **kind):
        note("+", what)
        super().__init__(what, **kind)

    def end(self, last=""):
        super().end(last)
        note("-", self._what)
        if self._what == "Loading libraries":
            note("+", "work")
            # Sooner than in the field, where hosts start cold and compile for long; and several
            # processes tokenise small files too.
            for module, name, value in SETTINGS:
                if loaded := sys.modules.get(f"transformer_jax.{module}"):
                    setattr(loaded, name, value)


def audit(event, arguments):
    if event not in ("open", "os.mkdir", "os.rmdir", "shutil.rmtree"):
        return
    path = str(arguments[0])
    if event == "open" and path.endswith("/checkpoints"):  # synced once the new folder is in place
        note("-", "save")
    elif event != "open" and UNFINISHED.search(path):
        note(*{"os.mkdir": "+ save", "os.rmdir": "- prune"}.get(event, "+ prune").split())


gc.set_threshold(50_000, 20, 50)
progress.Bar = Bar
sys.addaudithook(audit)
program = sys.orig_argv[1 + sys.orig_argv.index("-m")] if "-m" in sys.orig_argv else "-c"
note("+", program)
atexit.register(note, "-", "all")
