"""Opens work directories: their lock, what became of their runs, and what a checkpoint answers."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.commands import restore
from transformer_jax.commands.input_output import check_target, read_lines
from transformer_jax.config import effects
from transformer_jax.config.build import built
from transformer_jax.config.load import check_workdir, difference, identity, load, refused
from transformer_jax.configs.default import Config
from transformer_jax.evaluation.trained import Trained
from transformer_jax.inspection import memory
from transformer_jax.process import hosts
from transformer_jax.run import Run
from transformer_jax.runs import workdir as work
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, read_results


@contextlib.contextmanager
def opened(
    config: Config,
    workdir: Path,
    checkpoint: str | None,
    phases: Callable[[Run], memory.Phases] | None = None,
) -> Iterator[tuple[Run, Trained, str]]:
    """The run of a trained work directory, what a checkpoint of it answers, and its folder's name.

    Args:
      checkpoint: as of `restore.find`.
      phases: what the run is asked for, whose memory is checked before anything is restored; it may
        refuse the run.

    Raises:
      FileNotFoundError: there is no such checkpoint.
      ValueError: what `build`, `phases` and `restore.check` refuse.
    """
    check_trained(workdir, checkpoint)
    with built(config, workdir) as run:
        if phases is not None:
            memory.check(run, phases(run))
        folders = restore.find(run, workdir, checkpoint)
        yield run, restore.trained(run, workdir, folders), folders[0].stem


@contextlib.contextmanager
def opened_for_lines(
    config: Config,
    workdir: Path,
    checkpoint: str | None,
    source: str,
    target: str,
    phases: Callable[[Run], memory.Phases],
) -> Iterator[tuple[Run, Trained, list[str]]]:
    """`opened`, and the lines of `source`, for which something is to be written to `target`."""
    check_trained(workdir, checkpoint)
    check_target(target)
    lines = read_lines(source)
    with opened(config, workdir, checkpoint, phases) as (run, trained, _):
        run.data.warn_of_unknown_words(lines)
        yield run, trained, lines


def configured(
    workdir: Path | None,
    config_file: str | None,
    changes: Mapping[str, object] | Sequence[str],
    *,
    agrees: bool = True,
) -> Config:
    """The config of a file, or else the work directory's own, with changes.

    Args:
      changes: as of `load`.
      agrees: whether it has to agree with the work directory's own, where that has one.

    Raises:
      ValueError: there is no config, it does not agree, or a change has no effect.
    """
    saved = None if workdir is None else workdir / CONFIG
    if workdir is not None:
        _check_whole(workdir)
    if config_file is None and (saved is None or not saved.exists()):
        reason = "" if workdir is None or workdir.exists() else f"there is no folder {workdir}: "
        raise ValueError(f"{reason}give --config=FILE.py, or a --workdir that holds a config.json")
    config = load(config_file or str(saved), changes)
    if workdir is not None and agrees:
        check_own(config, workdir)
    effects.check(config, changes)
    return config


def check_own(config: Config, workdir: Path) -> None:
    """Checks that a work directory, if there is one, may continue with this config.

    Raises:
      NotADirectoryError: a file takes the place of a folder.
      ValueError: it belongs to another config, or to one that is missing, or is a checkpoint.
    """
    _check_whole(workdir)
    if (workdir / CONFIG).exists():
        reached = max(work.saved_steps(workdir), default=0)
        check_workdir(load(str(workdir / CONFIG)), config, reached)


def _check_whole(workdir: Path) -> None:
    work.check_folders(workdir)
    if work.is_checkpoint(workdir):
        raise ValueError(
            f"{workdir} is a checkpoint of a run: give its work directory, {workdir.parents[1]}, "
            f"and {workdir.name} as the checkpoint"
        )
    if (workdir / CHECKPOINTS).exists() and not (workdir / CONFIG).exists():
        raise ValueError(
            f"{workdir} holds checkpoints but no config.json: copy there the one of a checkpoint "
            "(checkpoints/STEP/config.json), or choose another --workdir"
        )


def check_trained(workdir: Path, checkpoint: str | None) -> None:
    """Raises FileNotFoundError at once where there is nothing to score or translate with."""
    own = checkpoint in (None, "last", "best") or checkpoint.isdecimal()
    if own and not (workdir / CHECKPOINTS).is_dir():
        raise FileNotFoundError(f"there is no checkpoint in {workdir}: train there first")


def lock(workdir: Path) -> None:
    """Keeps other jobs out of the work directory until this one ends.

    Raises:
      RuntimeError: a live process has the lock; the message names it.
      FileNotFoundError: the hosts have a folder of this name each, and not one in common.
    """
    hosts.first(lambda: work.lock(workdir))
    hosts.check_shared(workdir / work.LOCK)


def save(path: Path, text: str) -> None:
    """Replaces a file of the work directory as a whole; does nothing on other hosts."""
    if hosts.is_first():
        work.write_atomically(path, text)


def final_status(config: Config, workdir: Path) -> str | None:
    """The status with which exactly this config has been trained and scored here, if it has."""
    results = read_results(workdir)
    whole = is_scored(results) and results.get("steps", math.inf) >= config.train.steps
    if whole and is_own(config, workdir) and not _is_edited(config, workdir):
        return results["status"]
    return None


def is_scored(results: dict[str, Any]) -> bool:
    """Whether these are the results of a run that has made all its steps, scores and all."""
    status, whole = results.get("status"), results.get("first_bad_step", 0) is None
    scored = any(name.startswith(("validation/", "test/")) for name in results)
    return scored and (status in ("finished", "plateaued") or (status == "diverged" and whole))


def is_own(config: Config, workdir: Path) -> bool:
    """Whether the work directory was last trained with exactly this config."""
    saved = workdir / CONFIG
    return saved.exists() and not difference(load(str(saved)), config)


def _is_edited(config: Config, workdir: Path) -> bool:
    """Whether config.json is not that of the checkpoints; what restores one says how it differs."""
    for path in sorted((workdir / CHECKPOINTS).glob(f"*/{CONFIG}")):
        with contextlib.suppress(ValueError):  # a broken one
            ours, reached = identity(config), int(path.parent.stem)
            return bool(refused(identity(load(str(path))), ours, reached))
    return False
