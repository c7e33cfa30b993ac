"""The only reader of a config: turns it into one frozen Run, or one clear message.

Whatever can be wrong with a config is found here, before a work directory is touched and before
anything is compiled. What costs (reading, tokenising) happens when it is first asked for.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, PyTree

from configs.default import Config
from transformer_jax.data.dataset import SPLITS, Dataset, DataSettings
from transformer_jax.data.sources import SourceSettings
from transformer_jax.data.tokenizer import BOS_ID
from transformer_jax.devices import mesh as sharding
from transformer_jax.devices.mesh import MeshSettings, make_mesh
from transformer_jax.evaluation.generate import make_eval_step, make_predict_step
from transformer_jax.evaluation.search import DecodeSettings
from transformer_jax.models.family import roles
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.models.transformer.shapes import MODELS, Model, initialise
from transformer_jax.training import losses as objectives
from transformer_jax.training import optimizer
from transformer_jax.training import state as train_state
from transformer_jax.training.loop import WINDOW_METRICS, StepFn, TrainSettings, make_train_step
from transformer_jax.training.state import State

Params = PyTree[Float[Array, "..."]]


@dataclasses.dataclass(frozen=True)
class _Task:
    """What an objective needs: an architecture, a head, the loss, and the sides of its examples."""

    architecture: str
    head: str
    loss: Callable[..., tuple]
    sides: tuple[str, ...]


# The first of an architecture's is its own: that of `objective.name` None.
_TASKS = {
    "translation": _Task(
        *("encoder_decoder", "tokens", objectives.next_token), ("source", "target")
    ),
    "masked_lm": _Task("encoder_only", "masked_tokens", objectives.masked_tokens, ("source",)),
    "classification": _Task("encoder_only", "classes", objectives.labels, ("source",)),
    "tagging": _Task("encoder_only", "tags", objectives.labels, ("source",)),
    "causal_lm": _Task("decoder_only", "tokens", objectives.next_token, ("target",)),
}


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """`config.checkpoint`, but for `every`, which is one of training's intervals."""

    keep_last: int
    best_metric: str
    average_last: int
    init_from: str

    def __post_init__(self):
        _at_least("checkpoint", self, keep_last=1, average_last=1)
        if self.average_last > self.keep_last:
            raise ValueError(
                f"checkpoint.average_last={self.average_last} needs as many checkpoints, but "
                f"checkpoint.keep_last={self.keep_last}"
            )


