"""The only reader of a config: turns it into one frozen Run, or one clear message.

Whatever can be wrong with a config is found here, before a work directory is touched and before
anything is compiled. What costs (reading, tokenising) happens when it is first asked for.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from transformer_jax import tasks
from transformer_jax.config import build_data, rows
from transformer_jax.config.load import identity
from transformer_jax.configs.default import Config
from transformer_jax.data.prepare.tokenizer import BOS_ID
from transformer_jax.data.settings import DataSettings
from transformer_jax.devices import compiled
from transformer_jax.devices.mesh import AXES, make_mesh, use
from transformer_jax.evaluation.decoder import DecodeSettings
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import Family
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.models.layers.settings import UNORDERED
from transformer_jax.models.layers.stems import STEMS
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS
from transformer_jax.run import CheckpointSettings, EvaluateSettings, Run
from transformer_jax.tasks.task import Task
from transformer_jax.training.cross_entropy import LossSettings
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.schedule import SCHEDULES, make_schedule
from transformer_jax.training.step import TrainSettings
from transformer_jax.training.update_rules import OPTIMIZERS, OptimizerSettings

# Settings of JAX that decide dtypes and draws, and what every command expects of them.
_JAX = {"jax_enable_x64": False, "jax_threefry_partitionable": True, "jax_random_seed_offset": 0}
_JAX |= {"jax_default_prng_impl": "threefry2x32", "jax_numpy_dtype_promotion": "standard"}
# Up to which float32 corrects a mean of squares for its start to 0.2 % of a step.
_LARGEST_BETA2 = 0.99999


def build(config: Config, workdir: Path | None = None, devices: Sequence[Any] | None = None) -> Run:
    """Builds the run that a checked config describes.

    Args:
      config: from `load`.
      workdir: its tokenizer and labels are used where they exist: so a work directory needs no
        training data to translate.
      devices: that the mesh is made of (None: all that JAX finds).

    Raises:
      ValueError, FileNotFoundError, OSError: with one message on what cannot be and how to mend it.
    """
    for name, expected in _JAX.items():
        if (value := getattr(jax.config, name)) != expected:
            raise ValueError(f"{name.upper()}={value} makes another run of this config: unset it")
    settings = config.to_dict()
    del settings["evaluate"]["metrics"]  # of the parts of the data
    saved = {f"checkpoint_{name}": settings["checkpoint"].pop(name) for name in ("every", "at")}
    train = TrainSettings(**settings["train"], **saved)
    checkpoint = CheckpointSettings(**settings["checkpoint"])
    evaluate = EvaluateSettings(**settings["evaluate"])
    decode = DecodeSettings(**settings["decode"])
    task = tasks.choose(config.task.name, config.model.architecture)
    _check_best(train, checkpoint, evaluate, task)
    sizes = [config.mesh[axis] for axis in AXES]
    mesh = make_mesh(sizes, jax.devices() if devices is None else devices)
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    data = build_data.dataset(config, task, workdir, parts)
    _check_mesh(data.settings, train, mesh)
    family = FAMILIES[config.model.family]
    # Once with the least sizes, so that a mistake in the model does not wait for the data.
    model_config = _model_config(config, family, task, data.settings)
    model_config.check_platform(mesh.devices.flat[0].platform)
    if data.settings.images:
        _check_stem(config, data.settings)
    _check_rows(data.settings, decode, task, model_config.longest_row, config.model)
    _check_inspected(train, config.model.family)
    optimizer = optimizer_settings(config)
    if OPTIMIZERS[optimizer.name].one_device and mesh.size > 1:
        raise ValueError(
            f"optimizer.name={optimizer.name!r} steps on one device, and the mesh has {mesh.size}: "
            "set mesh.data, mesh.fsdp, mesh.tensor and mesh.sequence to 1"
        )
    parameterization = config.model.parameterization
    if not OPTIMIZERS[optimizer.name].parameterized and parameterization != "standard":
        raise ValueError(
            f"model.parameterization={parameterization!r} has no powers of the width for the steps "
            f"of optimizer.name={optimizer.name!r}: set it to 'standard', or choose 'adamw' or "
            "'muon'"
        )
    schedule = make_schedule(optimizer)
    transform = make_optimizer(optimizer, schedule, lambda: run.roles)

    # A model of a given size can be inspected without its data.
    model_config = dataclasses.replace(
        model_config,
        vocab_size=config.model.vocab_size or data.vocab_size,
        bos_id=data.special.bos,
        num_labels=len(data.labels),
    )
    run = Run(
        identity=identity(config),
        as_json=config.to_dict(),
        own_rows=rows.source(config.rows),
        seed=config.seed,
        data_seed=config.data.seed,
        mesh=mesh,
        task=task,
        data=data,
        family=family,
        model=family.model(model_config),
        loss=task.bound_loss(_loss_settings(config)),
        optimizer=optimizer,
        schedule=schedule,
        transform=transform,
        train=train,
        trackers=config.log.trackers,
        checkpoint=checkpoint,
        evaluate=evaluate,
        decode=decode,
    )
    return run


@contextlib.contextmanager
def built(config: Config, workdir: Path | None) -> Iterator[Run]:
    """The run of a config, with its mesh in use, and what it compiles kept in data.cache_dir."""
    run = build(config, workdir)
    compiled.keep(run.data.settings.source.cache_dir)
    with use(run.mesh):
        yield run


def optimizer_settings(config: Config) -> OptimizerSettings:
    """`config.optimizer`, and what else of a config decides the learning rate and beta2.

    Raises:
      ValueError: there is no peak for what decays by a share of it, or no way down to the floor, or
        float32 does not tell beta2 from 1.
    """
    settings, model = dict(config.optimizer), config.model
    name, peak, floor = settings["name"], settings["learning_rate"], settings["final_learning_rate"]
    by_share = OPTIMIZERS[name].independent or settings["weight_decay_power"] > 1
    if by_share and not peak:
        raise ValueError(
            f"optimizer.name={name!r} with optimizer.weight_decay_power="
            f"{settings['weight_decay_power']} decays by its schedule's share of its peak, and "
            "optimizer.learning_rate=0 has none: use 'adamw' with 1"
        )
    shaped = "decay_shape" in SCHEDULES[settings["schedule"]].reads
    if shaped and settings["decay_shape"] == "exponential" and not 0 < floor < peak:
        raise ValueError(
            f"optimizer.decay_shape='exponential' goes by equal factors from optimizer."
            f"learning_rate={peak} down to optimizer.final_learning_rate={floor}: make that more "
            "than 0 and less than the first"
        )
    half_life = settings.pop("beta2_half_life")
    if half_life is not None:
        settings["beta2"] = 2 ** (-_places(config) / half_life)
    if settings["beta2"] > _LARGEST_BETA2:
        most = f"{_LARGEST_BETA2}"
        if half_life is not None:
            longest = math.floor(-_places(config) / math.log2(_LARGEST_BETA2))
            most += f", so optimizer.beta2_half_life at most {longest}"
        raise ValueError(
            f"optimizer.beta2={settings['beta2']!r} is so near to 1 that steps in float32 have "
            f"another size, or none: expected at most {most}"
        )
    # What follows the width beyond its base is the parameterisation's, and would be counted twice.
    reads_base = "base_width" in FAMILIES[model.family].reads
    based = reads_base and PARAMETERIZATIONS[model.parameterization] is not None
    width = model.base_width if based and model.base_width else model.d_model
    return OptimizerSettings(**settings, steps=config.train.steps, width=width)


def _places(config: Config) -> int:
    """Places of the rows of a step, of targets where these are a side of their own."""
    task = tasks.choose(config.task.name, config.model.architecture)
    return config.data.batch_size * build_data.row_places(config, task)[task.recipe.sides[-1]]


def _loss_settings(config: Config) -> LossSettings:
    """What of `config.task` losses read. Raises ValueError where weights of boxes are none."""
    names = [field.name for field in dataclasses.fields(LossSettings)]
    settings = LossSettings(**{name: config.task[name] for name in names})
    if len(settings.box_weights) != 3 or min(settings.box_weights) < 0:
        raise ValueError(
            f"task.box_weights={settings.box_weights} is not three numbers that are at least 0: of "
            "class, L1 and GIoU"
        )
    return settings


def _queries(config: Config, data: DataSettings) -> int:
    """How many queries a model of sets has. Raises ValueError where boxes outnumber them."""
    number, boxes = config.model.num_queries, data.longest["target"]
    if number is not None and number < boxes and config.model.architecture in UNORDERED:
        raise ValueError(
            f"model.num_queries={number} cannot tell the boxes of an image, which are up to "
            f"data.max_target_length={boxes}: raise the one or lower the other"
        )
    return boxes if number is None else number


def head_dim(d_model: int, num_heads: int) -> int:
    """The size of heads that share the model's width.

    Raises:
      ValueError: they cannot share it evenly.
    """
    if d_model % num_heads:
        raise ValueError(
            f"model.d_model={d_model} is not divisible by model.num_heads={num_heads}: change one "
            "of them, or set model.head_dim"
        )
    return d_model // num_heads


def _model_config(config: Config, family: Family, task: Task, data: DataSettings) -> Any:
    """The model's own config, of least vocabulary and labels; what may be None gets its value."""
    settings = config.model.to_dict()
    general = {"num_{}_layers": "num_layers", "{}_residual": "residual"}
    for template, stack in itertools.product(general, ("encoder", "decoder")):
        if settings[template.format(stack)] is None:
            settings[template.format(stack)] = settings[general[template]]
    names = [field.name for field in dataclasses.fields(family.config)]
    if "parameterization" in names:
        _warn_of_base(config.model)
    if "head_dim" in names and settings["head_dim"] is None:
        settings["head_dim"] = head_dim(settings["d_model"], settings["num_heads"])
    settings |= {
        "vocab_size": settings["vocab_size"] or 4,
        "bos_id": BOS_ID,
        "inputs": "patches" if task.recipe.reads_images else "tokens",
        "grid": data.images.grid if data.images else (0, 0),
        "head": task.heads[settings["architecture"]],
        "num_labels": 1,
        "num_queries": _queries(config, data),
        "context_length": _context_length(config, data),
    }
    return family.config(**{name: settings[name] for name in names})


