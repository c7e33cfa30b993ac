"""Folders by step become the checkpoints of one run, which shows what the run itself showed."""

import shutil

import numpy as np
import pytest

from tests.tools.convert import llama
from tests.whole.command_line import CONFIG, call
from transformer_jax.config.load import load, to_json
from transformer_jax.configs import default
from transformer_jax.runs.workdir import saved_steps
from transformer_jax.tools.convert import tensors
from transformer_jax.tools.reports import records

STEPS = [*range(1, 9)]
GPT2 = {
    "model.architecture": "decoder_only",
    "model.residual": "gpt2",
    "model.positions": "learned",
    "model.embedding_scale": 1.0,
    "model.activation": "gelu_tanh",
    "task.label_smoothing": 0.0,  # as imported configs have it
    "data.train": ("train.en",),
    "data.validation": ("test.en",),
    "data.test": (),
    "train.steps": 8,
    "checkpoint.every": 1,
    "checkpoint.keep_last": 8,
}


@pytest.mark.long
def test_an_exported_training_shows_the_same_scores_by_step(tmp_path):
    for split, count in (("train", 64), ("test", 6)):
        lines = ("abcd"[n % 4] + " " + "efg"[n % 3] + "\n" for n in range(count))
        (tmp_path / f"{split}.en").write_text("".join(lines))
    run, back = f"--workdir={tmp_path}/run", f"--workdir={tmp_path}/back"
    data = {"data.dir": str(tmp_path), "data.cache_dir": str(tmp_path / "cache")}
    (tmp_path / "run.json").write_text(to_json(load(default.__file__, CONFIG | GPT2 | data)))
    assert call(f"--config={tmp_path}/run.json", run) == 0
    for step in STEPS:
        folder = tmp_path / "theirs" / f"stage1-step{step}-tokens{step}B"
        flags = f"--checkpoint={step}", f"--output={folder}"
        assert call("--mode=export", run, *flags) == 0
    changes = ("data.source=text", f"data.dir={tmp_path}", f"data.cache_dir={tmp_path}/cache")
    changes += ("data.validation=('test.en',)", "data.test=()", "data.row_target_length=8")
    changes += ("data.max_target_length=8",)
    theirs = f"--checkpoint={tmp_path}/theirs", "--revision_folders"
    assert call("--mode=import", back, *theirs, *(f"--config.{change}" for change in changes)) == 0
    assert saved_steps(tmp_path / "back") == STEPS
    curves = []
    for flag in (run, back):
        assert call("--mode=evaluate", flag, "--checkpoint=all") == 0
        by_name = records.read(tmp_path / flag.rpartition("/")[2]).curves
        curves.append({name: x.points() for name, x in by_name.items() if "checkpoints/" in name})
    assert curves[0].keys() == curves[1].keys() >= {"checkpoints/validation/loss"}
    for name, points in curves[0].items():
        assert [step for step, _ in points] == STEPS
        np.testing.assert_allclose(curves[1][name], points, rtol=1e-5, err_msg=name)
    assert len({value for _, value in curves[0]["checkpoints/validation/loss"]}) == len(STEPS)


def flags(folder, work):
    return "--mode=import", f"--checkpoint={folder}", f"--workdir={work}", "--revision_folders"


def test_an_import_that_was_killed_is_repeated_by_the_same_command(tmp_path, monkeypatch, capsys):
    home, work = tmp_path / "theirs", tmp_path / "ours"
    home.mkdir()
    steps = {f"step_{n}k": 1000 * n for n in range(4)} | {"800": 800, "x-checkpoint-9": 9}
    for name in steps:
        llama.checkpoint(home / name)
    (home / ".cache").mkdir()
    plain = tensors.read
    with monkeypatch.context() as patch:
        patch.setattr(tensors, "read", lambda *a: plain(*a) if not saved_steps(work) else 1 / 0)
        assert call(*flags(home, work)) == 1
    assert saved_steps(work) == [0]
    assert call(*flags(home, work)) == 0
    assert saved_steps(work) == sorted(steps.values())  # more than checkpoint.keep_last
    assert capsys.readouterr().out.count("puts nothing around a text") == 1
    assert call(*flags(home, work)) == 1
    assert "holds checkpoints already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("final", {}, "theirs/final: its name says no step, as step1000 does"),
        ("stage2-step1", {}, "stage2-step1 and .*/step1 are both of step 1: move one away"),
        ("step2", {"rope_theta": 7.0}, "step2 and .*/step1 are not of .*: model.rotary_base"),
        ("step2", {"words": 11}, "step2 and .*/step1 are not of one model: tokenizer.json differs"),
        ("step2", {"without": ("model.norm.weight",)}, "the tensor model.norm.weight differs"),
        ("step2", {"hidden_act": "gelu"}, "theirs/step2/config.json: hidden_act='gelu' has no"),
        ("step2", {"nan_in": "model.norm.weight"}, "theirs/step2/model.*: 'model.norm.weight' has"),
    ],
)
def test_what_is_no_training_of_one_model_is_refused(tmp_path, capsys, name, more, words):
    home = tmp_path / "theirs"
    home.mkdir()
    shutil.copytree(llama.checkpoint(tmp_path / "one"), home / "step1")
    llama.checkpoint(home / name, **more)
    assert call(*flags(home, tmp_path / "ours")) == 1
    with pytest.raises(ValueError, match=words):
        raise ValueError(capsys.readouterr().err)
    assert (tmp_path / "ours").exists() == ("nan_in" in more)  # where all headers are sound
