"""The only reader of a config: turns it into one frozen Run, or one clear message.

Whatever can be wrong with a config is found here, before a work directory is touched and before
anything is compiled. What costs (reading, tokenising) happens when it is first asked for.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from absl import logging
from jaxtyping import Array, Float, Key, PyTree

from configs.default import Config
from transformer_jax import objectives, optimizer
from transformer_jax.data import pipeline, sources
from transformer_jax.data.tokenizer import (
    BOS_ID,
    EOS_ID,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
)
from transformer_jax.decode import DecodeSettings
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.transformer import EncoderDecoder
from transformer_jax.train import TrainSettings

Params = PyTree[Float[Array, "..."]]
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """`config.checkpoint`, but for `every`, which is one of training's intervals."""

    keep_last: int
    best_metric: str
    average_last: int

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


@dataclasses.dataclass(frozen=True)
class Split:
    """One split, ready to be scored.

    Attributes:
      batches: token ids sorted into a few fixed shapes, each with the examples' numbers (-1: none).
      examples: the texts "source" and "target", and what else the source tells of each example.
    """

    batches: list[tuple[dict[str, np.ndarray], np.ndarray]]
    examples: sources.Examples


@dataclasses.dataclass(frozen=True)
class Data:
    """The data set of a run; each split is read and tokenised when it is first asked for."""

    config: Config
    seed: int
    evaluation_batch_size: int
    model_vocab_size: int | None  # None: the tokenizer's
    tokenizer_file: Path | None

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The work directory's where it has one, otherwise trained on the training split.

        Raises ValueError where the model has too few tokens for it.
        """
        tokenizer = self._tokenizer()
        if self.model_vocab_size is not None and tokenizer.vocab_size > self.model_vocab_size:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, more than model.vocab_size="
                f"{self.model_vocab_size}: raise it, lower data.tokenizer.vocab_size, or set it to "
                "None"
            )
        return tokenizer

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer_file is not None and self.tokenizer_file.exists():
            return load_tokenizer(self.tokenizer_file)
        kind, vocab_size = self.config.tokenizer.kind, self.config.tokenizer.vocab_size
        if kind == "bytes":
            return train_tokenizer(kind, (), vocab_size)
        for split in SPLITS:  # before minutes are spent on reading the first of them
            sources.find_files(**self._files(split))
        examples = self._train_and_held_out[0]
        return pipeline.cached_tokenizer(
            kind, examples, vocab_size, cache_dir=self.config.cache_dir
        )

    def train_streams(self) -> pipeline.TrainStreams:
        """Endless training batches from the beginning of the first epoch."""
        arrays = self._tokens("train", self._train_and_held_out[0], too_long="drop")
        vars(self).pop("_train_and_held_out")  # the texts may be gigabytes; the arrays are on disk
        length = "row" if self.config.packing else "max"
        return pipeline.TrainStreams(
            arrays,
            batch_size=self.config.batch_size,
            streams=self.config.streams,
            packing=self.config.packing,
            source_length=self.config[f"{length}_source_length"],
            target_length=self.config[f"{length}_target_length"],
            seed=self.seed,
        )

    def abstract_batch(self) -> dict[str, Any]:
        """The shapes of a training batch, without the data."""
        length = "row" if self.config.packing else "max"
        return {
            f"{side}{kind}": jax.ShapeDtypeStruct(
                (self.config.batch_size, self.config[f"{length}_{key}_length"]), np.dtype("int32")
            )
            for side, key in (("inputs", "source"), ("targets", "target"))
            for kind in ("", "_segment_ids", "_positions")
        }

    def split(self, name: str) -> Split:
        """A split to score: "validation" or "test"."""
        if name == "validation" and self.config.validation_size:
            examples = self._train_and_held_out[1]
        else:
            examples = self._load(name)
        arrays = self._tokens(name, examples, too_long="truncate")
        batches = pipeline.eval_batches(arrays, batch_size=self.evaluation_batch_size)
        return Split(batches, examples)

    def source_batches(
        self, lines: Sequence[str]
    ) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Batches of sentences to translate, each with the sentences' numbers (-1: none)."""
        most = self.config.max_source_length - 1
        ids = self.tokenizer.encode(lines)
        if long := sum(len(line) > most for line in ids):
            logging.warning("%d lines are longer than %d tokens and were cut off", long, most)
        ids = [[*line[:most], EOS_ID] for line in ids]
        return pipeline.source_batches(ids, batch_size=self.evaluation_batch_size)

    @functools.cached_property
    def _train_and_held_out(self) -> tuple[sources.Examples, sources.Examples]:
        """The training examples, and those at their end that serve as validation instead."""
        examples, size = self._load("train"), self.config.validation_size
        return sources.hold_out(examples, size) if size else (examples, {})

    def _files(self, split: str) -> dict[str, Any]:
        """What names the files of a split."""
        keys = ("source", "dir", "source_language", "target_language")
        return {key: self.config[key] for key in keys} | {"splits": self.config[split]}

    def _load(self, split: str) -> sources.Examples:
        name, cache_dir = self.config.name, self.config.cache_dir
        return sources.load(**self._files(split), name=name, cache_dir=cache_dir)

    def _tokens(self, split: str, examples: sources.Examples, *, too_long: Any):
        arrays = pipeline.cached_tokens(
            examples,
            self.tokenizer,
            max_source_length=self.config.max_source_length,
            max_target_length=self.config.max_target_length,
            too_long=too_long,
            cache_dir=self.config.cache_dir,
        )
        if arrays.too_long:
            logging.warning(
                "%s: %d of %d examples exceed data.max_source_length=%d or data.max_target_length"
                "=%d tokens and are %s",
                *(split, arrays.too_long, len(examples["source"])),
                *(self.config.max_source_length, self.config.max_target_length),
                "left out" if too_long == "drop" else "cut off",
            )
        return arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a run consists of, as plain values and functions.

    Attributes:
      init: (key, batch) -> params, boxed with logical axes; runs the model in training mode.
      apply: (params, batch, dropout key or None) -> logits (B, T, V); None is deterministic.
      start, step: the model's, with params in front: what decoding needs.
      objective: (apply, params, batch, dropout key or None) -> (loss sum, weight, metrics).
    """

    seed: int
    data: Data
    model: EncoderDecoder
    init: Callable[[Key[Array, ""], objectives.Batch], Params]
    apply: Callable[[Params, objectives.Batch, Key[Array, ""] | None], Float[Array, "B T V"]]
    start: Callable[..., tuple]
    step: Callable[..., tuple]
    objective: Callable[..., tuple]
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    train: TrainSettings
    checkpoint: CheckpointSettings
    evaluate: EvaluateSettings
    decode: DecodeSettings


def build(config: Config, tokenizer_file: Path | None = None) -> Run:
    """Builds the run that a checked config describes.

    Args:
      config: from `overrides.load`.
      tokenizer_file: a trained tokenizer, used where the file exists: so a work directory needs no
        training data to translate.

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
    _at_least("train", config.train, evaluate_every=0)
    _at_least("checkpoint", config.checkpoint, every=0)
    _check_intervals(train, checkpoint.best_metric)
    decode = DecodeSettings(**config.decode.to_dict())
    _check_data(config)
    # Once with the least vocabulary, so that a mistake in the model does not wait for the data.
    model_config = _model_config(config, vocab_size=config.model.vocab_size or 4)
    schedule, transform = _optimizer(config)
    objective = _objective(config)

    data = Data(
        config.data, config.seed, evaluate.batch_size, config.model.vocab_size, tokenizer_file
    )
    # A model of a given size can be inspected without its data.
    vocab_size = config.model.vocab_size or data.tokenizer.vocab_size
    model = EncoderDecoder(dataclasses.replace(model_config, vocab_size=vocab_size))

    def start(params, batch, max_length):
        return model.apply({"params": params}, batch, max_length, method="start")

    def step(params, *arguments):
        return model.apply({"params": params}, *arguments, method="step")

    def init(key, batch):
        params, dropout = jax.random.split(key)
        rngs = {"params": params, "dropout": dropout}
        return model.init(rngs, batch, deterministic=False)["params"]

    def apply(params, batch, rng) -> Any:
        rngs = {} if rng is None else {"dropout": rng}
        return model.apply({"params": params}, batch, deterministic=rng is None, rngs=rngs)

    return Run(
        seed=config.seed,
        data=data,
        model=model,
        init=init,
        apply=apply,
        start=start,
        step=step,
        objective=objective,
        schedule=schedule,
        optimizer=transform,
        train=train,
        checkpoint=checkpoint,
        evaluate=evaluate,
        decode=decode,
    )


