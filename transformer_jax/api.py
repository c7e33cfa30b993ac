"""The commands as functions, and a trained model to ask: what `import transformer_jax` offers.

Paths may be relative. A mistake that the command line tells of in one line is raised as `Error`,
with the same words.
"""

import contextlib
import functools
import json
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from transformer_jax.commands import COMMANDS, embed, generate
from transformer_jax.commands.message import Error as Error
from transformer_jax.commands.message import one_line
from transformer_jax.commands.opening import check_own, configured, opened
from transformer_jax.commands.train import trained
from transformer_jax.commands.trainer import Trainer
from transformer_jax.configs import default
from transformer_jax.configs.default import Config
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.devices import compiled
from transformer_jax.devices.mesh import use
from transformer_jax.evaluation.trained import predict_step
from transformer_jax.inspection import attention, memory, observed
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import Batch, Model, Outputs, Params
from transformer_jax.models.transformer.schemes import Kind, Stack
from transformer_jax.runs import workdir as work
from transformer_jax.runs.workdir import CONFIG, is_checkpoint, read_metrics, read_results
from transformer_jax.training.losses import PlaceLoss

_P = ParamSpec("_P")
_R = TypeVar("_R")

AnyBatch = Any  # arrays by name, of NumPy or JAX

_attention = jax.jit(attention.attention, static_argnames="model")
_observe = jax.jit(observed.observe, static_argnames="model")


