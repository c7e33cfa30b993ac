"""What the check of a parameterisation trains, says and returns."""

import importlib

import numpy as np
import pytest

from configs import default
from tests.whole.command_line import CONFIG
from transformer_jax import overrides
from transformer_jax.training.optimizer import peak_rate

# The package has the function of this name.
command = importlib.import_module("transformer_jax.commands.check_parameterization")

MUP = {"model.parameterization": "mup", "model.base_width": 64}
COMPLETEP = MUP | {"model.parameterization": "completep", "model.base_depth": 6}


def check(changes):
    config = overrides.load(default.__file__, changes)
    return config, command.check_parameterization(config, None)


@pytest.mark.parametrize(
    ("changes", "grows", "status", "words"),
    [
        ({}, "d_model", 1, "Not flat: x +0.50."),
        (MUP, "d_model", 1, "Not flat: x +0.50."),
        (MUP, "num_layers", 0, "Not flat: x +0.50. ('mup' does not follow depth.)"),
        (COMPLETEP, "num_layers", 1, "Not flat: x +0.50."),
        (COMPLETEP, "nothing", 0, "Flat within 0.05 from step 8 on."),
    ],
)
def test_what_grows_decides(monkeypatch, capsys, changes, grows, status, words):
    trained = []

    def train(config, workdir, changes, seed):
        larger = overrides.replace(config, changes)
        trained.append((larger, seed))
        scale = larger.model[grows] / config.model[grows] if grows != "nothing" else 1.0
        return {"x": np.full(11, scale**0.5)}

    monkeypatch.setattr(command, "_train", train)
    slow = {"optimizer.burn_in_steps": 20, "optimizer.layer_warm_ups": (("decoder/*", 1, 2, 9),)}
    config, found = check(changes | slow)
    assert found == status and words in capsys.readouterr().out.splitlines()
    peak = peak_rate("noam", 1.0, 4000, 512)
    assert {seed for _, seed in trained} == {0, 1, 2}
    for larger, _ in trained:
        model = larger.model
        assert model.head_dim == 64 and model.d_model == 64 * model.num_heads
        assert model.d_ff == 4 * model.d_model
        assert larger.optimizer.schedule == "constant"
        assert larger.optimizer.burn_in_steps == 0 and larger.optimizer.layer_warm_ups == ()
        assert larger.optimizer.learning_rate == pytest.approx(peak)
    sizes = {(larger.model.d_model, larger.model.num_layers) for larger, _ in trained}
    assert sizes == {(512 * n, 6) for n in (1, 2, 4, 8)} | {(512, 6 * n) for n in (1, 2, 4, 8)}


def test_a_family_that_shows_nothing_is_refused():
    config = overrides.load(default.__file__, {"model.family": "recurrent"})
    with pytest.raises(ValueError, match="model.family='recurrent' shows nothing"):
        command.check_parameterization(config, None)


@pytest.mark.long
def test_trainings_of_a_tiny_model_tell_their_sizes(monkeypatch, tmp_path, capsys):
    text = "".join(f"{'abcd'[n % 4]} {'efg'[n % 3]}\n" for n in range(60))
    for name in ("train.en", "train.de", "test.en", "test.de"):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(command, "_SCALES", (1, 2))
    monkeypatch.setattr(command, "_SEEDS", 1)
    folders = {"data.dir": str(tmp_path), "data.cache_dir": str(tmp_path / "cache")}
    _, status = check(CONFIG | folders)
    shown = capsys.readouterr().out
    assert status == 1 and "change of encoder output" in shown and "logits" in shown
