"""A run that starts from the parameters of another one, as far as they fit."""

import collections
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Float, PyTree

from transformer_jax.checkpoint import arrays
from transformer_jax.checkpoint.checkpoints import Checkpoints, evaluated, fault, origin
from transformer_jax.process import hosts
from transformer_jax.runs.workdir import CHECKPOINTS, INIT_FROM, reading

# Parameters of models that read patches: learned positions of an encoder alone, or of one of two.
_STEM, _TABLES = "embedding/stem/", ("positions/table", "source_positions/table")
_SHOWN = 4  # parameters of each kind that the report names


class InitReport(NamedTuple):
    """What became of the parameters of a model and of the checkpoint that it starts from, by path.

    taken: in both, with one shape. new: in the model alone, or not taken. left: in the checkpoint,
    each with the reason why it was not taken. ones: of the new ones, factors that start at 1.
    resampled: of the taken ones, the table of learned positions of images of another size.
    """

    checkpoint: str
    taken: tuple[str, ...]
    new: tuple[str, ...]
    left: dict[str, str]
    ones: tuple[str, ...] = ()
    resampled: tuple[str, ...] = ()


class Grid(NamedTuple):
    """Where the learned positions of images are: vectors before the patches, rows and columns."""

    before: int
    rows: int
    columns: int


def init_from(
    path: str | os.PathLike,
    params: PyTree,
    *,
    before: Path,
    config: Mapping[str, Any],
    tokenizer: str,
    labels: Sequence[str],
    token_paths: Collection[str],
    label_paths: Collection[str],
    factor_paths: Collection[str],
) -> tuple[PyTree, InitReport]:
    """`params` with those of another run in the place of its own where they fit, and a report.

    path: a work directory, whose newest checkpoint counts, or the folder of a checkpoint.
    before: the init_from.json of an earlier start, whose checkpoint is taken again if it is there.
    config: this run's, as its config.json has it.
    tokenizer: the fingerprint of this run's.
    token_paths: the parameters that mean something only together with the tokenizer, such as the
      embedding.
    label_paths: those that mean something only together with `labels`, such as a head's.
    factor_paths: those with which the model computes at 1 what it does without them, such as
      Admin's omega. Where the checkpoint lacks one, but has others of its stack, it starts at 1.

    A leaf is taken where path and shape are equal; it gets the dtype and sharding of the one that
    it replaces. Those of `token_paths` and `label_paths` are taken only where that run has the same
    tokenizer and `labels`: as many others give the same shapes. The table of learned positions of
    images is resampled where these have other patches.

    Raises:
      FileNotFoundError: when there is no whole checkpoint.
      ValueError: when nothing fits, or the checkpoint does not say which tokenizer it has.
    """
    source = Path(path).expanduser().absolute()
    earlier = hosts.first(lambda: _earlier(before, source))
    folder = Path(earlier) if earlier else source_of(source)
    saved = arrays.saved(folder)
    name = evaluated(saved)
    ours, theirs = arrays.flat(params), arrays.flat(saved[name])
    their = origin(folder)
    misfits = {path: reason for path in theirs if (reason := _misfit(theirs[path], ours.get(path)))}
    table, grids = _grids(their.config, theirs, config, ours)
    resampled: tuple[str, ...] = ()
    if grids and grids[0].before == grids[1].before:
        if theirs[table].shape[1] == ours[table].shape[1]:
            resampled = (table,)
            misfits.pop(table, None)
    elif grids:
        misfits[table] = "other places stand before the patches of its images"
    for differs, paths, reason in (
        (their.tokenizer != tokenizer, token_paths, "it is of another tokenizer"),
        (their.labels != tuple(labels), label_paths, "it is of other labels"),
    ):
        if differs:
            misfits |= {path: reason for path in theirs if path in paths and path not in misfits}
    matches = tuple(path for path in theirs if path not in misfits)
    if not matches:
        lines = [f"{path}: {reason}" for path, reason in misfits.items()]
        raise ValueError(
            f"no parameter of {folder} is one of this model's, for its architecture and sizes "
            "differ: " + "; ".join(lines[:4])
        )

    def wanted_as(path: str, leaf: jax.Array) -> Any:
        if path in resampled:
            return jax.ShapeDtypeStruct(theirs[path].shape, theirs[path].dtype)
        return leaf if path in matches else None

    wanted = arrays.map_paths(wanted_as, params)
    leaves = arrays.flat(arrays.load(folder, {name: wanted})[name])

    stacks = {path.partition("/")[0] for path in matches}
    new = tuple(path for path in ours if path not in leaves)
    ones = tuple(path for path in new if path in factor_paths and path.partition("/")[0] in stacks)

    def replace(path: str, leaf: jax.Array) -> jax.Array:
        if path in ones:
            return jnp.ones_like(leaf)
        if path in resampled:
            before, after = grids
            whole = resample(np.asarray(leaves[path], np.float64), before, after, len(leaf))
            cut = whole.astype(leaf.dtype)
            return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda at: cut[at])
        return leaves[path].astype(leaf.dtype) if path in leaves else leaf

    report = InitReport(str(folder), matches, new, misfits, ones, resampled)
    return arrays.map_paths(replace, params), report