def _model_config(config: Config, *, vocab_size: int) -> TransformerConfig:
    """The model's own config; what may be None gets its value here."""
    settings = config.model.to_dict()
    num_layers = settings.pop("num_layers")
    for stack in ("num_encoder_layers", "num_decoder_layers"):
        if settings[stack] is None:
            settings[stack] = num_layers
    if settings["head_dim"] is None:
        settings["head_dim"] = _head_dim(settings["d_model"], settings["num_heads"])
    return TransformerConfig(**settings | {"vocab_size": vocab_size, "bos_id": BOS_ID})


def _head_dim(d_model: int, num_heads: int) -> int:
    if num_heads < 1 or d_model % num_heads:
        raise ValueError(
            f"model.d_model={d_model} is not divisible by model.num_heads={num_heads}: change one "
            "of them, or set model.head_dim"
        )
    return d_model // num_heads


def _optimizer(config: Config) -> tuple[optax.Schedule, optax.GradientTransformation]:
    settings = config.optimizer
    names = ("learning_rate", "final_learning_rate", "warmup_steps")
    names += ("epsilon", "weight_decay", "clip_norm")
    _at_least("optimizer", settings, **dict.fromkeys(names, 0))
    for name in ("beta1", "beta2"):
        if not 0 <= settings[name] < 1:
            raise ValueError(f"optimizer.{name}={settings[name]} does not lie in [0, 1)")
    schedule = optimizer.make_schedule(
        name=settings.schedule,
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
    )
    return schedule, transform