def _warn_of_base(model: Config) -> None:
    """Warns of what cannot have come from the base: heads stay, their number and d_ff grow."""
    name, base = model.parameterization, model.base_width
    if PARAMETERIZATIONS[name] is None or base in (None, model.d_model):
        return
    takes = f"model.parameterization={name!r} takes"
    if model.head_dim is None:
        logging.warning(
            f"{takes} heads to keep their size, and model.head_dim=None follows from the width: "
            f"set it to the size that heads have at model.base_width={base}"
        )
    for key in ("num_heads", "d_ff"):
        if model[key] * base % model.d_model:
            logging.warning(
                f"{takes} model.{key}={model[key]} to have grown with the width: make it a "
                f"multiple of model.d_model / model.base_width = {model.d_model / base:.3g}"
            )


def _context_length(config: Config, data: DataSettings) -> int:
    """Tokens that a language model sees when it writes: beyond those of training comes nonsense.

    One with memory sees as many before the newest as its memory holds.
    """
    if not data.contiguous:
        return data.longest["target"]
    length = config.evaluate.memory_length
    return 1 + (config.model.memory_length if length is None else length)


def _check_mesh(data: DataSettings, train: TrainSettings, mesh: Mesh) -> None:
    """Checks that the devices can share a training batch evenly."""
    parts, steps = mesh.shape["data"] * mesh.shape["fsdp"], train.accumulation_steps
    if data.batch_size // steps % parts:
        micro = f" / train.accumulation_steps={steps}" * (steps > 1)
        raise ValueError(
            f"data.batch_size={data.batch_size}{micro} rows cannot be dealt out evenly to {parts} "
            f"devices (mesh.data={mesh.shape['data']} * mesh.fsdp={mesh.shape['fsdp']}): make them "
            "a multiple, or set mesh.data to fewer devices"
        )
    for name, length in data.row_settings.items():
        if length % mesh.shape["sequence"]:
            raise ValueError(
                f"{name}={length} tokens cannot be dealt out evenly to mesh.sequence="
                f"{mesh.shape['sequence']} devices: make them a multiple"
            )


