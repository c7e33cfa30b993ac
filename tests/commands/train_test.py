"""What training says before it begins, and of its steps when they are done."""

import importlib
import json

import pytest

from configs import default
from transformer_jax.config.load import load
from transformer_jax.runs.workdir import METRICS

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
    found = {"status": "diverged", "steps": 3, "first_bad_step": 3}
    (tmp_path / "results.json").write_text(json.dumps(found))
    monkeypatch.setattr(train, "final_status", lambda *_: "diverged")
    config = load(default.__file__, {"model.family": family})
    assert train.train(config, tmp_path) == 1
    assert ("--step=3" in capsys.readouterr().out) == replays


def test_steps_that_were_all_logged_get_spike_scores(tmp_path):
    losses: list[float | None] = [3.0 + 0.01 * (step % 3) for step in range(300)]
    losses[150:153] = 9.0, None, 9.0  # null stands for what is not finite
    records = [
        {"step": step, "train/loss": loss, "train/gradient_norm": 1.0 + 0.1 * (step % 2)}
        for step, loss in enumerate(losses, 1)
    ]

    def scores(records):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / METRICS).write_text(lines)
        return train._spike_scores(tmp_path)

    assert scores(records) == {
        "spike_score": {"loss": pytest.approx(100 * 3 / 200), "gradient_norm": 0}
    }
    assert scores([*records, {"step": 300, "validation/loss": 3.0}]) == scores(records)
    assert scores(records[1::2]) == {}
    assert scores(records[:100]) == {}
