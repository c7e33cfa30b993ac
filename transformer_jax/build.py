"""The only reader of a config: turns it into one frozen Run, or one clear message.

Whatever can be wrong with a config is found here, before a work directory is touched and before
anything is compiled. What costs (reading, tokenising) happens when it is first asked for.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from configs.default import Config
from transformer_jax import tasks
from transformer_jax.data.dataset import SPLITS, Dataset, DataSettings, Part
from transformer_jax.data.examples import SourceSettings
from transformer_jax.data.mixture import counts_of
from transformer_jax.data.sources import SOURCES
from transformer_jax.data.tokenizer import BOS_ID
from transformer_jax.devices import compiled
from transformer_jax.devices.mesh import MeshSettings, constrain, make_mesh, use
from transformer_jax.evaluation.search import DecodeSettings
from transformer_jax.evaluation.trained import make_eval_step, make_predict_step
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import Family, Needs
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.preflight import chips, memory
from transformer_jax.run import CheckpointSettings, EvaluateSettings, Run
from transformer_jax.tasks.task import Task
from transformer_jax.training import optimizer
from transformer_jax.training.losses import Loss
from transformer_jax.training.step import TrainSettings
from transformer_jax.workdir import LABELS, TOKENIZER


def build(config: Config, workdir: Path | None = None, devices: Sequence[Any] | None = None) -> Run:
    """Builds the run that a checked config describes.

    Args:
      config: from `overrides.load`.
      workdir: its tokenizer and labels are used where they exist: so a work directory needs no
        training data to translate.
      devices: that the mesh is made of (None: all that JAX finds).

    Raises:
      ValueError, FileNotFoundError, OSError: with one message on what cannot be and how to mend it.
    """
    checkpoint = config.checkpoint.to_dict()
    train = TrainSettings(**config.train.to_dict(), checkpoint_every=checkpoint.pop("every"))
    checkpoint = CheckpointSettings(**checkpoint)
    evaluate = EvaluateSettings(**config.evaluate.to_dict())
    if evaluate.checkpoint == "best" and not checkpoint.best_metric:
        raise ValueError('evaluate.checkpoint="best" needs a checkpoint.best_metric')
    _at_least("train", config.train, evaluate_every=0, diagnostics_every=0)
    _at_least("checkpoint", config.checkpoint, every=0)
    decode = DecodeSettings(**config.decode.to_dict())
    task = tasks.choose(config.task.name, config.model.architecture)
    _check_intervals(train, checkpoint.best_metric, task)
    _check_data(config, task)
    settings = _mesh_settings(config)
    mesh = make_mesh(settings, jax.devices() if devices is None else devices)
    _check_mesh(config, task, mesh)
    # Once with the least sizes, so that a mistake in the model does not wait for the data.
    model_config = _model_config(config, task)
    model_config.check_platform(mesh.devices.flat[0].platform)
    _check_rows(config, task, model_config.longest_row)
    family = FAMILIES[config.model.family]
    _check_constants(config, task, family.needs(model_config))
    schedule, transform = _optimizer(config, lambda: run.roles)
    loss = _loss(config, task)

    # Rows of padding fill up the last batch anyhow: so there are as many as every device can share.
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    rows = math.ceil(evaluate.batch_size / parts) * parts
    data = Dataset(_data_settings(config, task, rows, workdir))
    # A model of a given size can be inspected without its data.
    model_config = dataclasses.replace(
        model_config,
        vocab_size=config.model.vocab_size or data.tokenizer.vocab_size,
        num_labels=len(data.labels),
    )
    model = family.shapes[config.model.architecture](model_config)
    run = Run(
        seed=config.seed,
        mesh=mesh,
        task=task,
        data=data,
        model=model,
        needs=family.needs(model_config),
        loss=loss,
        schedule=schedule,
        optimizer=transform,
        train=train,
        checkpoint=checkpoint,
        evaluate=evaluate,
        decode=decode,
        **_functions(family, model, loss),
    )
    return run


@contextlib.contextmanager
def built(config: Config, workdir: Path | None) -> Iterator[Run]:
    """The run of a config, with its mesh in use, and what it compiles kept in data.cache_dir."""
    compiled.keep(config.data.cache_dir)
    run = build(config, workdir)
    with use(run.mesh):
        yield run


def _functions(family: Family, model: Any, loss: Loss) -> dict[str, Any]:
    """The fields of `Run` that ask the model something, with parameters in front."""

    def init(key, batch):
        return family.init(model, key, batch)

    def outputs(params, batch, rng) -> Any:
        rngs = {} if rng is None else {"dropout": rng}
        settings = {"deterministic": rng is None, "rngs": rngs, "method": "outputs"}
        return model.apply({"params": params}, batch, **settings)

    def apply(params, batch, rng) -> Any:
        return outputs(params, batch, rng).logits()

    def start(params, batch, max_length) -> Any:
        return model.apply({"params": params}, batch, max_length, method="start")

    def step(params, *arguments) -> Any:
        return model.apply({"params": params}, *arguments, method="step")

    def embed(params, batch) -> Any:
        vectors: Any = model.apply({"params": params}, batch, method="embed")
        return constrain(vectors)

    return {
        "init": init,
        "outputs": outputs,
        "apply": apply,
        "start": start,
        "step": step,
        "eval_step": make_eval_step(loss, outputs),
        "predict_step": make_predict_step(apply),
        "embed_step": jax.jit(embed) if hasattr(model, "embed") else None,
    }


def _model_config(config: Config, task: Task) -> TransformerConfig:
    """The model's own config, of least vocabulary and labels; what may be None gets its value."""
    settings = config.model.to_dict()
    num_layers = settings.pop("num_layers")
    for stack in ("num_encoder_layers", "num_decoder_layers"):
        if settings[stack] is None:
            settings[stack] = num_layers
    family = FAMILIES[settings.pop("family")]
    residual = settings.pop("residual")
    for stack in ("encoder_residual", "decoder_residual"):
        if settings[stack] is None:
            settings[stack] = residual
    if settings["head_dim"] is None:
        settings["head_dim"] = _head_dim(settings["d_model"], settings["num_heads"])
    settings |= {
        "vocab_size": settings["vocab_size"] or 4,
        "bos_id": BOS_ID,
        "head": task.heads[settings["architecture"]],
        "num_labels": 1,
        # A language model writes nonsense beyond the length that it was trained on.
        "context_length": config.data.max_target_length,
    }
    return family.config(**settings)


