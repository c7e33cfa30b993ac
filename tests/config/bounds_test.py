"""Every number of the config has bounds: what is beyond them is refused, and they are not."""

import dataclasses
import math

import pytest

from transformer_jax import run
from transformer_jax.config.bounds import BOUNDS, LARGEST
from transformer_jax.config.load import _defaults, flatten, load
from transformer_jax.configs import default
from transformer_jax.data.read.examples import SourceSettings
from transformer_jax.data.settings import DataSettings
from transformer_jax.devices.mesh import AXES
from transformer_jax.evaluation.decoder import DecodeSettings
from transformer_jax.models import FAMILIES
from transformer_jax.training.step import TrainSettings
from transformer_jax.training.update_rules import OptimizerSettings

KINDS = {key: kind.type for key, kind in _defaults(default.get_config)[1].items()}


def test_every_number_has_bounds():
    """But for the sizes of a mesh, which may also be -1."""
    numbers = {key for key, kind in KINDS.items() if kind in (int, float)}
    assert numbers - BOUNDS.keys() == {f"mesh.{axis}" for axis in AXES}
    assert BOUNDS.keys() <= numbers


@pytest.mark.parametrize("key", BOUNDS)
def test_the_ends_of_an_interval_are_taken_as_its_brackets_say_and_nothing_beyond(key):
    bounds, number = BOUNDS[key], KINDS[key]
    most = LARGEST if number is int and bounds.most == math.inf else bounds.most
    step = 1 if number is int else 1e-3
    beyond = [bounds.least - step, most + step] if most < math.inf else [bounds.least - step]
    for bracket, end in zip(bounds.brackets, (bounds.least, most), strict=True):
        if end == math.inf:
            continue
        if bracket in "[]":
            assert flatten(load("configs/default.py", {key: end}))[key] == end
        else:
            beyond.append(end)
    for value in beyond:
        with pytest.raises(ValueError) as error:
            load("configs/default.py", {key: value})
        message = str(error.value)
        assert message.startswith(f"{key}={number(value)!r} is not ") or str(value) in message
        assert str(bounds.least) in message and bounds.hint in message


def test_a_saved_config_is_checked_too(tmp_path):
    (tmp_path / "config.json").write_text('{"train": {"steps": 0}}')
    with pytest.raises(ValueError, match=r"config.json: train.steps=0 is not in \[1, 2147483647\]"):
        load(str(tmp_path / "config.json"))


SETTINGS = [
    run.CheckpointSettings,
    run.EvaluateSettings,
    DataSettings,
    DecodeSettings,
    OptimizerSettings,
    SourceSettings,
    TrainSettings,
    *(family.config for family in FAMILIES.values()),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.__name__)
def test_what_a_config_decides_has_its_default_there_alone(settings):
    missing = dataclasses.MISSING
    fields = dataclasses.fields(settings)
    assert all(field.default is field.default_factory is missing for field in fields)
