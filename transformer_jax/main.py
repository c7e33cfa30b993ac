"""The command line: prepares data, trains, evaluates, generates or embeds with, shows, replays.

    python -m transformer_jax.main --config=configs/quickstart.py --workdir=runs/a [--mode=train]
    python -m transformer_jax.main --workdir=runs/a --mode=generate --input=FILE --output=FILE
    python -m transformer_jax.main --workdir=runs/a --mode=replay --step=120

`--config.KEY=VALUE` changes a setting of the config.
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    import atexit
    import contextlib
    import gc

    from transformer_jax.process import interrupt, machine, progress

    # Nothing that an import makes is garbage. To look for some takes a third of their time. Nor is
    # it looked through later, least of all when the process ends.
    gc.disable()
    atexit.register(gc.freeze)  # of --help, which ends before all is loaded
    interrupt.install()
    machine.keep_freed_memory()
    loading = contextlib.ExitStack()
    loading.callback(gc.enable)
    loading.callback(gc.freeze)
    loading.enter_context(progress.phase("Loading libraries"))

import contextlib
import errno
import functools
import logging as python_logging
import shlex
import sys
import tempfile
import traceback
from pathlib import Path

from absl import app, flags, logging

from transformer_jax.commands import COMMANDS, Command
from transformer_jax.commands.message import message
from transformer_jax.commands.opening import configured
from transformer_jax.config import kinds
from transformer_jax.config.load import split
from transformer_jax.configs import default
from transformer_jax.devices import compiled
from transformer_jax.process import hosts, watch
from transformer_jax.runs.workdir import ERROR

_CONFIG = flags.DEFINE_string("config", None, "FILE.py[:ARGUMENT] (default: the workdir's own).")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run's files.")
_MODE = flags.DEFINE_enum("mode", "train", list(COMMANDS), "What to do.")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "last, best, a step, a folder, or all (evaluate)."
)
_SPLIT = flags.DEFINE_enum("split", None, ("validation", "test"), "What to score (default: test).")
_INPUT = flags.DEFINE_string("input", "-", "Lines to read; - is standard input.")
_OUTPUT = flags.DEFINE_string("output", "-", "Where results go; - is standard output.")
_STEP = flags.DEFINE_integer("step", None, "What to replay up to: the first bad step.")
_SEARCH = flags.DEFINE_bool("search", False, "Whether to try all meshes and remat policies.")
_EXPLAIN = flags.DEFINE_bool("explain", False, "Whether to list what moves the memory.")
_CHECK = flags.DEFINE_bool("check", False, "Whether to compare prepared data with its files.")
_LANGUAGES = [
    flags.DEFINE_string(f"{side}_language", None, f"The code of the {side}, as eng_Latn (import).")
    for side in ("source", "target")
]
_VERIFY = flags.DEFINE_string("verify", None, "Reference to compare with, safetensors (import).")
_REVISIONS = flags.DEFINE_bool(
    "revision_folders", False, "Whether --checkpoint holds folders by step, as step1000 (import)."
)
_PICKLED = flags.DEFINE_bool("pickled", False, "Whether to read tensors in .bin files (import).")
_FLAGS = _CONFIG, _WORKDIR, _CHECKPOINT, _SPLIT, _INPUT, _OUTPUT, _STEP, _SEARCH, _EXPLAIN, _CHECK
_FLAGS += (*_LANGUAGES, _VERIFY, _REVISIONS, _PICKLED)


def main(argv: list[str], changes: list[str]) -> int:
    """Runs one mode and returns the exit status; any error ends in one message."""
    try:
        _check_flags(argv[1:], changes)
        command = _command()
        status = command.load()(argv[1:]) if command.words else _dispatch(changes)
        watch.finish()
        return status
    except Exception as error:
        # With --verbosity=1 also where it came from.
        logging.debug("The error below was raised here:", exc_info=True)
        print(f"error: {message(error) or _unexpected(error)}", file=sys.stderr)
        # The checkpoint and the cache, which name their folder, have told what to do.
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
            print("Free some disk space and run the same command again.", file=sys.stderr)
        watch.fail(error)
        return 1


def _unexpected(error: Exception) -> str:
    """What the user reads of an error that nobody expected."""
    first_line = str(error).partition("\n")[0]
    return (
        f"unexpected {type(error).__name__}: {kinds.shorten(first_line)}; this is a mistake of the "
        f"program. {_keep_traceback()}; please report it"
    )


def _keep_traceback() -> str:
    """Writes the traceback of the error that is being handled into a file, and says where it is."""
    text = f"{shlex.join(sys.argv)}\n\n{traceback.format_exc()}"
    if _WORKDIR.value and Path(_WORKDIR.value).is_dir() and hosts.is_first():
        path = Path(_WORKDIR.value) / ERROR
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # a link leads nowhere
            path.write_text(text, "utf-8")
            return f"The traceback is in {path}"
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="transformer_jax.", suffix=".log", delete=False
        ) as file:
            file.write(text)
        return f"The traceback is in {file.name}"
    return "--verbosity=1 shows the traceback"


def _check_flags(words: list[str], changes: list[str]) -> None:
    """Raises ValueError for what the mode does not read, and for a flag without a value."""
    command = _command()
    if words and not command.words:
        raise ValueError(f"{words[0]!r} is not a flag: flags are written --NAME=VALUE")
    read = command.flags
    if not command.words:
        read = (*("config",) * (not command.makes_config), "workdir", *read)
    for flag in _FLAGS:
        if flag.present and flag.name not in read:
            raise ValueError(f"{_MODE.value} does not read --{flag.name}")
        if flag.value == "":
            raise ValueError(f"--{flag.name}= is empty: give it a value, or leave it out")
    unread = [text for text in changes if text.partition("=")[0] not in command.makes_config]
    if unread and (command.words or command.makes_config):
        raise ValueError(f"{_MODE.value} does not read --config.{unread[0]}")


def _load(changes: list[str]) -> default.Config:
    """The config that the flags name; where a work directory has its own, it has to agree.

    Raises ValueError where one of the changes has no effect.
    """
    workdir, command = Path(_WORKDIR.value) if _WORKDIR.value else None, _command()
    config = configured(workdir, _CONFIG.value, changes, agrees=command.needs_workdir)
    # A run may be another user's: what only reads it runs no programs from where it says.
    own = _CONFIG.value or any(change.startswith("data.cache_dir=") for change in changes)
    if not own and _MODE.value not in ("train", "preflight"):
        compiled.keep(default.get_config().data.cache_dir)
    return config


def _command() -> Command:
    return COMMANDS[_MODE.value]


def _dispatch(changes: list[str]) -> int:
    command, workdir = _command(), Path(_WORKDIR.value) if _WORKDIR.value else None
    config = None if command.makes_config else _load(changes)
    if workdir is None and command.needs_workdir:
        raise ValueError(f"{_MODE.value} needs a --workdir")
    values = [flags.FLAGS[name].value for name in command.flags]
    if config is None:
        return command.load()(workdir, *values, changes)
    return command.load()(config, workdir, *values)


def _join_and_run(argv: list[str], changes: list[str], loading: contextlib.ExitStack) -> int:
    """`main`, together with the other hosts of the job where there are any."""
    with loading:
        _command().load()
    try:
        if _command().joins_hosts:
            watch.start()
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return main(argv, changes)


def _parse(argv: list[str]) -> list[str]:
    """The words that are no flags; a mistyped flag ends the process in one message."""
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(f"error: {' '.join(str(error).split())}; ./launch.sh --help lists the flags")


def call(words: list[str]) -> int:
    """Does what a process with these words does, short of starting and ending, and leaves no flag.

    words: as of `sys.argv`. Returns the exit status.
    """
    argv, changes = split(words)
    try:
        return main(flags.FLAGS(argv), changes)
    finally:
        for flag in (*_FLAGS, _MODE):
            flags.FLAGS[flag.name].unparse()


def log_plainly() -> None:
    """Has messages look as other programs write them: without absl's date, process and line."""
    logging.use_absl_handler()
    form = python_logging.Formatter("%(levelname)s: %(message)s")
    logging.get_absl_handler().setFormatter(form)


def run(loading: contextlib.ExitStack) -> None:
    """The entry point of the process. loading: to be closed when all is imported."""
    try:
        argv, changes = split(sys.argv)
    except ValueError as error:
        sys.exit(f"error: {error}")
    # Warnings and worse, unless told otherwise: absl's own default would show Orbax at work.
    argv.insert(1, f"--verbosity={logging.WARNING}")
    log_plainly()
    joined = functools.partial(_join_and_run, changes=changes, loading=loading)
    app.run(joined, argv=argv, flags_parser=_parse)


if __name__ == "__main__":
    run(loading)