def _head_dim(d_model: int, num_heads: int) -> int:
    if num_heads < 1 or d_model % num_heads:
        raise ValueError(
            f"model.d_model={d_model} is not divisible by model.num_heads={num_heads}: change one "
            "of them, or set model.head_dim"
        )
    return d_model // num_heads


def _optimizer(
    config: Config, roles: optimizer.Roles
) -> tuple[optax.Schedule, optax.GradientTransformation]:
    settings = config.optimizer
    names = ("learning_rate", "final_learning_rate", "warmup_steps")
    names += ("decay_steps", "epsilon", "weight_decay", "clip_norm")
    _at_least("optimizer", settings, **dict.fromkeys(names, 0))
    for name in ("beta1", "beta2"):
        if not 0 <= settings[name] < 1:
            raise ValueError(f"optimizer.{name}={settings[name]} does not lie in [0, 1)")
    schedule = optimizer.make_schedule(
        name=settings.schedule,
        decay_steps=settings.decay_steps,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        steps=config.train.steps,
        final_learning_rate=settings.final_learning_rate,
        d_model=config.model.d_model,
    )
    transform = optimizer.make_optimizer(
        name=settings.name,
        schedule=schedule,
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        groups=settings.groups,
        roles=roles,
    )
    return schedule, transform


def _loss(config: Config, task: Task) -> Loss:
    label_smoothing, z_loss = config.task.label_smoothing, config.task.z_loss
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"task.label_smoothing={label_smoothing} does not lie in [0, 1)")
    if z_loss < 0:
        raise ValueError(f"task.z_loss={z_loss} is negative")
    return functools.partial(task.loss, label_smoothing=label_smoothing, z_loss=z_loss)


def dataset(config: Config, workdir: Path | None) -> Dataset:
    """The data of a checked config, without the devices and the model. Raises as `build`."""
    task = tasks.choose(config.task.name, config.model.architecture)
    _check_data(config, task)
    return Dataset(_data_settings(config, task, config.evaluate.batch_size, workdir))


