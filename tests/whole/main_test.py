"""The command line end to end: train, evaluate and generate."""

import json
import shutil

import numpy as np
import pytest

from tests.whole.command_line import call, files, piped, records, results
from transformer_jax.config.load import difference, load


def test_training_leaves_results_and_files(folder):
    found, logged = results(folder / "run"), records(folder / "run")
    assert found["status"] == "finished" and found["steps"] == 6
    assert found["first_bad_step"] is None and found["spikes"] == []
    assert found["train/token_loss"] == logged[-1]["train/token_loss"]
    assert found["train/token_loss"] < found["unigram_entropy"] - 0.1
    assert {"test/bleu", "test/chrf", "test/exact_match", "test/loss"} <= found.keys()
    assert np.isfinite(found["validation/loss"])
    assert [record["step"] for record in logged] == [2, 4, 6]
    progress = (folder / "run" / "checkpoints" / "6" / "progress.json").read_text()
    assert json.loads(progress)["records"] == 3
    saved = load(str(folder / "run" / "config.json"))
    assert difference(saved, load(str(folder / "run.json"))) == []


def test_a_finished_run_shows_its_results_again(folder, tmp_path, capsys):
    """Without its checkpoints, so without anything to score again."""
    for name in ("config.json", "results.json", "samples.txt"):
        shutil.copy(folder / "run" / name, tmp_path)
    before = files(tmp_path)
    assert call(f"--workdir={tmp_path}") == 0
    shown = capsys.readouterr().out
    assert "finished" in shown and "bleu" in shown and "reference" in shown
    assert str(tmp_path) in shown
    assert files(tmp_path) == before  # so the folder need not be one that can be written


def test_what_a_run_left_that_was_killed_after_its_last_save_goes(folder, tmp_path):
    """A deletion that had begun, and checkpoints that were still to be deleted."""
    workdir = tmp_path / "run"
    shutil.copytree(folder / "run", workdir)
    (workdir / "results.json").write_text(json.dumps({"status": "running"}))
    (workdir / "checkpoints" / "2.tmp").mkdir()
    shutil.copytree(workdir / "checkpoints" / "4", workdir / "checkpoints" / "5.tmp" / "4")
    flags = ("--config.checkpoint.keep_last=1", "--config.checkpoint.average_last=1")
    assert call(f"--workdir={workdir}", *flags) == 0
    assert results(workdir)["status"] == "finished"
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == ["6"]


def test_evaluate_finds_what_training_found(folder, capsys):
    before = results(folder / "run")
    untested = {name: value for name, value in before.items() if not name.startswith("test/")}
    stale = {"test/of_a_metric_that_is_not_asked_for": 1.0}
    (folder / "run" / "results.json").write_text(json.dumps(untested | stale))
    assert call(f"--workdir={folder}/run", "--mode=evaluate") == 0
    assert "bleu" in capsys.readouterr().out
    after = results(folder / "run")
    assert after.keys() == before.keys()
    for name in ("test/loss", "test/bleu", "test/exact_match"):
        assert after[name] == pytest.approx(before[name], rel=1e-6)


def test_scores_of_other_settings_are_shown_but_not_stored(folder, capsys):
    before = results(folder / "run")
    evaluate = (f"--workdir={folder}/run", "--mode=evaluate")
    assert call(*evaluate, "--config.decode.beam_size=1") == 0
    assert call(*evaluate, "--checkpoint=4") == 0
    assert capsys.readouterr().out.count("exact_match") == 2
    assert results(folder / "run") == before


def test_scores_of_an_older_checkpoint_do_not_replace_those_of_the_last(folder, tmp_path, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(folder / "run", workdir)
    before = results(workdir)
    *_, older, newest = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())
    shutil.rmtree(workdir / "checkpoints" / str(newest))
    assert call(f"--workdir={workdir}", "--mode=evaluate") == 0
    assert f"scores of step {older}, not of {newest}" in capsys.readouterr().out
    assert results(workdir) == before


def test_generate_keeps_lines_in_order_without_the_data(folder, monkeypatch, caplog):
    (folder / "in.txt").write_text("a e\n\nb f c\r\nd")
    free = f"--config.data.dir={folder}/nowhere"
    arguments = [f"--workdir={folder}/run", "--mode=generate", free]
    call(*arguments, f"--input={folder}/in.txt", f"--output={folder}/out.txt")
    together = (folder / "out.txt").read_bytes().decode()
    lines = together.split("\n")
    assert len(lines) == 5 and lines[1] == lines[4] == ""

    assert "".join(piped(monkeypatch, "d", *arguments)) == f"{lines[3]}\n"
    assert "unknown" not in caplog.text
    piped(monkeypatch, "a cat\ndog\n", *arguments)
    assert caplog.text.count("unknown to this run's tokenizer") == 1
    assert "2 of 3 words, such as 'cat'" in caplog.text