def _check_stem(config: Config, data: DataSettings) -> None:
    """Checks that a stem which looks beyond a patch sees whole images, each in a row of its own."""
    sequence = config.mesh.sequence
    for key, value, alone in ("data.packing", data.packing, False), ("mesh.sequence", sequence, 1):
        if STEMS[config.model.stem].whole and value != alone:
            raise ValueError(
                f"model.stem={config.model.stem!r} needs a whole image in each row, and {key}="
                f"{value} puts several, or a part, in one: set it to {alone}"
            )


def _check_rows(
    data: DataSettings, decode: DecodeSettings, task: Task, most: int | None, model: Config
) -> None:
    """Checks that every row of training, scoring and decoding has a position for each token.

    most: tokens of a row at most, by a setting of `model`; None: any number.
    """
    if most is None:
        return
    lengths = data.row_settings
    if task.limit is not None:
        prompt = f"data.max_{data.recipe.prompt_side}_length"
        longest = task.limit(np.array([data.max_prompt_length]), decode.extra_length, most)
        lengths[f"what follows {prompt}, with decode.extra_length,"] = int(longest[0])
    key = POSITIONS[model.positions].bound
    for name, length in lengths.items():
        if length > most:
            raise ValueError(
                f"{name} = {length} tokens need more than the {most} positions of "
                f"model.{key}={model[key]!r:.90}: raise it or shorten the rows"
            )