def _data_settings(
    config: Config, task: Task, evaluation_batch_size: int, workdir: Path | None
) -> DataSettings:
    settings = config.data.to_dict()
    tokenizer = settings.pop("tokenizer")
    names = [field.name for field in dataclasses.fields(SourceSettings)]
    source = SourceSettings(**{name: settings.pop(name) for name in names})
    return DataSettings(
        source=source,
        mixture=tuple(_part(source, *row) for row in settings.pop("mixture")),
        recipe=task.recipe,
        splits={split: settings.pop(split) for split in SPLITS},
        tokenizer_kind=tokenizer["kind"],
        tokenizer_vocab_size=tokenizer["vocab_size"],
        tokenizer_train_bytes=tokenizer["train_bytes"],
        model_vocab_size=config.model.vocab_size,
        mask_rate=config.task.mask_rate,
        seed=config.seed,
        evaluation_batch_size=evaluation_batch_size,
        tokenizer_file=_tokenizer_file(config, workdir),
        labels_file=workdir / LABELS if workdir else None,
        **settings,
    )


def _part(like: SourceSettings, source: str, place: str, file: str, weight: float) -> Part:
    """A set of a mixture, whose other settings are those of `like`."""
    where = {"name": place} if source == "tfds" else {"dir": place}
    return Part(dataclasses.replace(like, source=source, **where), (file,), weight)


def _check_mixture(config: Config) -> None:
    """Checks the rows of data.mixture."""
    if not config.data.mixture:
        return
    for number, (source, *_) in enumerate(config.data.mixture):
        if source not in SOURCES:
            raise ValueError(
                f"data.mixture: the source {source!r} of row {number} is not one of "
                f"{', '.join(SOURCES)}"
            )
    counts_of([weight for *_, weight in config.data.mixture])
    if config.data.validation_size:
        raise ValueError(
            f"data.validation_size={config.data.validation_size} cannot be held out of a mixture: "
            "name a data.validation"
        )


def _tokenizer_file(config: Config, workdir: Path | None) -> Path | None:
    """The work directory's, or that of the run whose parameters this one starts from."""
    own = workdir / TOKENIZER if workdir else None
    if not config.checkpoint.init_from or (own is not None and own.exists()):
        return own
    # A work directory, or a folder W/checkpoints/STEP in one.
    start = Path(config.checkpoint.init_from).expanduser()
    files = [folder / TOKENIZER for folder in (start, *start.absolute().parents[:2])]
    found = [file for file in files if file.exists()]
    if not found:
        raise FileNotFoundError(
            f"checkpoint.init_from={str(start)!r} is no work directory, nor a checkpoint in one: "
            "there is no tokenizer.json"
        )
    return found[0]


def _check_data(config: Config, task: Task) -> None:
    """Checks the settings of the data, among themselves and against the rest of the config."""
    data, sides = config.data, task.recipe.sides
    _at_least("data", data, **{f"max_{side}_length": 3 for side in sides})
    _at_least("data", data, batch_size=1, streams=1, validation_size=0, workers=1)
    _at_least("data.tokenizer", data.tokenizer, train_bytes=1)
    # Also where nothing reads them.
    lengths = [f"{kind}_{side}_length" for kind in ("max", "row") for side in ("source", "target")]
    _at_least("data", data, **dict.fromkeys(lengths, 1))
    _check_mixture(config)
    for split in SPLITS:
        held_out = split == "validation" and data.validation_size
        mixed = split == "train" and data.mixture
        if not data[split] and not held_out and not mixed and split != "test":
            hint = ", or hold some of train out by data.validation_size"
            raise ValueError(f"data.{split} is empty: name a split{hint * (split == SPLITS[1])}")
        if data[split] and held_out:
            raise ValueError(
                f"data.validation_size={data.validation_size} asks for examples of train, and "
                f"data.validation={data.validation} for others: set one of them to 0 or ()"
            )
    for side in sides:
        longest, row = data[f"max_{side}_length"], data[f"row_{side}_length"]
        if data.packing and row < longest:
            raise ValueError(
                f"data.row_{side}_length={row} cannot hold an example of data.max_{side}_length="
                f"{longest} tokens"
            )
    if task.recipe.labels and data.text_feature == data.label_feature:
        raise ValueError(
            f"data.text_feature and data.label_feature are both {data.text_feature!r}: a text "
            "cannot be its own label"
        )
    parts = data.streams
    if data.batch_size % parts:
        raise ValueError(
            f"data.batch_size={data.batch_size} is no multiple of data.streams={parts}"
        )
    if data.batch_size % config.train.accumulation_steps:
        raise ValueError(
            f"data.batch_size={data.batch_size} is no multiple of train.accumulation_steps="
            f"{config.train.accumulation_steps}"
        )
    if not 0 < config.task.mask_rate <= 1:
        raise ValueError(f"task.mask_rate={config.task.mask_rate} does not lie in (0, 1]")


