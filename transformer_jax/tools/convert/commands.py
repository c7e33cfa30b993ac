"""Makes a work directory of a checkpoint of Hugging Face, and such a checkpoint of one."""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from transformer_jax.checkpoint.checkpoints import Origin, fault, origin
from transformer_jax.commands import restore
from transformer_jax.commands.opening import lock, opened, save
from transformer_jax.config import effects
from transformer_jax.config.build import built
from transformer_jax.config.load import load, replace, to_json
from transformer_jax.configs import default
from transformer_jax.configs.default import Config
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.process import hosts, progress
from transformer_jax.run import Run
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, LABELS, TOKENIZER, flatten
from transformer_jax.tasks import choose
from transformer_jax.tools.convert import (
    FAMILIES,
    images,
    safetensors,
    source,
    special_tokens,
    tensors,
    verify,
)
from transformer_jax.tools.convert.family import Family


def import_(
    workdir: Path,
    checkpoint: str | None,
    source_language: str | None = None,
    target_language: str | None = None,
    reference: str | None = None,
    revision_folders: bool = False,
    pickled: bool = False,
    changes: Sequence[str] = (),
) -> int:
    """Reads a folder that `save_pretrained` wrote into a new work directory, as its checkpoint 0.

    source_language, target_language: their codes, where the family's texts have them.
    reference: a file of what transformers computed, as `verify` has it.
    revision_folders: whether it is a folder of such folders, which become checkpoints of the steps
      that their names say.
    pickled: whether tensors of pickled files are read, where there are no others.
    changes: "KEY=VALUE" of the pooling and of data, in the place of what the folder says.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file is broken, something has no counterpart here, the model does not compute
        what the reference holds, or the work directory is in use. Nothing is written, unless some
        revisions were before a tensor of another one turned out to be broken.
    """
    if checkpoint is None:
        raise ValueError("import needs a --checkpoint: a folder with a config.json")
    folder = Path(checkpoint).expanduser()
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"--workdir={workdir} is not a folder: choose another")
    if reference and revision_folders:
        raise ValueError("--verify is for one checkpoint: leave out --revision_folders")
    folders = source.revisions(folder) if revision_folders else {0: folder}
    hosts.first(lambda: _check_new(workdir, folders))
    settings = flatten(load(default.__file__, changes))
    overrides = {key: settings[key] for key in (change.partition("=")[0] for change in changes)}
    languages = source_language, target_language
    model, revisions = source.read_all(
        folders, lambda path: source.read(path, overrides, languages, pickled)
    )
    effects.check(model.config, changes)
    keep = {"checkpoint.keep_last": max(model.config.checkpoint.keep_last, len(folders))}
    config = replace(model.config, keep)
    if reference and model.pictures:
        raise ValueError("--verify is for models of texts: leave it out")
    expected = safetensors.tensors(Path(reference).expanduser()) if reference else None
    # Where the run finds its labels. The same command finds by its name what a killed one has left.
    workdir.parent.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.TemporaryDirectory(prefix=f".{workdir.name}.import", dir=workdir.parent)
    (Path(scratch.name) / LABELS).write_text(json.dumps(model.labels))
    notes = [f"{workdir} holds the model of {folder}."]
    with scratch, built(config, Path(scratch.name)) as run:
        for step, weights in revisions.items():
            notes += _save(run, workdir, step, model._replace(tensors=weights), expected)
        if model.tokenizer is not None and hosts.is_first():
            model.tokenizer.save(workdir / TOKENIZER)
        if model.labels:
            save(workdir / LABELS, json.dumps(model.labels, ensure_ascii=False, indent=1))
        save(workdir / CONFIG, to_json(config))  # last: with it the import is whole
    print("\n".join(dict.fromkeys([*notes, *source.notes(model)])))
    return 0


def _save(
    run: Run,
    workdir: Path,
    step: int,
    model: source.Source,
    expected: Mapping[str, safetensors.Tensor] | None,
) -> list[str]:
    """Saves a model as the checkpoint of a step; returns what is to say of it.

    expected: as of `verify.compare`. Raises ValueError; then the work directory is as before.
    """
    with progress.phase(f"Reading the tensors of {model.folder.name}"):
        abstract = run.abstract_state.params
        params, notes = tensors.read(model.tensors, model.family, run.model.config, abstract)
    if expected is not None:
        with progress.phase("Comparing with the reference"):
            notes.append(verify.compare(expected, model.family, run.model, params))
    lock(workdir)
    # That of images is of a task that needs no tokenizer.
    fingerprint = run.data.tokenizer_fingerprint if model.pictures else model.fingerprint
    provenance = Origin(run.as_json, restore.IMPORTED, fingerprint, model.labels)
    with progress.phase("Saving the checkpoint"):
        checkpoints = run.checkpoints(workdir)
        checkpoints.save(step, {"params": params}, {}, provenance, {}, scheduled=True, records=0)
        checkpoints.close()
    return notes


