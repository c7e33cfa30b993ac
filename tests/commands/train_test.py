"""What training says before it begins, and when it is done."""

import importlib
import json

import pytest

from transformer_jax.config.load import load
from transformer_jax.configs import default

train = importlib.import_module("transformer_jax.commands.train")


def test_settings_without_effect_are_told_before_anything_is_read(tmp_path, monkeypatch, caplog):
    def built(*_):
        raise RuntimeError("far enough")

    monkeypatch.setattr(train, "built", built)
    config = load(default.__file__, {"train.steps": 5, "decode.top_k": 5})
    with pytest.raises(RuntimeError, match="far enough"):
        train.train(config, tmp_path)
    assert "decode.top_k=5 has no effect" in caplog.text
    assert "optimizer.warmup_steps=4000 is not less than train.steps=5" in caplog.text


@pytest.mark.parametrize(("family", "replays"), [("transformer", True), ("recurrent", False)])
def test_replay_is_offered_where_it_can_be_had(tmp_path, monkeypatch, capsys, family, replays):
    results = {"status": "diverged", "steps": 3, "first_bad_step": 3}
    (tmp_path / "results.json").write_text(json.dumps(results))
    monkeypatch.setattr(train, "final_status", lambda *_: "diverged")
    config = load(default.__file__, {"model.family": family})
    assert train.train(config, tmp_path) == 1
    assert ("--step=3" in capsys.readouterr().out) == replays