@dataclasses.dataclass(frozen=True)
class EvaluateSettings:
    """`config.evaluate`."""

    checkpoint: str
    batch_size: int
    bleu_tokenizer: str

    def __post_init__(self):
        _at_least("evaluate", self, batch_size=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a run consists of, as plain values and functions.

    Attributes:
      mesh: of the devices, which whoever computes puts in use (`sharding.use`).
      objective: its name: what the model is trained for, and so what is scored and generated.
      init: (key, batch) -> params, boxed with logical axes; runs the model in training mode.
      apply: (params, batch, dropout key or None) -> logits (B, T, V or C); None is deterministic.
      start, step: the model's, with params in front: what decoding needs.
      loss: (apply, params, batch, dropout key or None) -> (loss sum, weight, metrics).
      eval_step, predict_step, embed_step: (params, batch) -> what the loss reports, the likeliest
        token or label (B, T), the vectors of texts (B, T, D); compiled once a shape.
    """

    seed: int
    mesh: Mesh
    objective: str
    data: Dataset
    model: Model
    init: Callable[[Key[Array, ""], objectives.Batch], Params]
    apply: Callable[[Params, objectives.Batch, Key[Array, ""] | None], Float[Array, "B T _"]]
    start: Callable[..., tuple]
    step: Callable[..., tuple]
    loss: Callable[..., tuple]
    eval_step: Callable[..., objectives.Sums]
    predict_step: Callable[..., Int[Array, "B T"]]
    embed_step: Callable[..., Float[Array, "B T D"]]
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    train: TrainSettings
    checkpoint: CheckpointSettings
    evaluate: EvaluateSettings
    decode: DecodeSettings

    def abstract_batch(self) -> dict[str, Any]:
        """The shapes of a training batch and where its parts lie, without the data."""

        def array(shape: tuple[int, int]) -> jax.ShapeDtypeStruct:
            layout = sharding.batch_sharding(self.mesh, shape)
            return jax.ShapeDtypeStruct(shape, "int32", sharding=layout)

        return {name: array(shape) for name, shape in self.data.batch_shapes().items()}

    def new_state(self, batch: objectives.Batch) -> State:
        """The state before the first step, whose batch this is."""
        return self._state(train_state.create, jax.random.key(self.seed), batch)

    def abstract_state(self) -> State:
        """Shapes and shardings of the state that training carries; nothing is computed."""
        # Not even a key, as the devices may be none that are here.
        key = jax.eval_shape(jax.random.key, self.seed)
        return self._state(train_state.abstract, key, self.abstract_batch())

    def _state(
        self, make: Callable[..., State], key: Key[Array, ""], batch: objectives.Batch
    ) -> State:
        ema = self.train.ema_decay > 0
        return make(
            *(self.init, self.optimizer, key, batch, WINDOW_METRICS), ema=ema, mesh=self.mesh
        )

    def train_step(self, apply: objectives.ApplyFn | None = None) -> StepFn:
        """The compiled step of training (see `train.train_step`); `apply` in place of its own."""
        return make_train_step(
            self.train,
            objective=self.loss,
            apply_fn=apply or self.apply,
            optimizer=self.optimizer,
            schedule=self.schedule,
            layout=train_state.layout(self.abstract_state()),
        )


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
    if config.seed < 0:
        raise ValueError(f"seed={config.seed} is negative")
    _at_least("train", config.train, evaluate_every=0, diagnostics_every=0)
    _at_least("checkpoint", config.checkpoint, every=0)
    _check_intervals(train, checkpoint.best_metric)
    decode = DecodeSettings(**config.decode.to_dict())
    objective = _objective_name(config)
    _check_data(config, objective)
    settings = MeshSettings(**config.mesh.to_dict())
    mesh = make_mesh(settings, jax.devices() if devices is None else devices)
    _check_mesh(config, objective, mesh)
    # Once with the least sizes, so that a mistake in the model does not wait for the data.
    task = _TASKS[objective]
    model_config = _model_config(config, task)
    model_config.check_platform(mesh.devices.flat[0].platform)
    _check_rows(config, objective, model_config.longest_row)
    schedule, transform = _optimizer(config, lambda: parameter_roles())
    loss = _loss(config, task)

    data = Dataset(_data_settings(config, objective, mesh, workdir))
    # A model of a given size can be inspected without its data.
    vocab_size = config.model.vocab_size or data.tokenizer.vocab_size
    sizes = {"vocab_size": vocab_size, "num_labels": len(data.labels)}
    model_config = dataclasses.replace(model_config, **sizes)
    model = MODELS[model_config.architecture](model_config)

    def start(params, batch, max_length):
        return model.apply({"params": params}, batch, max_length, method="start")

    def step(params, *arguments):
        return model.apply({"params": params}, *arguments, method="step")

    def embed(params, batch) -> Any:
        vectors: Any = model.apply({"params": params}, batch, method="embed")
        return sharding.constrain(vectors)

    def init(key, batch):
        return initialise(model, key, batch)

    @functools.cache
    def parameter_roles():
        key = jax.eval_shape(jax.random.key, config.seed)
        shapes = data.batch_shapes().items()
        batch = {name: jax.ShapeDtypeStruct(shape, "int32") for name, shape in shapes}
        return roles(jax.eval_shape(init, key, batch))

    def apply(params, batch, rng) -> Any:
        rngs = {} if rng is None else {"dropout": rng}
        return model.apply({"params": params}, batch, deterministic=rng is None, rngs=rngs)

    return Run(
        seed=config.seed,
        mesh=mesh,
        objective=objective,
        data=data,
        model=model,
        init=init,
        apply=apply,
        start=start,
        step=step,
        loss=loss,
        eval_step=make_eval_step(loss, apply),
        predict_step=make_predict_step(apply),
        embed_step=jax.jit(embed),
        schedule=schedule,
        optimizer=transform,
        train=train,
        checkpoint=checkpoint,
        evaluate=evaluate,
        decode=decode,
    )


def _objective_name(config: Config) -> str:
    """The objective, which fits the architecture."""
    name, architecture = config.objective.name, config.model.architecture
    fitting = [task for task in _TASKS if _TASKS[task].architecture == architecture]
    if name is None:
        return fitting[0]
    if name not in fitting:
        raise ValueError(
            f"objective.name={name!r} does not fit model.architecture={architecture!r}, which does "
            f"{', '.join(fitting)}: set the architecture to {_TASKS[name].architecture!r}, or the "
            "objective to None for the architecture's own"
        )
    return name


def _model_config(config: Config, task: _Task) -> TransformerConfig:
    """The model's own config, of least vocabulary and labels; what may be None gets its value."""
    settings = config.model.to_dict()
    num_layers = settings.pop("num_layers")
    for stack in ("num_encoder_layers", "num_decoder_layers"):
        if settings[stack] is None:
            settings[stack] = num_layers
    residual = settings.pop("residual")
    for stack in ("encoder_residual", "decoder_residual"):
        if settings[stack] is None:
            settings[stack] = residual
    if settings["head_dim"] is None:
        settings["head_dim"] = _head_dim(settings["d_model"], settings["num_heads"])
    vocab_size = settings["vocab_size"] or 4
    settings |= {"vocab_size": vocab_size, "bos_id": BOS_ID, "head": task.head, "num_labels": 1}
    # Beyond the length of its training a language model writes nonsense.
    settings["context_length"] = config.data.max_target_length
    return TransformerConfig(**settings)


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


def _loss(config: Config, task: _Task) -> Callable[..., tuple]:
    label_smoothing, z_loss = config.objective.label_smoothing, config.objective.z_loss
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"objective.label_smoothing={label_smoothing} does not lie in [0, 1)")
    if z_loss < 0:
        raise ValueError(f"objective.z_loss={z_loss} is negative")
    return functools.partial(task.loss, label_smoothing=label_smoothing, z_loss=z_loss)