def _objective(config: Config) -> Callable[..., tuple]:
    label_smoothing, z_loss = config.objective.label_smoothing, config.objective.z_loss
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"objective.label_smoothing={label_smoothing} does not lie in [0, 1)")
    if z_loss < 0:
        raise ValueError(f"objective.z_loss={z_loss} is negative")
    return functools.partial(objectives.translation, label_smoothing=label_smoothing, z_loss=z_loss)


def _check_data(config: Config) -> None:
    """Checks the settings of the data, among themselves and against the rest of the config."""
    data = config.data
    _at_least(
        *("data", data),
        **{f"max_{side}_length": 2 for side in ("source", "target")},
        **{"batch_size": 1, "streams": 1, "validation_size": 0},
    )
    for split in SPLITS:
        held_out = split == "validation" and data.validation_size
        if not data[split] and not held_out:
            hint = ", or hold some of train out by data.validation_size"
            raise ValueError(f"data.{split} is empty: name a split{hint * (split == SPLITS[1])}")
        if data[split] and held_out:
            raise ValueError(
                f"data.validation_size={data.validation_size} asks for examples of train, and "
                f"data.validation={data.validation} for others: set one of them to 0 or ()"
            )
    for side in ("source", "target"):
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
    if config.model.positions == "learned":
        _check_learned_positions(config)


def _check_learned_positions(config: Config) -> None:
    """Checks that every row of training, scoring and translating has a position for each token."""
    data, most = config.data, config.model.max_length
    kinds = ("row", "max") if data.packing else ("max",)
    names = [f"{kind}_{side}_length" for kind in kinds for side in ("source", "target")]
    lengths = {f"data.{name}": data[name] for name in names}
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
