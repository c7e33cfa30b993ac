"""Mistakes on the command line end in one message, and leave what is there as it was."""

import fcntl
import re

import jax
import pytest

from tests.whole.command_line import files, message_of, results
from transformer_jax.checkpoint.checkpoints import Checkpoints
from transformer_jax.process import machine

NEW = "--config=@/run.json --workdir=@/new"
RUN = "--workdir=@/run"


@pytest.mark.parametrize(
    ("flags", "changes", "parts"),
    [
        (
            NEW,
            "optimizer.groups=(('nowhere/*',0.1,0.0),)",
            "optimizer.groups | 'nowhere/*' | --mode=inspect",
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


def test_other_data_is_refused_and_the_run_is_left_as_it_was(folder, tmp_path, capsys):
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
    def save(*_, **__):
        raise OSError(28, "no space left")

    monkeypatch.setattr(Checkpoints, "save", save)
    message = message_of(folder, capsys, f"--config=@/run.json --workdir={tmp_path}/run")
    assert "no space left" in message
    assert results(tmp_path / "run")["status"] == "failed"
