"""The only reader of a config: turns it into one frozen Run, or one clear message.

Whatever can be wrong with a config is found here, before a work directory is touched and before
anything is compiled. What costs (reading, tokenising) happens when it is first asked for.
"""

import contextlib
import dataclasses
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
from transformer_jax.config import build_data
from transformer_jax.data.dataset import Dataset
from transformer_jax.data.prepare.tokenizer import BOS_ID
from transformer_jax.devices import chips, compiled
from transformer_jax.devices.mesh import MeshSettings, make_mesh, use
from transformer_jax.evaluation.decoder import DecodeSettings
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import Family, with_memory
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS
from transformer_jax.process import machine
from transformer_jax.run import CheckpointSettings, EvaluateSettings, Run
from transformer_jax.tasks.task import Task
from transformer_jax.training import optimizer
from transformer_jax.training.cross_entropy import LossSettings
from transformer_jax.training.losses import Loss
from transformer_jax.training.schedule import make_schedule, peak_rate
from transformer_jax.training.step import TrainSettings
from transformer_jax.training.update_rules import OPTIMIZERS, Roles


def build(config: Config, workdir: Path | None = None, devices: Sequence[Any] | None = None) -> Run:
    """Builds the run that a checked config describes.

    Args:
      config: from `load.load`.
      workdir: its tokenizer and labels are used where they exist: so a work directory needs no
        training data to translate.
      devices: that the mesh is made of (None: all that JAX finds).

    Raises:
      ValueError, FileNotFoundError, OSError: with one message on what cannot be and how to mend it.
    """
    checkpoint = config.checkpoint.to_dict()
    train = TrainSettings(**config.train.to_dict(), checkpoint_every=checkpoint.pop("every"))
    checkpoint = CheckpointSettings(**checkpoint)
    evaluate = config.evaluate.to_dict()
    del evaluate["metrics"]  # of the parts of the data
    evaluate = EvaluateSettings(**evaluate)
    if evaluate.checkpoint == "best" and not checkpoint.best_metric:
        raise ValueError('evaluate.checkpoint="best" needs a checkpoint.best_metric')
    names = ("evaluate_every", "diagnostics_every", "sharpness_every")
    build_data.at_least("train", config.train, **dict.fromkeys(names, 0))
    build_data.at_least("checkpoint", config.checkpoint, every=0)
    decode = DecodeSettings(**config.decode.to_dict())
    task = tasks.choose(config.task.name, config.model.architecture)
    _check_intervals(train, checkpoint.best_metric, evaluate.checkpoint, task)
    build_data.check(config, task)
    settings = _mesh_settings(config)
    mesh = make_mesh(settings, jax.devices() if devices is None else devices)
    _check_mesh(config, task, mesh)
    # Once with the least sizes, so that a mistake in the model does not wait for the data.
    model_config = _model_config(config, task)
    model_config.check_platform(mesh.devices.flat[0].platform)
    _check_rows(config, task, model_config.longest_row)
    family = FAMILIES[config.model.family]
    _check_inspected(config, family)
    schedule, transform = _optimizer(config, lambda: run.roles)
    loss = _loss(config, task)

    # Rows of padding fill up the last batch anyhow: so there are as many as every device can share.
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    rows = math.ceil(evaluate.batch_size / parts) * parts
    data = Dataset(build_data.settings(config, task, rows, workdir))
    # A model of a given size can be inspected without its data.
    model_config = dataclasses.replace(
        model_config,
        vocab_size=config.model.vocab_size or data.vocab_size,
        bos_id=data.special.bos,
        num_labels=len(data.labels),
    )
    model = family.model(model_config)
    run = Run(
        seed=config.seed,
        mesh=mesh,
        task=task,
        data=data,
        model=model,
        loss=loss,
        schedule=schedule,
        optimizer=transform,
        train=train,
        checkpoint=checkpoint,
        evaluate=evaluate,
        decode=decode,
        **_functions(family, model),
    )
    return run


@contextlib.contextmanager
def built(config: Config, workdir: Path | None) -> Iterator[Run]:
    """The run of a config, with its mesh in use, and what it compiles kept in data.cache_dir.

    The process keeps the memory that it frees, since one step takes as much as the other.
    """
    machine.keep_freed_memory()
    compiled.keep(config.data.cache_dir)
    run = build(config, workdir)
    with use(run.mesh):
        yield run


def _functions(family: Family, model: Any) -> dict[str, Any]:
    """The fields of `Run` that ask the model something, with parameters in front."""

    def init(key, batch):
        return family.init(model, key, batch)

    def memory(rows, length) -> Any:
        return family.memory(model.config, rows, length)

    def outputs(params, batch, rng, memory) -> Any:
        return with_memory(model, params, batch, rng, memory)

    return {"init": init, "memory": memory, "outputs": outputs}