def _on_mesh(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """`one_line`, on the mesh of the run; of a part that a batch lacks it tells, too."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        run: Any = args[0]
        try:
            with use(run.mesh):
                return method(*args, **kwargs)
        except KeyError as error:
            recipe, name = run._run.data.settings.recipe, str(error).strip("'")
            if name not in recipe.batch_columns():
                raise
            reads = ", ".join(recipe.reads)
            raise ValueError(f"the batch has no {name!r}: give `batch` all of {reads}") from error

    return one_line(call)


class LoadedRun:
    """A trained model to ask, as `load` returns it. What is asked first compiles.

    Attributes:
      config: the frozen config, changes and all.
      workdir: the work directory.
      step: the folder's name of the checkpoint, which is its step.
      params: the parameters, a tree of arrays; others of the same shapes may be put in their place.
      model: the Flax module: `model.apply({"params": params}, batch)`.
      mesh: of the devices.
    """

    def __init__(self, config: Config, workdir: Path, checkpoint: str | None):
        self.config, self.workdir = config, workdir
        with opened(config, workdir, checkpoint) as (run, trained, step):
            self._run, self._trained, self.step = run, trained, step
        self.model: Model = run.model
        self.mesh = run.mesh

    def __repr__(self) -> str:
        task, architecture = self._run.task.recipe.name, self.config.model.architecture
        size = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        return f"<{architecture} of {size:,} parameters, {task}, {self.workdir} at {self.step}>"

    @property
    def params(self) -> Params:
        """The parameters."""
        return self._trained.params

    @params.setter
    def params(self, params: Params) -> None:
        self._trained = self._run.trained(params)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Turns texts into ids (`encode([text])`) and back; None: the model reads no text."""
        return self._run.data.tokenizer if self._run.data.settings.recipe.tokenized else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes or tags that the model predicts; () where it predicts none."""
        return self._run.data.labels

    @property
    def results(self) -> dict[str, Any]:
        """The content of results.json."""
        return read_results(self.workdir)

    @_on_mesh
    def generate(self, lines: str | Sequence[Any]) -> Any:
        """What the model writes, or predicts, for each line; for one line its result alone.

        Where decode.num_samples is above 1 each has so many, in a list.

        lines: texts; of a model of images their paths, or pixels as of `batch`.
        """
        task = generate.check(self._run)
        memory.check(self._run, memory.generate(self._run))
        examples, one = _listed(lines)
        results = [row[0] if len(row) == 1 else row for row in task(self._trained, examples)]
        return results[0] if one else results

    @_on_mesh
    def embed(self, lines: str | Sequence[Any]) -> Float[np.ndarray, "N D"]:
        """The vector of each line; of one line (D,). Needs an encoder-only model."""
        memory.check(self._run, embed.phases(self._run))
        examples, one = _listed(lines)
        vectors = self._trained.embed(examples)
        return vectors[0] if one else vectors

    @_on_mesh
    def batch(self, sources: Any, *targets: Any) -> dict[str, np.ndarray]:
        """What the model reads of examples: arrays (B, T, ...) by name, a row each.

        The names are those of a training batch: "inputs", "targets", "labels" and, of each, the
        "_segment_ids" (0 is padding) and "_positions". Too long examples are cut.

        Args:
          sources: texts, or images: paths, or pixels, uint8 of (rows, columns) or (rows, columns,
            3). One may stand alone.
          targets: the columns that the task reads besides, such as the translations or labels; none
            at all: what the model reads to answer.
        """
        columns, ones = zip(*map(_listed, (sources, *targets)), strict=True)
        if ones[0] and not all(ones):
            columns = (columns[0], *([target] for target in targets))
        return self._run.data.batch(*columns)

    @_on_mesh
    def logits(self, batch: AnyBatch) -> Any:
        """Float32 logits (B, T, V), or of labels (B, T, C); of a detector its classes and boxes."""
        logits, _ = predict_step(self.params, batch, model=self.model, predict=_arrays)
        return jax.device_get(logits)

    @_on_mesh
    def losses(self, of: str | AnyBatch, by_token: bool = False) -> Any:
        """The mean losses and what follows from them, in nats, as training logs them.

        by_token: in their place -log p of each target: (B, T), NaN where there is none; of a split
        a list of such rows, in the order of its examples, or of the readers of a model with memory.

        of: a split, "validation" or "test", or a batch.
        """
        function = self._run.loss.function
        if by_token and not isinstance(function, PlaceLoss):
            raise ValueError(f"task.name={self._run.task.recipe.name!r} has no losses by token")
        memory.check(self._run, memory.evaluate(self._run))
        if isinstance(of, str):
            split = self._run.data.split(of)
            if by_token:
                return self._trained.by_place(split, function.each)
            return self._run.task.losses(self._trained, split)
        if by_token:
            each, _ = predict_step(self.params, of, model=self.model, predict=function.each)
            return jax.device_get(each)
        (_, _, sums), _ = predict_step(self.params, of, model=self.model, predict=self._run.loss)
        return self._run.loss.means(sums)

    @_on_mesh
    def attention(self, batch: AnyBatch) -> dict[tuple[Stack, Kind], attention.Looks]:
        """Where tokens look, by ("decoder", "cross_attention") and so on.

        Each has `weights` (L, B, H, T, S), their `entropy` in nats and the `largest_logit`.
        """
        _, looks, _ = _attention(model=self.model, params=self.params, batch=batch)
        return jax.device_get(looks)

    @_on_mesh
    def observe(self, batch: AnyBatch) -> dict[Stack, observed.Observed]:
        """What diagnostics and probes see of each stack, by name.

        It is the residual stream around each sublayer, and more: `inspection.observed.Observed`.
        """
        family = self.config.model.family
        if not FAMILIES[family].inspected:
            raise ValueError(f"a model of model.family={family!r} is not observed")
        _, stacks = _observe(model=self.model, params=self.params, batch=batch)
        return jax.device_get(stacks)

    def trainer(self) -> "Trainer":
        """Training of this run by a loop of one's own, from its last checkpoint on."""
        return Trainer(self.config, self.workdir)


class Runs(NamedTuple):
    """What runs have left, as records that pandas and polars take as they are.

    Attributes:
      results: one of each run: its "run" and "folder", what its config has besides the default, by
        key, and its results ("status", "test/bleu" ...).
      metrics: one of each logged step of each run: "run", "step" and the numbers, or vectors by
        sublayer, by name.
    """

    results: list[dict[str, Any]]
    metrics: list[dict[str, Any]]


@one_line
def load_config(config_file: str | os.PathLike, **changes: Any) -> Config:
    """The frozen config of a file, with changes: `**{"model.residual": "admin"}`.

    "configs/NAME.py" that is not there is one of this package. Raises Error for a key that there is
    not, for a value that cannot be, and for one that has no effect.
    """
    return configured(None, os.fspath(config_file), changes)


@one_line
def train(config: Config | str | os.PathLike, workdir: str | os.PathLike) -> dict[str, Any]:
    """Trains in a work directory, or continues there, scores, and returns the results.

    They are those of results.json: "status" says what became of the run. Interrupting the kernel
    saves and ends it as "preempted"; calling it again continues. Before the first step, and at a
    second time, it raises KeyboardInterrupt at once.

    config: of `load_config`, or a config's file.
    """
    config, folder = _run_of(config, workdir)
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "train obeys SIGINT and SIGTERM, which Python gives to the main thread alone: call it "
            "there, or in a process of its own"
        )
    check_own(config, folder)
    work.claim(folder)
    try:
        trained(config, folder)
    finally:
        work.unlock(folder)
    return read_results(folder)


