"""What a run writes for people and reports: its metrics, results, TensorBoard and progress.

Names that begin with "time/" are the only ones whose values may differ between an unbroken run and
one that was stopped and resumed.
"""

import importlib.metadata
import json
import math
import os
import platform
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from transformer_jax.process import hosts, progress, tables
from transformer_jax.runs.trackers import Trackers
from transformer_jax.runs.workdir import (
    METRICS,
    SAMPLED,
    SPIKES,
    TENSORBOARD,
    WALL,
    merged,
    plain,
    read_metrics,
    read_results,
    read_samples,
    replacing,
    write_atomically,
    write_results,
)

_WIDTH = 100
_MOST_BATCHES = 20


class Texts(NamedTuple):
    """A value of the log that is no number: the results of some lines."""

    lines: Sequence[str]
    results: Sequence[Sequence[str]]


class RunLog:
    """The log of one run in `workdir`, from `restored_step` on (-1: nothing was restored).

    The first host alone writes; that of another does nothing. What an earlier process logged after
    `restored_step` is dropped, since those steps come again. Every record has time/wall_seconds:
    how long this process and those before it have run, lost work included.
    """

    records = 0  # in metrics.jsonl

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        restored_step: int,
        total_steps: int,
        trackers: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ):
        """trackers: those that get the numbers too, with the config by dotted key."""
        self._silent = not hosts.is_first()
        if self._silent:
            return
        self._workdir = Path(workdir)
        self._workdir.mkdir(parents=True, exist_ok=True)
        read_samples(workdir)  # a broken one is refused now
        self._trackers = Trackers(trackers, self._workdir, config or {})
        self.records, spent = cut(self._workdir, restored_step)
        self._started = time.monotonic() - spent
        self._metrics = (self._workdir / METRICS).open("a", encoding="utf-8")
        # From this step on, TensorBoard hides what the files of earlier processes hold.
        self._tensorboard = _summary_writer()(
            str(self._workdir / TENSORBOARD),
            purge_step=restored_step + 1,
            # Named by the second alone, a quick restart would overwrite the file before it.
            filename_suffix=f".{time.time_ns()}",
        )
        # With more steps to go, old scores are no longer those of the run.
        self._results = read_results(workdir) if restored_step >= total_steps else {}
        self._bar = progress.Bar(
            "Training", total=total_steps, unit="steps", done=max(restored_step, 0)
        )

    def write(self, step: int, values: Mapping[str, ArrayLike | Texts]) -> None:
        """Appends a record of numbers and vectors; TensorBoard gets the means of vectors.

        Numbers that are not finite become null, which JSON can hold. Texts go to samples.jsonl.
        """
        if self._silent:
            return
        for texts in (value for value in values.values() if isinstance(value, Texts)):
            self._write_texts(step, texts)
        numbers = {key: value for key, value in values.items() if not isinstance(value, Texts)}
        record = {"step": step, **numbers, WALL: self._wall_seconds()}
        self._metrics.write(_line(record))
        self._metrics.flush()
        # On disk before the checkpoint of this step, after which a restart counts on the line.
        os.fsync(self._metrics.fileno())
        self.records += 1
        self._trackers.log(record)
        for name, value in numbers.items():
            mean = float(np.mean(np.asarray(value, np.float64)))
            if math.isfinite(mean):
                self._tensorboard.add_scalar(name, mean, step)
        self._tensorboard.flush()

    def _write_texts(self, step: int, texts: Texts) -> None:
        """Keeps the texts of this step, in place of those from it on."""
        records = [record for record in read_samples(self._workdir) if record["step"] < step]
        pairs = [[line, list(results)] for line, results in zip(*texts, strict=True)]
        records.append({"step": step, "samples": pairs})
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        write_atomically(self._workdir / SAMPLED, text)

    def keep_batch(self, step: int, batch: Mapping[str, ArrayLike]) -> None:
        """Writes the arrays of a batch into spikes/STEP.npz, for the first 20 such steps."""
        if self._silent:
            return
        folder = self._workdir / SPIKES
        # A step that comes again after a restart is in its place already.
        others = [path for path in folder.glob("*.npz") if path.stem != str(step)]
        if len(others) < _MOST_BATCHES:
            folder.mkdir(exist_ok=True)
            (path := folder / f"{step}.npz").unlink(missing_ok=True)  # a link is not followed
            np.savez_compressed(path, **jax.device_get(dict(batch)))

    def progress(self, step: int, text: str) -> None:
        """Moves the progress bar to `step`, with `text` next to it."""
        if not self._silent:
            self._bar.update(step, text)

    def results(self, fields: Mapping[str, Any]) -> None:
        """Merges the fields into results.json (see `merged`), which is replaced as a whole."""
        if not self._silent:
            self._results = merged(self._results, {**fields, WALL: self._wall_seconds()})
            write_results(self._workdir, self._results)

    def close(self) -> None:
        """Ends the bar and closes the files. May be called twice."""
        if not self._silent:
            self._bar.close()
            self._metrics.close()
            self._tensorboard.close()
            self._trackers.finish(self._results)

    def _wall_seconds(self) -> float:
        return round(time.monotonic() - self._started, 3)