def format_report(report: InitReport) -> str:
    """The report as lines of text: counts, what was taken by module, some of what was not and why.

    Where fewer than half of the parameters were taken, the last line warns of that.
    """
    checkpoint, matches, new, misfits, ones, resampled = report
    total = len(matches) + len(new)
    modules = collections.Counter(path.partition("/")[0] for path in matches)
    lines = [
        f"from {checkpoint}: {len(matches)} of {total} parameters taken, {len(new)} new, "
        f"{len(misfits)} left",
        "  taken  " + ", ".join(f"{count} of {module}" for module, count in modules.items()),
    ]
    lines += _some("new", [path for path in new if path not in misfits and path not in ones])
    lines += _some("at 1", [f"{path}: it was not there, and at 1 changes nothing" for path in ones])
    lines += _some("taken", [f"{path}: for another size of images" for path in resampled])
    lines += _some("left", [f"{path}: {reason}" for path, reason in misfits.items()])
    if 2 * len(matches) < total:
        lines.append(
            f"WARNING: only {len(matches)} of {total} parameters were taken, so most of this model "
            "starts from random values. If it should not, give it the model.* of "
            f"{checkpoint}/config.json."
        )
    return "\n".join(lines)


def _some(kind: str, entries: Sequence[str]) -> list[str]:
    """The lines of one kind, the first few of them."""
    left_out = len(entries) - _SHOWN
    more = [f"... and {left_out} more, see {INIT_FROM}"] if left_out > 0 else []
    return [f"  {kind:6} {entry}" for entry in [*entries[:_SHOWN], *more]]


def _grids(
    their: Mapping[str, Any], theirs: Mapping[str, Any], our: Mapping[str, Any], ours: Any
) -> tuple[str, tuple[Grid, ...]]:
    """The table of learned positions of patches, and these before and now; () where they agree.

    their, our: configs. theirs, ours: parameters by path.
    """
    for table in _TABLES:
        if table in theirs and table in ours and any(path.startswith(_STEM) for path in theirs):
            before, after = map(_grid, (their, our))
            return table, (before, after) if before != after else ()
    return "", ()


def _grid(config: Mapping[str, Any]) -> Grid:
    data, model = config["data"], config["model"]
    rows, columns = (side // model["patch_size"] for side in data["image_size"])
    return Grid(model["prefix_tokens"], rows, columns)


def resample(
    table: Float[np.ndarray, "N D"], before: Grid, after: Grid, length: int
) -> Float[np.ndarray, "M D"]:
    """The vectors of learned positions for a grid of patches of another size, then zeros.

    Bicubic with a = -0.75, half-pixel centres and no smoothing, as of Hugging Face and PyTorch.

    length: M, what is read and more.
    """
    patches = table[before.before :][: before.rows * before.columns]
    grid = patches.reshape(before.rows, before.columns, -1)
    rows, columns = _cubic(before.rows, after.rows), _cubic(before.columns, after.columns)
    vectors = np.einsum("Rr,Cc,rcD->RCD", rows, columns, grid).reshape(-1, table.shape[1])
    whole = np.concatenate([table[: before.before], vectors])
    return np.pad(whole, ((0, length - len(whole)), (0, 0)))


def _cubic(before: int, after: int) -> Float[np.ndarray, "after before"]:
    """The weight of each place of a row for each place of a row of another length."""
    a, centres = -0.75, (np.arange(after) + 0.5) * before / after - 0.5
    left = np.floor(centres).astype(int)
    weights = np.zeros((after, before))
    for tap in range(-1, 3):
        x = np.abs(centres - (left + tap))
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * (x**3 - 5 * x**2 + 8 * x - 4)
        weight = np.where(x <= 1, near, np.where(x < 2, far, 0.0))
        np.add.at(weights, (np.arange(after), np.clip(left + tap, 0, before - 1)), weight)
    return weights


def _earlier(before: Path, source: Path) -> str | None:
    """The checkpoint in `source` that an init_from.json names, where it is still whole."""
    if not before.exists():
        return None
    with reading(before, "remove it, and the newest checkpoint is taken"):
        folder = Path(json.loads(before.read_text("utf-8"))["checkpoint"])
    if source in (folder, folder.parent.parent) and fault(folder) is None:
        return str(folder)
    logging.warning("%s: %s is gone, and another start makes this another run", before, folder)
    return None


def source_of(path: Path) -> Path:
    """The newest whole checkpoint of a work directory, or `path` as a checkpoint's own folder.

    Raises FileNotFoundError when there is no whole checkpoint.
    """
    checkpoints = path / CHECKPOINTS
    if hosts.first(checkpoints.is_dir):
        newest = Checkpoints(checkpoints, keep_last=1, best_metric="").find("last")
        if newest is None:
            raise FileNotFoundError(f"there is no checkpoint in {path} to start from")
        return newest
    if path.parent.name == CHECKPOINTS and path.name.isdecimal():
        # Where it is missing, this names those that are there.
        return Checkpoints(path.parent, keep_last=1, best_metric="").find(int(path.name)) or path
    if reason := hosts.first(lambda: fault(path)):
        raise FileNotFoundError(
            f"{path} is neither a work directory nor a whole checkpoint to start from: {reason} (a "
            "folder of Hugging Face is imported first, by `import`)"
        )
    return path


def _misfit(saved: Any, ours: Any | None) -> str | None:
    """Why a saved parameter cannot be taken, or None."""
    if ours is None:
        return "no such parameter"
    if tuple(saved.shape) != ours.shape:
        return f"its shape {tuple(saved.shape)} is not {ours.shape}"
    return None