def _mesh_settings(config: Config) -> MeshSettings:
    if config.mesh.topology:  # which only preflight makes devices of
        try:
            chips.parse(config.mesh.topology)
        except ValueError as error:
            raise ValueError(f"mesh.topology: {error}") from error
    return MeshSettings(**config.mesh.to_dict())


def _check_mesh(config: Config, task: Task, mesh: Mesh) -> None:
    """Checks that the devices can share a training batch evenly."""
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    rows, accumulation_steps = config.data.batch_size, config.train.accumulation_steps
    if rows // accumulation_steps % parts:
        micro = f" / train.accumulation_steps={accumulation_steps}" * (accumulation_steps > 1)
        raise ValueError(
            f"data.batch_size={rows}{micro} rows cannot be dealt out evenly to {parts} devices "
            f"(mesh.data={mesh.shape['data']} * mesh.fsdp={mesh.shape['fsdp']}): make them a "
            "multiple, or set mesh.data to fewer devices"
        )
    kind = "row" if config.data.packing else "max"
    for side in task.recipe.sides:
        name = f"{kind}_{side}_length"
        if config.data[name] % mesh.shape["sequence"]:
            raise ValueError(
                f"data.{name}={config.data[name]} tokens cannot be dealt out evenly to "
                f"mesh.sequence={mesh.shape['sequence']} devices: make them a multiple"
            )


def _check_rows(config: Config, task: Task, most: int | None) -> None:
    """Checks that every row of training, scoring and decoding has a position for each token.

    most: tokens of a row at most; None: any number.
    """
    if most is None:
        return
    data = config.data
    kinds = ("row", "max") if data.packing else ("max",)
    names = [f"{kind}_{side}_length" for kind in kinds for side in task.recipe.sides]
    lengths = {f"data.{name}": data[name] for name in names}
    if task.limit is not None:
        prompt = f"max_{task.recipe.prompt_side}_length"
        longest = task.limit(np.array([data[prompt]]), config.decode.extra_length, most)
        lengths[f"what follows data.{prompt}, with decode.extra_length,"] = int(longest[0])
    for name, length in lengths.items():
        if length > most:
            raise ValueError(
                f"{name} = {length} tokens need more than the model.max_length={most} learned "
                "positions: raise model.max_length or shorten the rows"
            )


def _check_constants(config: Config, task: Task, needs: Needs) -> None:
    """Checks that what tracing the model makes fits into memory."""
    kind = "row" if config.data.packing else "max"
    names = [f"{kind}_{side}_length" for side in task.recipe.sides]
    lengths = {f"data.{name}": config.data[name] for name in names}
    memory.check_constants(needs.constants(max(lengths.values())), lengths)


def _check_intervals(train: TrainSettings, best_metric: str, task: Task) -> None:
    """Checks that the best parameters will be found: measured by a known metric, and saved."""
    known = [f"validation/{name}" for name in (*task.metrics, "perplexity")]
    if best_metric not in ("", *known):
        raise ValueError(
            f"checkpoint.best_metric={best_metric!r} is not measured in training; expected one of "
            f"{', '.join(known)}, or '' for none"
        )
    evaluate_every, save_every = train.evaluate_every, train.checkpoint_every
    if best_metric and evaluate_every and save_every and evaluate_every % save_every:
        raise ValueError(
            f"train.evaluate_every={evaluate_every} is no multiple of checkpoint.every="
            f"{save_every}, so the best parameters could be measured but not saved; change one, "
            "or set checkpoint.best_metric to ''"
        )


def _at_least(section: str, settings: Any, **minima: int) -> None:
    for name, least in minima.items():
        if (value := getattr(settings, name)) < least:
            raise ValueError(f"{section}.{name}={value} is less than {least}")
