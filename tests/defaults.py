"""Settings as tests make them: the defaults of configs/default.py, and what a test changes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import optax

from transformer_jax.configs import default
from transformer_jax.training import optimizer
from transformer_jax.training.cross_entropy import LossSettings
from transformer_jax.training.step import TrainSettings
from transformer_jax.training.update_rules import OptimizerSettings

# A config of words and a small model.
SMALL: dict[str, Any] = {
    "data.tokenizer.kind": "words",
    # Evaluation rounds lengths up to 8, so this leaves one shape to compile.
    "data.max_source_length": 8,
    "data.max_target_length": 8,
    "model.num_layers": 1,
    "model.d_model": 8,
    "model.num_heads": 2,
    "model.d_ff": 16,
}


@functools.cache
def _section(name: str) -> dict[str, Any]:
    return default.get_config()[name].to_dict()


def settings(kind: type[Any], section: str, **changes: Any) -> Any:
    """A dataclass of settings that has its values from this section of the config."""
    names = {field.name for field in dataclasses.fields(kind)}
    defaults = {name: value for name, value in _section(section).items() if name in names}
    return kind(**(defaults | changes))


def train_settings(**changes: Any) -> TrainSettings:
    """Ten steps of which none is evaluated, measured or saved."""
    quiet = {"steps": 10, "evaluate_every": 0, "checkpoint_every": 0, "checkpoint_at": ()}
    return settings(TrainSettings, "train", **(quiet | changes))


def optimizer_settings(**changes: Any) -> OptimizerSettings:
    """Of a training of 20 steps, by the width of the default."""
    return settings(OptimizerSettings, "optimizer", **({"steps": 20, "width": 512} | changes))


def loss_settings(
    label_smoothing: float = 0.1, z_loss: float = 0.0, **changes: Any
) -> LossSettings:
    """Of text, unless other things are changed."""
    changes |= {"label_smoothing": label_smoothing, "z_loss": z_loss}
    return settings(LossSettings, "task", **changes)


def make_optimizer(
    name: str,
    schedule: optax.Schedule | float,
    roles: Callable[[], Any] = dict,
    **changes: Any,
) -> optax.GradientTransformation:
    """An optimizer whose rates these are, whatever its settings say; the peak is 1."""
    overrides = {"name": name, "schedule": "constant"} | changes
    rates = schedule if callable(schedule) else optax.constant_schedule(schedule)
    return optimizer.make_optimizer(optimizer_settings(**overrides), rates, roles)