def _check_new(workdir: Path, steps: Collection[int]) -> None:
    """Raises ValueError where the work directory holds more than an import that was killed."""
    for scratch in workdir.parent.glob(f".{workdir.name}.import*"):
        shutil.rmtree(scratch)
    saved = [path for path in (workdir / CHECKPOINTS).glob("*") if path.suffix != ".tmp"]
    finished = (workdir / CONFIG).exists() or not all(
        path.stem in map(str, steps)
        and fault(path) is None
        and origin(path).data == restore.IMPORTED
        for path in saved
    )
    if finished:
        name = CHECKPOINTS if saved else CONFIG
        raise ValueError(f"{workdir} holds {name} already: choose another --workdir")


def export(config: Config, workdir: Path, checkpoint: str | None, target: str) -> int:
    """Writes a folder that `from_pretrained` reads.

    Raises:
      ValueError: the model has no counterpart there, or the folder is in use. Nothing is written.
    """
    if target == "-":
        raise ValueError("export needs an --output: the folder to write")
    folder = Path(target).expanduser().resolve()  # what a link leads to
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--output={target} exists already: choose another")
    if folder == Path.cwd() or folder.is_mount():
        raise ValueError(f"--output={target} cannot be replaced: name a folder that is to be made")
    families = _counterparts(config)
    with opened(config, workdir, checkpoint) as (run, trained, _):
        ours, longest, special = run.model.config, run.data.settings.longest, run.data.special
        pictures, origin, length = run.data.settings.images, None, 0
        if pictures is None:
            origin = special_tokens.origin(run.data.tokenizer)
            length = special_tokens.longest(run.data.tokenizer)
        # Of several that fit, that of the checkpoint which the run came from.
        family = min(families, key=lambda f: (len(f.unfit(ours)), f.name != origin))
        length = max(length, *(longest[side] for side in run.task.recipe.sides))
        if POSITIONS[ours.positions].vectors:  # of which they have as many as decoding makes
            length = max(length, longest["source"] + run.decode.extra_length)
        settings = {"model_type": family.name, **family.config(ours, length)}
        if pictures is None:
            settings |= special_tokens.named(special, ours.architecture)
        else:
            settings |= images.channels(pictures, settings)
        if labels := run.data.labels:
            settings["id2label"] = {str(number): label for number, label in enumerate(labels)}
            settings["label2id"] = {label: number for number, label in enumerate(labels)}
        params = hosts.whole(trained.params)
        if hosts.is_first():
            parts = tensors.written(params, family, ours, length)
            with _unfinished(folder) as unfinished:
                safetensors.write(unfinished / safetensors.ONE_FILE, parts)
                (unfinished / "config.json").write_text(json.dumps(settings, indent=1))
                if pictures is None:
                    special_tokens.save(unfinished, run.data.tokenizer, settings, ours.architecture)
                else:
                    images.save(unfinished, settings["architectures"][0], pictures, ours)
            note = special_tokens.unlike(folder, special, ours.architecture) if not pictures else []
            print("\n".join([f"{folder} holds the model of {workdir}, as a {family.name}.", *note]))
    return 0


def _counterparts(config: Config) -> list[Family]:
    """The families that have a model's shape, positions and head. ValueError: there is none."""
    model = config.model
    head = choose(config.task.name, model.architecture).heads[model.architecture]
    shapes = {f.name: (f.ours["architecture"], f.ours["positions"]) for f in FAMILIES.values()}
    shape = model.architecture, model.positions
    families = [f for f in FAMILIES.values() if head in f.heads and shapes[f.name] == shape]
    if not families or model.family != "transformer":
        known = ", ".join(dict.fromkeys(map(" with ".join, shapes.values())))
        raise ValueError(
            f"model.family={model.family!r}, model.architecture={model.architecture!r} with "
            f"model.positions={model.positions!r} has no counterpart there, only a transformer of "
            f"{known}"
        )
    if model.parameterization != "standard":
        raise ValueError(
            f"model.parameterization={model.parameterization!r} has multipliers, which have no "
            "counterpart there, only 'standard'"
        )
    return families


@contextlib.contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """An empty folder, which takes the place of another at the end.

    Its name is nobody else's; what a killed export has left there is removed.

    Raises RuntimeError where another export to the same folder is under way.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished_export")
    unfinished.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(unfinished, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in unfinished.iterdir():
            path.unlink()
        yield unfinished
        os.replace(unfinished, folder)
    except BlockingIOError:
        raise RuntimeError(f"another export to {folder} is under way: wait for it") from None
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    finally:
        os.close(descriptor)