def _check_inspected(train: TrainSettings, family: str) -> None:
    """Checks that nothing is asked of the model's inside that is not known of its family."""
    for key in ("diagnostics_every", "diagnostics_at", "probes"):
        value = getattr(train, key)
        if value and not FAMILIES[family].inspected:
            known = " or ".join(repr(name) for name, row in FAMILIES.items() if row.inspected)
            raise ValueError(
                f"train.{key}={value} measures sublayers and their residual connections, which a "
                f"model of model.family={family!r} does not have: set it to {type(value)()}, or "
                f"model.family to {known}"
            )


def _check_best(
    train: TrainSettings, checkpoint: CheckpointSettings, evaluate: EvaluateSettings, task: Task
) -> None:
    """Checks that the best parameters will be found: measured by a known metric, and saved."""
    best = checkpoint.best_metric
    known = [f"validation/{name}" for name in task.measured]
    if best not in ("", *known):
        raise ValueError(
            f"checkpoint.best_metric={best!r} is not measured in training; expected one of "
            f"{', '.join(known)}, or '' for none"
        )
    if evaluate.checkpoint == "best" and not best:
        raise ValueError('evaluate.checkpoint="best" needs a checkpoint.best_metric')
    evaluate_every, save_every = train.evaluate_every, train.checkpoint_every
    if best and evaluate_every and save_every and evaluate_every % save_every:
        raise ValueError(
            f"train.evaluate_every={evaluate_every} is no multiple of checkpoint.every="
            f"{save_every}, so the best parameters could be measured but not saved; change one, "
            "or set checkpoint.best_metric to ''"
        )
    if evaluate.checkpoint == "best" and evaluate_every and not save_every:
        raise ValueError(
            "evaluate.checkpoint='best' would be the last, as checkpoint.every=0 saves no other: "
            f"set checkpoint.every to train.evaluate_every={evaluate_every}, or "
            "evaluate.checkpoint to 'last'"
        )