def cut(workdir: Path, step: int) -> tuple[int, float]:
    """Drops the records after a step; returns how many are left, and the seconds of all runs."""
    records, spent = 0, 0.0
    with replacing(workdir / METRICS) as file:
        for record in read_metrics(workdir):
            spent = max(spent, record.get(WALL, 0.0))
            if record["step"] <= step:
                file.write(_line(record))
                records += 1
    return records, spent


def _summary_writer() -> Any:
    """tensorboardX's; without PyTorch, which it would import where there is one: seconds."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
    try:
        from tensorboardX import SummaryWriter

        return SummaryWriter
    finally:
        if hidden:
            del sys.modules["torch"]


def spikes(metrics: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The spikes in metrics.jsonl: step, loss, and median and deviation of the losses before it.

    metrics: its records.
    """
    return [
        {"step": record["step"]}
        | {name: record[f"spike/{name}"] for name in ("loss", "median", "deviation")}
        for record in metrics
        if "spike/loss" in record
    ]


def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that a result may depend on."""
    packages = ("jax", "flax", "optax", "orbax-checkpoint", "grain")
    libraries = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), **libraries}


def named(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values under flat names, as "test/bleu"; one without a name has the group's."""
    return {f"{group}/{name}" if name else group: value for name, value in values.items()}


def format_scores(results: Mapping[str, Any]) -> str:
    """The content of results.json as text: a table with a row per score and a column per split.

    Facts that are null, such as the first bad step of a run without one, are left out.
    """
    scores: dict[str, dict[str, str]] = {}
    facts: dict[str, str] = {}
    for name, value in results.items():
        split, _, score = name.partition("/")
        if name == "spikes":
            facts[name] = ", ".join(f"step {spike['step']:,}" for spike in value) or "none"
        elif isinstance(value, Mapping):
            facts[name] = ", ".join(f"{key} {tables.cell(entry)}" for key, entry in value.items())
        elif score and split != "time" and not isinstance(value, str):
            scores.setdefault(score, {})[split] = tables.cell(value)
        elif value is not None:
            facts[name] = tables.cell(value)

    splits = list(dict.fromkeys(split for row in scores.values() for split in row))
    rows = [["", *splits]]
    rows += [[name, *(row.get(split, "") for split in splits)] for name, row in scores.items()]
    label = max(map(len, facts), default=0)
    notes = [_wrapped(name.ljust(label + 2), text) for name, text in facts.items()]
    return "\n".join([*(tables.aligned(rows) if scores else []), "", *notes]).strip("\n")


def format_samples(samples: Sequence[tuple[str, str, str]]) -> str:
    """(source, reference, output) triples as numbered, aligned text."""
    blocks = []
    for number, sample in enumerate(samples, start=1):
        rows = zip((number, "", ""), ("source", "reference", "output"), sample, strict=True)
        lines = [_wrapped(f"{mark:<4}{name:<11}", text) for mark, name, text in rows]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _wrapped(start: str, text: str) -> str:
    wrapped = textwrap.fill(text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
    return wrapped or start.rstrip()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(plain(record), allow_nan=False) + "\n"
