"""The command line end to end: train, evaluate and generate; and mistakes, which change nothing."""

import fcntl
import json
import re
import shutil

import jax
import numpy as np
import pytest

from tests.whole.command_line import call, files, message_of, piped, records, results
from transformer_jax.config.load import difference, load
from transformer_jax.inspection import memory
from transformer_jax.process import machine

NEW = "--config=@/run.json --workdir=@/new"
RUN = "--workdir=@/run"


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
    workdir = shutil.copytree(folder / "run", tmp_path / "run")
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


def test_other_scores_than_the_last_checkpoints_own_are_shown_but_not_stored(
    folder, tmp_path, capsys
):
    workdir = shutil.copytree(folder / "run", tmp_path / "run")
    evaluate, before = (f"--workdir={workdir}", "--mode=evaluate"), files(workdir)
    assert call(*evaluate, "--config.evaluate.bleu_tokenizer=none") == 0
    assert call(*evaluate, "--checkpoint=4") == 0
    assert files(workdir) == before
    shutil.rmtree(workdir / "checkpoints" / "6")
    assert call(*evaluate) == 0
    shown = capsys.readouterr().out
    assert shown.count("exact_match") == 3 and "scores of step 4, not of 6" in shown
    assert results(workdir) == results(folder / "run")


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


# Mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "changes", "parts"),
    [
        (
            NEW,
            "optimizer.groups=(('nowhere/*',0.1,0.0),)",
            "optimizer.groups | 'nowhere/*' | `inspect`",
        ),
        (f"{NEW} --mode=generate --input=@/t", "", "/new"),
        (f"{NEW} --mode=replay --step=1", "", "/new | train there first"),
        (RUN, "seed=4", "seed: 3 -> 4"),
        (f"{RUN} --mode=evaluate --checkpoint=5", "", "5 | 2, 4, 6"),
        (f"{RUN} --mode=replay --step=7", "", "--step=N | 1 to 6 | 7"),
    ],
)
def test_a_mistake_ends_in_one_message_and_touches_nothing(folder, capsys, flags, changes, parts):
    """changes: of the config. parts: what the message has in it."""
    (folder / "t").write_text("a\n")
    before = files(folder / "run")
    arguments = [flags, *(f"--config.{change}" for change in changes.split())]
    message = message_of(folder, capsys, " ".join(arguments))
    assert all(part in message for part in parts.split(" | ")), message
    assert len(message) < 1000
    assert files(folder / "run") == before


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (f"{NEW} --config.model.d_ff=2000000000", "training .* model.d_ff=2000000000"),
        (f"{RUN} --mode=generate --input=@/t --config.decode.extra_length=1000000000", "decoding"),
    ],
)
def test_what_cannot_fit_into_memory_is_refused_before_it_is_made(
    folder, capsys, monkeypatch, arguments, part
):
    (folder / "t").write_text("a\n")
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(2**30, 2**30))
    assert re.search(f"{part}", message_of(folder, capsys, arguments))


def test_a_device_that_is_not_here_is_told_by_what_asks_for_it(folder, capsys, monkeypatch):
    def devices(*_):
        raise RuntimeError("Unable to initialize backend 'rocm': no such thing")

    monkeypatch.setenv("JAX_PLATFORMS", "gpu")
    monkeypatch.setattr(jax, "devices", devices)
    message = message_of(folder, capsys, NEW)
    assert "JAX finds no device of JAX_PLATFORMS='gpu' here; set it to cpu" in message


def test_other_data_is_refused_and_the_run_is_left_as_it_was(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(memory, "compiled_step", lambda run: None)  # no step is made
    for path in (*folder.glob("*.en"), *folder.glob("*.de")):
        (tmp_path / path.name).write_text(path.read_text().replace("a e", "e a"))
    before = (folder / "run" / "results.json").read_text()
    changes = f"--config.data.dir={tmp_path} --config.train.steps=8"
    assert "other data" in message_of(folder, capsys, f"{RUN} {changes}")
    assert (folder / "run" / "results.json").read_text() == before


def test_a_work_directory_in_use_is_refused(folder, tmp_path, capsys):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        message = message_of(folder, capsys, f"--config=@/run.json --workdir={tmp_path}")
    assert f"{tmp_path} is in use" in message
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_failure_in_training_is_reported_and_noted(folder, tmp_path, capsys, monkeypatch):
    def step(*_):
        raise OSError(28, "no space left")

    monkeypatch.setattr(memory, "compiled_step", lambda run: step)
    message = message_of(folder, capsys, f"--config=@/run.json --workdir={tmp_path}/run")
    assert "no space left" in message
    assert results(tmp_path / "run")["status"] == "failed"
