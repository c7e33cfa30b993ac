"""Checkpoints as the commands use them: after a comparison with the work directory's files."""

import itertools
from collections.abc import Mapping
from pathlib import Path

from absl import logging

from transformer_jax.checkpoint.checkpoints import load_parameters, origin, step_of, whole
from transformer_jax.config.load import identity, load, refused
from transformer_jax.data.serve.streams import TrainStreams
from transformer_jax.evaluation.trained import Trained
from transformer_jax.process import progress
from transformer_jax.run import Run
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, LABELS, SPECIAL_IDS, TOKENIZER


def find(run: Run, workdir: Path, which: str | None) -> list[Path]:
    """The folders of the checkpoints whose mean is asked for, the newest first.

    which: "last" (the mean of checkpoint.average_last), "best", a step, or the folder of a
    checkpoint; None: as evaluate.checkpoint says.

    Raises:
      FileNotFoundError: there is no such checkpoint.
    """
    checkpoints, which = run.checkpoints(workdir), which or run.evaluate.checkpoint
    if which == "last":
        paths = checkpoints.newest(run.checkpoint.average_last)
    elif which == "best" or which.isdecimal():
        paths = [checkpoints.find("best" if which == "best" else int(which))]
    else:
        paths = [whole(which)]
    if not (folders := [folder for folder in paths if folder]):
        raise FileNotFoundError(f"there is no checkpoint in {workdir}: train there first")
    return folders


def trained(run: Run, workdir: Path, folders: list[Path]) -> Trained:
    """What can be asked of the mean of these checkpoints, which `check` has compared.

    Raises:
      ValueError: as `check`.
    """
    for folder in folders:
        check(run, workdir, folder)
    with progress.phase("Restoring the parameters"):
        params = run.abstract_state.params
        return run.trained(load_parameters(folders, params, run.evaluate.parameter_dtype))


IMPORTED = "imported"  # in the place of the fingerprint of data that nobody knows
NO_TOKENIZER = ""  # in the place of the fingerprint of a tokenizer that was not imported
GIVE_TOKENIZER = (
    f"have save_pretrained of a fast tokenizer write {TOKENIZER} into the folder that was "
    "imported, and import it again into another --workdir"
)


def check_data(folder: Path, streams: TrainStreams, mend: str = "choose another --workdir") -> None:
    """Raises ValueError where a checkpoint was trained on other data."""
    if (data := origin(folder).data) == IMPORTED:
        raise ValueError(
            f"the checkpoint {folder} was imported: to train from it, choose another --workdir and "
            f"set checkpoint.init_from={str(folder.parents[1])!r}"
        )
    if data != streams.fingerprint:
        raise ValueError(
            f"the checkpoint {folder} was trained on other data, or on batches that another "
            f"version of this code made: its fingerprint is {data[:12]}, that of the files at hand "
            f"{streams.fingerprint[:12]}; restore the data, or {mend}"
        )


def warn_of_scores(folder: Path, contents: Mapping[str, str]) -> None:
    """Warns where a split is scored whose examples are not those of the scores up to a checkpoint.

    contents: fingerprints of its examples, by split.
    """
    before = origin(folder).scored
    for split, content in contents.items():
        if before.get(split, content) != content:
            logging.warning(
                "data.%s has other examples than the scores up to step %d are of: its curve, and "
                "what is best by it, mix the two. Restore the data, or choose another --workdir",
                split,
                step_of(folder),
            )


def check(run: Run, workdir: Path, folder: Path) -> None:
    """Compares the config, tokenizer and labels at hand with those that a checkpoint belongs to.

    Of one that does not lie in this work directory the config's `model` alone has to be equal.

    Raises:
      ValueError: for the first that differs, with what differs and how to mend it; or the
        checkpoint was imported without a tokenizer.
    """
    source = origin(folder)
    if source.tokenizer == NO_TOKENIZER:  # now, since none should be trained in its place
        raise ValueError(
            f"the checkpoint {folder} was imported without a tokenizer: {GIVE_TOKENIZER}"
        )
    tokenizer = run.data.tokenizer_fingerprint
    own = folder.parent.resolve() == (workdir / CHECKPOINTS).resolve()
    changes = refused(identity(load(str(folder / CONFIG))), run.identity, step_of(folder))
    changes = [line for line in changes if own or line.startswith("model.")]
    if changes:
        what, mend, details = CONFIG, f"copy {folder / CONFIG} there", "\n  ".join(["", *changes])
    elif source.tokenizer != tokenizer:
        what = TOKENIZER
        mend = f"restore it and its {SPECIAL_IDS}, if any, or remove both to have it made again"
        details = f" (fingerprint {source.tokenizer[:12]} -> {tokenizer[:12]})"
    elif source.labels != run.data.labels:
        pairs = enumerate(itertools.zip_longest(source.labels, run.data.labels), start=1)
        number, (before, now) = next(pair for pair in pairs if len(set(pair[1])) > 1)
        what, mend = LABELS, f"copy {folder / LABELS} there"
        details = f" (label {number}: {before!r} -> {now!r})"
    else:
        return
    if not own:
        mend = "give the --workdir that the checkpoint belongs to"
    raise ValueError(
        f"{workdir / what} is not what the checkpoint {folder} was trained with; {mend}{details}"
    )
