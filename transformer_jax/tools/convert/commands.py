"""Makes a work directory of a checkpoint of Hugging Face, and such a checkpoint of one."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from configs import default
from configs.default import Config
from transformer_jax.checkpoint.checkpoints import Origin
from transformer_jax.commands import restore
from transformer_jax.commands.opening import lock, opened, save
from transformer_jax.config.build import built
from transformer_jax.config.load import load, to_json
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.process import hosts, progress
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, TOKENIZER
from transformer_jax.tools.convert import FAMILIES, safetensors, special_tokens, tensors
from transformer_jax.tools.convert.family import Family, Lengths, Settings

# Which family has the equations of a model, by its shape and positions.
_BY_MODEL = {
    ("decoder_only", "learned"): "gpt2",
    ("decoder_only", "rotary"): "llama",
    ("encoder_only", "learned"): "bert",
    ("encoder_decoder", "relative"): "t5",
    ("encoder_decoder", "sinusoidal"): "marian",
}


def import_(workdir: Path, checkpoint: str | None) -> int:
    """Reads a folder that `save_pretrained` wrote into a new work directory, as its checkpoint 0.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file is broken, something has no counterpart here, or the work directory is in
        use. Nothing is written.
    """
    if checkpoint is None:
        raise ValueError("--mode=import needs a --checkpoint: a folder with a config.json")
    folder = Path(checkpoint).expanduser()
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"--workdir={workdir} is not a folder: choose another")
    # An import that was killed leaves a part of a checkpoint, and may be run again.
    saved = any(path.suffix != ".tmp" for path in (workdir / CHECKPOINTS).glob("*"))
    if saved or (workdir / CONFIG).exists():
        name = CHECKPOINTS if saved else CONFIG
        raise ValueError(f"{workdir} holds {name} already: choose another --workdir")
    found = safetensors.find(folder)
    family, settings = _read(folder, found)
    config = load(default.__file__, settings)
    tokenizer = special_tokens.tokenizer(folder)
    if tokenizer is not None and tokenizer.vocab_size > config.model.vocab_size:
        raise ValueError(
            f"{folder}: {TOKENIZER} has {tokenizer.vocab_size} tokens, and the model "
            f"{config.model.vocab_size}: they are not of one checkpoint"
        )
    with built(config, None) as run:
        with progress.phase("Reading the tensors"):
            state = {"params": _parameters(found, family, run)}
        lock(workdir)
        origin = Origin(
            config=run.as_json,
            data=restore.IMPORTED,
            tokenizer=restore.NO_TOKENIZER if tokenizer is None else tokenizer.fingerprint,
            labels=(),
        )
        with progress.phase("Saving the checkpoint"):
            checkpoints = run.checkpoints(workdir)
            checkpoints.save(0, state, {}, origin, {}, scheduled=True, records=0)
            checkpoints.wait()
        if tokenizer is not None and hosts.is_first():
            tokenizer.save(workdir / TOKENIZER)
        save(workdir / CONFIG, to_json(config))  # last: with it the import is whole
    print(f"{workdir} holds the model of {folder}.")
    if tokenizer is None:
        print(
            f"{folder} has no {TOKENIZER}, so that no command can read texts or export the model: "
            f"{restore.GIVE_TOKENIZER}"
        )
    return 0


def export(config: Config, workdir: Path, checkpoint: str | None, target: str) -> int:
    """Writes a folder that `from_pretrained` reads.

    Raises:
      ValueError: the model has no counterpart there, or the folder is in use. Nothing is written.
    """
    if target == "-":
        raise ValueError("--mode=export needs an --output: the folder to write")
    folder = Path(target).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--output={folder} exists already: choose another")
    name = _counterpart(config)
    with opened(config, workdir, checkpoint) as (run, trained, _):
        ours, longest = run.model.config, run.data.settings.longest
        written = longest["source"] + run.decode.extra_length
        lengths = Lengths(max(longest.values()), written)
        settings = FAMILIES[name].config(ours, run.data.special, lengths)
        params = hosts.whole(trained.params)
        if hosts.is_first():
            parts = tensors.written(params, FAMILIES[name], ours)
            _write(folder, settings, parts, run.data.tokenizer, ours.architecture)
    print(f"{folder} holds the model of {workdir}, as a {name}.")
    return 0


def _counterpart(config: Config) -> str:
    """The family of theirs with the equations of a config's model. ValueError: there is none."""
    model = config.model
    name = _BY_MODEL.get((model.architecture, model.positions))
    if name is None or model.family != "transformer":
        known = ", ".join(f"{shape} with {positions}" for shape, positions in _BY_MODEL)
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
    return name


def _read(folder: Path, found: dict[str, safetensors.Tensor]) -> tuple[Family, dict[str, Any]]:
    """The family of a checkpoint, and our settings."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        values = json.loads(path.read_text("utf-8"))
        kind = values.get("model_type")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not a JSON object ({error})") from error
    if kind not in FAMILIES:
        raise ValueError(f"{path}: model_type={kind!r} is not one of {', '.join(FAMILIES)}")
    if "quantization_config" in values:
        raise ValueError(
            f"{path}: the weights are quantised (quantization_config), which nothing here reads: "
            "take the checkpoint that they were made of"
        )
    family = FAMILIES[kind]
    settings = family.settings(Settings(values, str(path), tensors.named(found, family)))
    for key, value in settings.items():
        # Tensors are missed by name below, but those of a million layers would take minutes.
        if key.endswith("_layers") and isinstance(value, int) and value > max(len(found), 1000):
            raise ValueError(f"{path}: {value} layers, but the files hold {len(found)} tensors")
    return family, settings


def _parameters(found: dict[str, safetensors.Tensor], family: Family, run: Any) -> Any:
    ours: TransformerConfig = run.model.config
    abstract = run.abstract_state().params
    return tensors.read(tensors.named(found, family), family, ours, abstract)


def _write(
    folder: Path, settings: dict[str, Any], parts: Any, tokenizer: Tokenizer, architecture: str
) -> None:
    """All files, or none."""
    unfinished = folder.with_name(f"{folder.name}.incomplete")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        safetensors.write(unfinished / safetensors.ONE_FILE, parts)
        (unfinished / "config.json").write_text(json.dumps(settings, indent=1))
        special_tokens.save(unfinished, tokenizer, settings, architecture)
        if folder.exists():
            folder.rmdir()
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