def _model_config(config: Config, task: Task) -> Any:
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
    names = [field.name for field in dataclasses.fields(family.config)]
    if "head_dim" in names and settings["head_dim"] is None:
        settings["head_dim"] = head_dim(settings["d_model"], settings["num_heads"])
    settings |= {
        "vocab_size": settings["vocab_size"] or 4,
        "bos_id": BOS_ID,
        "head": task.heads[settings["architecture"]],
        "num_labels": 1,
        "context_length": _context_length(config),
    }
    return family.config(**{name: settings[name] for name in names})


def _context_length(config: Config) -> int:
    """Tokens that a language model sees when it writes: beyond those of training comes nonsense.

    One with memory sees as many before the newest as its memory holds.
    """
    if not build_data.goes_on(config):
        return config.data.max_target_length
    length = config.evaluate.memory_length
    return 1 + (config.model.memory_length if length is None else length)


def head_dim(d_model: int, num_heads: int) -> int:
    """That of heads which share the model's width.

    Raises:
      ValueError: they cannot share it evenly.
    """
    if num_heads < 1 or d_model % num_heads:
        raise ValueError(
            f"model.d_model={d_model} is not divisible by model.num_heads={num_heads}: change one "
            "of them, or set model.head_dim"
        )
    return d_model // num_heads


def _optimizer(config: Config, roles: Roles) -> tuple[optax.Schedule, optax.GradientTransformation]:
    settings = config.optimizer
    names = ("learning_rate", "final_learning_rate", "warmup_steps")
    names += ("burn_in_steps", "decay_steps", "epsilon", "weight_decay", "clip_norm")
    build_data.at_least("optimizer", settings, **dict.fromkeys(names, 0))
    for name in ("beta1", "beta2"):
        if not 0 <= settings[name] < 1:
            raise ValueError(f"optimizer.{name}={settings[name]} does not lie in [0, 1)")
    row = OPTIMIZERS.get(settings.name)
    if row and row.independent and not settings.learning_rate:
        raise ValueError(
            f"optimizer.name={settings.name!r} decays by its schedule's share of its peak, and "
            "optimizer.learning_rate=0 has none: use 'adamw'"
        )
    return make_optimizer(config, roles, settings.learning_rate)


def make_optimizer(
    config: Config, roles: Roles, learning_rate: Any
) -> tuple[optax.Schedule, optax.GradientTransformation]:
    """The schedule and the optimizer of a config, with a learning rate that may be traced."""
    settings = config.optimizer
    schedule = make_schedule(
        name=settings.schedule,
        decay_steps=settings.decay_steps,
        learning_rate=learning_rate,
        warmup_steps=settings.warmup_steps,
        steps=config.train.steps,
        final_learning_rate=settings.final_learning_rate,
        d_model=_width_of_rate(config),
        burn_in_steps=settings.burn_in_steps,
    )
    transform = optimizer.make_optimizer(
        name=settings.name,
        schedule=schedule,
        peak=peak_learning_rate(config, learning_rate),
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        groups=settings.groups,
        layer_warm_ups=settings.layer_warm_ups,
        burn_in_steps=settings.burn_in_steps,
        roles=roles,
    )
    return schedule, transform


def peak_learning_rate(config: Config, learning_rate: Any) -> Any:
    """That of the config's schedule, for a learning rate that may be traced."""
    settings = config.optimizer
    width = _width_of_rate(config)
    return peak_rate(settings.schedule, learning_rate, settings.warmup_steps, width)


def _width_of_rate(config: Config) -> int:
    """The width that noam's factor is of: that of the base, where the model reads one.

    What follows the width beyond it is the parameterisation's, and would be counted twice.
    """
    model = config.model
    read = [field.name for field in dataclasses.fields(FAMILIES[model.family].config)]
    based = "base_width" in read and PARAMETERIZATIONS[model.parameterization] is not None
    return model.base_width if based else model.d_model


def _loss(config: Config, task: Task) -> Loss:
    label_smoothing, z_loss = config.task.label_smoothing, config.task.z_loss
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"task.label_smoothing={label_smoothing} does not lie in [0, 1)")
    if z_loss < 0:
        raise ValueError(f"task.z_loss={z_loss} is negative")
    return task.bound_loss(LossSettings(label_smoothing, z_loss))


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


def _check_inspected(config: Config, family: Family) -> None:
    """Checks that nothing is asked of the model's inside that is not known of its family."""
    every = config.train.diagnostics_every
    if every and not family.inspected:
        known = " or ".join(repr(name) for name, row in FAMILIES.items() if row.inspected)
        raise ValueError(
            f"train.diagnostics_every={every} measures sublayers and their residual connections, "
            f"which a model of model.family={config.model.family!r} does not have: set it to 0, or "
            f"model.family to {known}"
        )


def _check_intervals(train: TrainSettings, best_metric: str, scored: str, task: Task) -> None:
    """Checks that the best parameters will be found: measured by a known metric, and saved."""
    known = [f"validation/{name}" for name in task.measured]
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
    if scored == "best" and evaluate_every and not save_every:
        raise ValueError(
            "evaluate.checkpoint='best' would be the last, as checkpoint.every=0 saves no other: "
            f"set checkpoint.every to train.evaluate_every={evaluate_every}, or "
            "evaluate.checkpoint to 'last'"
        )
