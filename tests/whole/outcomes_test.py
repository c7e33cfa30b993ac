"""What becomes of a run: plateaued, diverged, spiking, replayed; and what it leaves behind."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.whole.command_line import OTHERS, call, files, records, results
from transformer_jax import main
from transformer_jax.training import loop, step

pytestmark = pytest.mark.long


def train(folder, workdir, changes):
    """The exit status and the results of a run with changes to the config of `folder`."""
    arguments = [f"--config.{name}={value}" for name, value in changes.items()]
    status = call(f"--config={folder}/run.json", f"--workdir={workdir}", *arguments)
    return status, results(workdir)


@pytest.mark.parametrize(
    ("status", "learning_rate", "code"), [("plateaued", 0.0, 0), ("diverged", 3.0, 1)]
)
def test_a_run_that_learns_nothing_is_scored_and_shown_again_as_what_it_is(
    folder, tmp_path, capsys, status, learning_rate, code
):
    changes = {"model.residual": "post_ln", "optimizer.learning_rate": learning_rate}
    exit_code, scores = train(folder, tmp_path, changes)
    assert (exit_code, scores["status"], scores["steps"]) == (code, status, 6)
    assert scores["first_bad_step"] is None and "test/bleu" in scores
    vocab_size = len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"])
    uniform_guess = np.log(vocab_size)
    assert scores["train/token_loss"] > scores["unigram_entropy"] - 0.1
    assert (scores["train/token_loss"] > uniform_guess + 1) == (status == "diverged")
    capsys.readouterr()
    before = files(tmp_path)
    assert call(f"--workdir={tmp_path}") == code
    output = capsys.readouterr().out
    assert status in output and "reference" in output and " replay " not in output
    assert files(tmp_path) == before
    if status == "plateaued":  # with more steps it continues
        exit_code, scores = train(folder, tmp_path, changes | {"train.steps": 8})
        assert (exit_code, scores["status"], scores["steps"]) == (code, status, 8)
        assert [record["step"] for record in records(tmp_path)] == [2, 4, 6, 8]


@pytest.mark.parametrize("every", [1, 0])
def test_a_run_that_overflows_ends_before_it_saves_and_replay_names_the_first_tensor(
    folder, tmp_path, capsys, every
):
    """Adam's first step moves every parameter by the learning rate: queries by keys are 1e50."""
    changes = {
        "model.residual": "post_ln",
        "optimizer.learning_rate": 1e25,
        "checkpoint.every": every,
    }
    status, scores = train(folder, tmp_path, changes)
    assert (status, scores["status"], scores["first_bad_step"]) == (1, "diverged", 2)
    assert not [name for name in scores if name.startswith("test/")]
    saved = [path.name for path in tmp_path.glob("checkpoints/*")]
    assert saved == (["1"] if every else [])
    output = capsys.readouterr().out
    (command,) = [line for line in output.splitlines() if "--step=" in line]
    script, mode, *arguments = shlex.split(command)
    assert Path(script).samefile(Path(main.__file__).parents[1] / "launch.sh")
    assert all(Path(path).is_absolute() for path in (script, arguments[0].partition("=")[2]))

    before = files(tmp_path)
    assert call(f"--mode={mode}", *arguments) == 0
    output = capsys.readouterr().out
    assert f"from step {1 if every else 0} to 2" in output and "Step 2 is bad" in output
    assert "encoder/layer 1/self_attention/largest attention logits" in output
    entry = json.loads((tmp_path / "replay.json").read_text())
    assert entry["step"] == 2 and entry["found"] in output and "largest attention" in entry["found"]
    (tmp_path / "replay.json").unlink()
    assert files(tmp_path) == before


def test_replay_says_where_everything_is_finite(folder, capsys):
    assert call(f"--workdir={folder}/run", "--mode=replay", "--step=4") == 0
    output = capsys.readouterr().out
    assert "from step 2 to 4" in output and "Everything is finite" in output


def test_spikes_are_among_the_results_with_their_batches(folder, tmp_path, monkeypatch):
    """Every loss counts as a spike once there is one before it."""
    monkeypatch.setattr(step, "FEWEST_RECENT", 1)
    monkeypatch.setattr(loop, "SPIKE_DEVIATIONS", -1e9)
    _, scores = train(folder, tmp_path, {})
    assert [spike["step"] for spike in scores["spikes"]] == [2, 3, 4, 5, 6]
    for spike in scores["spikes"]:
        assert spike.keys() == {"step", "loss", "median", "deviation"}
        assert {"inputs", "targets"} <= {*np.load(tmp_path / f"spikes/{spike['step']}.npz").files}


def test_the_profile_of_admin_and_diagnoses_are_among_the_files(folder, tmp_path):
    changes = OTHERS["language_model"] | {"model.residual": "admin", "train.diagnostics_every": 3}
    train(folder, tmp_path, changes)
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert [(stack, len(rows)) for stack, rows in profile.items()] == [("decoder", 2)]
    for rows in profile.values():
        # This holds only under the very dropout that the omegas were measured with.
        omegas = [1.0] + [(r["shortcut_variance"] + r["branch_variance"]) ** 0.5 for r in rows]
        np.testing.assert_allclose([row["omega"] for row in rows], omegas[:-1], rtol=1e-5)
    logged = records(tmp_path)
    assert [record["step"] for record in logged] == [2, 3, 4, 6]
    name = "diagnostics/decoder/branch_variance"
    assert [row["step"] for row in logged if name in row] == [3, 6]
    assert len(logged[-1][name]) == 2
    assert "train/loss" in logged[-1]