def _data_settings(
    config: Config, objective: str, mesh: Mesh, workdir: Path | None
) -> DataSettings:
    settings = config.data.to_dict()
    # Rows of padding fill up the last batch anyhow: so there are as many as every device can share.
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    evaluation_batch_size = math.ceil(config.evaluate.batch_size / parts) * parts
    tokenizer = settings.pop("tokenizer")
    names = [field.name for field in dataclasses.fields(SourceSettings)]
    return DataSettings(
        source=SourceSettings(**{name: settings.pop(name) for name in names}),
        objective=objective,
        splits={split: settings.pop(split) for split in SPLITS},
        tokenizer_kind=tokenizer["kind"],
        tokenizer_vocab_size=tokenizer["vocab_size"],
        model_vocab_size=config.model.vocab_size,
        mask_rate=config.objective.mask_rate,
        seed=config.seed,
        evaluation_batch_size=evaluation_batch_size,
        tokenizer_file=_tokenizer_file(config, workdir),
        labels_file=workdir / "labels.json" if workdir else None,
        **settings,
    )


def _tokenizer_file(config: Config, workdir: Path | None) -> Path | None:
    """The work directory's, or that of the run whose parameters this one starts from."""
    own = workdir / "tokenizer.json" if workdir else None
    if not config.checkpoint.init_from or (own is not None and own.exists()):
        return own
    # A work directory, or a folder W/checkpoints/STEP in one.
    start = Path(config.checkpoint.init_from).expanduser()
    files = [folder / "tokenizer.json" for folder in (start, *start.absolute().parents[:2])]
    found = [file for file in files if file.exists()]
    if not found:
        raise FileNotFoundError(
            f"checkpoint.init_from={str(start)!r} is no work directory, nor a checkpoint in one: "
            "there is no tokenizer.json"
        )
    return found[0]


def _check_data(config: Config, objective: str) -> None:
    """Checks the settings of the data, among themselves and against the rest of the config."""
    data, sides = config.data, _TASKS[objective].sides
    _at_least(
        *("data", data),
        **{f"max_{side}_length": 3 for side in sides},
        **{"batch_size": 1, "streams": 1, "validation_size": 0},
    )
    for split in SPLITS:
        held_out = split == "validation" and data.validation_size
        if not data[split] and not held_out and split != "test":
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
    if not 0 < config.objective.mask_rate <= 1:
        raise ValueError(f"objective.mask_rate={config.objective.mask_rate} lies not in (0, 1]")


def _check_mesh(config: Config, objective: str, mesh: Mesh) -> None:
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
    for side in _TASKS[objective].sides:
        name = f"{kind}_{side}_length"
        if config.data[name] % mesh.shape["sequence"]:
            raise ValueError(
                f"data.{name}={config.data[name]} tokens cannot be dealt out evenly to "
                f"mesh.sequence={mesh.shape['sequence']} devices: make them a multiple"
            )


def _check_rows(config: Config, objective: str, most: int | None) -> None:
    """Checks that every row of training, scoring and decoding has a position for each token."""
    data, sides = config.data, _TASKS[objective].sides
    if most is None:
        return
    kinds = ("row", "max") if data.packing else ("max",)
    names = [f"{kind}_{side}_length" for kind in kinds for side in sides]
    lengths = {f"data.{name}": data[name] for name in names}
    if objective == "translation":
        longest = data.max_source_length + config.decode.extra_length
        lengths["data.max_source_length + decode.extra_length"] = longest
    for name, length in lengths.items():
        if length > most:
            raise ValueError(
                f"{name} = {length} tokens need more than the model.max_length={most} learned "
                "positions: raise model.max_length or shorten the rows"
            )


def _check_intervals(train: TrainSettings, best_metric: str) -> None:
    """Checks that the best parameters will be found: measured by a known metric, and saved."""
    known = [f"validation/{name}" for name in (*objectives.METRICS, "perplexity")]
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