@one_line
def trainer(config: Config | str | os.PathLike, workdir: str | os.PathLike) -> Trainer:
    """Training by a loop of one's own in a work directory, from its last checkpoint on or anew.

    config: of `load_config`, or a config's file.
    """
    return Trainer(*_run_of(config, workdir))


@one_line
def load(
    workdir: str | os.PathLike, checkpoint: str | int | None = "last", **changes: Any
) -> LoadedRun:
    """A trained model to ask: of a work directory, or of a folder that `save_pretrained` wrote.

    Args:
      workdir: one that is not there is looked for in the repository.
      checkpoint: "last", "best", a step, or the folder of one; None: as evaluate.checkpoint says.
      changes: settings that a trained run may change: `**{"decode.method": "greedy"}`.
    """
    folder = _folder(workdir)
    if "data.cache_dir" not in changes:  # a run may be another user's, and hold programs
        compiled.keep(default.get_config().data.cache_dir)
    which = None if checkpoint is None else str(checkpoint)
    if not _is_theirs(folder):
        return LoadedRun(configured(folder, None, changes), folder, which)
    scratch = tempfile.TemporaryDirectory(prefix="transformer_jax.")
    imported = Path(scratch.name) / folder.name
    of_import = {key: changes.pop(key) for key in COMMANDS["import"].makes_config if key in changes}
    COMMANDS["import"].load()(
        imported, str(folder), [f"{key}={value}" for key, value in of_import.items()]
    )
    run = LoadedRun(configured(imported, None, changes), imported, which)
    weakref.finalize(run, scratch.cleanup)
    return run


@one_line
def export(
    workdir: str | os.PathLike, output: str | os.PathLike, checkpoint: str | int = "last"
) -> None:
    """Writes a folder that Hugging Face's `from_pretrained` reads."""
    folder = _folder(workdir)
    config = configured(folder, None, {})
    COMMANDS["export"].load()(config, folder, str(checkpoint), os.fspath(output))


@one_line
def load_runs(*folders: str | os.PathLike) -> Runs:
    """The runs in these folders and in all folders in them, in order of their paths."""
    from transformer_jax.tools.reports import arms, records  # here, as commands import their tools

    paths = [
        path.parent
        for folder in folders
        for path in sorted(_folder(folder).rglob(CONFIG))
        if not is_checkpoint(path.parent)
    ]
    if not paths:
        raise ValueError(f"there are no runs in {', '.join(map(str, map(_folder, folders)))}")
    runs = records.gather(paths)
    names, plain = arms.names(runs), records.read_config(None)
    results, metrics = [], []
    for name, run in zip(names, runs, strict=True):
        settings = {key: x for key, x in run.config.items() if x != plain.get(key)}
        scalars = {key: x for key, x in run.results.items() if not isinstance(x, dict | list)}
        results.append({"run": name, "folder": str(run.folder), **settings, **scalars})
        metrics += ({"run": name, **record} for record in read_metrics(run.folder))
    return Runs(results, metrics)


def _run_of(config: Config | str | os.PathLike, workdir: str | os.PathLike) -> tuple[Config, Path]:
    """A config, which may be named by its file, and the whole path of a work directory."""
    config = load_config(config) if isinstance(config, str | os.PathLike) else config
    return config, Path(workdir).expanduser().absolute()


def _folder(folder: str | os.PathLike) -> Path:
    """A folder that is here, or in the repository. Raises FileNotFoundError for any other."""
    path = Path(folder).expanduser()
    places = path.absolute(), Path(__file__).parents[1] / path
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(f"there is no folder {places[0]}")


def _is_theirs(folder: Path) -> bool:
    """Whether a folder is one of Hugging Face, whose config.json names the kind of the model."""
    with contextlib.suppress(OSError, ValueError):  # `configured` tells of what is broken
        return "model_type" in json.loads((folder / CONFIG).read_text("utf-8"))
    return False


def _listed(lines: Any) -> tuple[list[Any], bool]:
    """Examples as a list, and whether one stood alone: a text, a path, or an image's pixels."""
    pixels = isinstance(lines, np.ndarray) and lines.ndim > 1 and lines.shape[2:] in ((), (3,))
    if isinstance(lines, str | Path) or pixels:
        return [lines], True
    return list(lines), False


def _arrays(outputs: Outputs, batch: Batch) -> Any:
    return outputs.arrays()
