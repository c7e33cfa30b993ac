"""What training says before it begins."""

import importlib

import pytest

from configs import default
from transformer_jax import overrides

train = importlib.import_module("transformer_jax.commands.train")


def test_settings_without_effect_are_told_before_anything_is_read(tmp_path, monkeypatch, caplog):
    def built(*_):
        raise RuntimeError("far enough")

    monkeypatch.setattr(train, "built", built)
    config = overrides.load(default.__file__, {"train.steps": 5, "decode.top_k": 5})
    with pytest.raises(RuntimeError, match="far enough"):
        train.train(config, tmp_path)
    assert "decode.top_k=5 has no effect" in caplog.text
    assert "optimizer.warmup_steps=4000 is not less than train.steps=5" in caplog.text
