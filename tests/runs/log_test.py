"""A log is the same whether a run was stopped or not, and whole whatever happened."""

import math
import struct
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from tests.whole.command_line import records, timeless
from transformer_jax.runs import log as run_log
from transformer_jax.runs.log import RunLog, Texts
from transformer_jax.runs.workdir import read_metrics, read_results, read_samples

TOTAL = 10


def open_log(workdir: Path, restored_step: int = 0) -> RunLog:
    return RunLog(workdir, restored_step=restored_step, total_steps=TOTAL)


def train(workdir: Path, start: int, end: int) -> None:
    """Logs like a run that was restored at `start` and killed, or done, after `end`."""
    log = open_log(workdir, start)
    for step in range(start + 1, end + 1):
        log.write(step, {"train/loss": 1 / step})
        if step % 3 == 0:
            log.write(step, {"validation/loss": 2 / step})
    log.close()


def shown_by_tensorboard(folder: Path) -> list[tuple[int, str, float]]:
    """TensorBoard's rule: the start of a session hides earlier events of its step or later."""
    Event, SessionLog = (getattr(event_pb2, name) for name in ("Event", "SessionLog"))
    points: list[tuple[int, str, float]] = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:  # TFRecord: length (8 bytes), checksum (4), event, checksum (4)
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.session_log.status == SessionLog.START:
                points = [entry for entry in points if entry[0] < event.step]
            points += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return points


@pytest.mark.parametrize("restored", [0, 3, 5, 6, TOTAL])
def test_resumed_equals_unbroken(tmp_path, restored):
    train(tmp_path / "unbroken", 0, TOTAL)
    killed_at = min(restored + 2, TOTAL)
    train(tmp_path / "resumed", 0, killed_at)
    train(tmp_path / "resumed", restored, TOTAL)

    unbroken = records(tmp_path / "unbroken")
    assert records(tmp_path / "resumed") == unbroken
    assert [record["step"] for record in unbroken if "train/loss" in record] == [*range(1, 11)]

    events = shown_by_tensorboard(tmp_path / "unbroken" / "tensorboard")
    assert shown_by_tensorboard(tmp_path / "resumed" / "tensorboard") == events
    assert [(step, tag) for step, tag, _ in events] == [
        (record["step"], name) for record in unbroken for name in record if name != "step"
    ]


def test_every_line_is_there_at_once_and_counted(tmp_path):
    """A checkpoint holds how many there are, so that lost ones are noticed."""
    train(tmp_path, 0, 7)  # with two of validation
    log = open_log(tmp_path, restored_step=5)
    assert log.records == 6 == len(list(read_metrics(tmp_path)))
    log.write(6, {"train/loss": 0.5})
    assert log.records == 7
    assert records(tmp_path)[-1] == {"step": 6, "train/loss": 0.5}
    log.close()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('{"loss": 1}\n{"step": 5}\n', 1),
        ('{"step": "5"}\n{"step": 5}\n', 1),
        ('{"step": 5, "time/wall_seconds": "1"}\n{"step": 5}\n', 1),
        ('[5]\n{"step": 5}\n', 1),
        ('{"step": 5}\n{"step": 4}\n{"step": 5}\n', 2),  # in another order
        (f'{{"step": 1{"0" * 400}}}\n{{"step": 5}}\n', 1),
        (f'\n{{"step": 1, "time/wall_seconds": 1{"0" * 400}}}\n{{"step": 5}}\n', 2),
        ('{"step": 5}\npickled', 2),  # which is no beginning of a record
    ],
)
def test_a_bad_line_that_no_kill_tore_is_named(tmp_path, text, number):
    (tmp_path / "metrics.jsonl").write_text(text)
    for read in (read_metrics, lambda folder: [open_log(folder, restored_step=2)]):
        with pytest.raises(ValueError, match=rf"metrics\.jsonl:{number} "):
            list(read(tmp_path))
    assert (tmp_path / "metrics.jsonl").read_text() == text


@pytest.mark.parametrize("end", ["\n", "\n \n\r\n", '{"step": 3, "tra\n\n'])
def test_blank_lines_are_no_records(tmp_path, end):
    """An editor leaves some, also behind a line that a kill has torn."""
    train(tmp_path, 0, 2)
    path = tmp_path / "metrics.jsonl"
    text = path.read_text()
    path.write_text(f"\n{text}{end}")
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]
    open_log(tmp_path, restored_step=2).close()
    assert path.read_text() == text


def test_numbers_are_valid_json(tmp_path):
    log = open_log(tmp_path)
    log.write(1, {"a": np.float32(0.5), "b": math.nan, "c": np.int64(3), "d": -math.inf})
    log.write(2, {"e": np.array([0.5, math.nan]), "f": jnp.arange(3), "g": np.array([1.0, 2.5])})
    log.results({"scores": [np.float32(math.inf), jnp.int32(1)], "name": "Grün"})
    log.close()

    assert records(tmp_path) == [  # None is null: Python would read what is not JSON as numbers
        {"step": 1, "a": 0.5, "b": None, "c": 3, "d": None},
        {"step": 2, "e": [0.5, None], "f": [0, 1, 2], "g": [1, 2.5]},
    ]
    # Where all of a vector is finite, TensorBoard shows its mean.
    events = shown_by_tensorboard(tmp_path / "tensorboard")
    assert events == [(1, "a", 0.5), (1, "c", 3), (2, "f", 1), (2, "g", 1.75)]
    assert timeless(read_results(tmp_path)) == {"scores": [None, 1], "name": "Grün"}


def test_batches_are_kept_to_look_at_and_not_too_many(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "spikes").mkdir()
    (tmp_path / "spikes" / "1.npz").symlink_to(tmp_path / "victim")
    for attempt in range(2):  # the second one repeats what the first one lost
        log = open_log(tmp_path)
        for step in range(5 * attempt + 1, 31):
            log.keep_batch(step, {"targets": jnp.full((2, 3), step), "positions": np.arange(step)})
        log.close()
    batches = {int(path.stem): np.load(path) for path in (tmp_path / "spikes").iterdir()}
    assert sorted(batches) == list(range(1, 21))
    for step, batch in batches.items():
        np.testing.assert_array_equal(batch["targets"], np.full((2, 3), step))
        np.testing.assert_array_equal(batch["positions"], np.arange(step))
    assert (tmp_path / "victim").read_text() == "mine"  # though a link led there


def test_texts_of_steps_that_come_again_are_there_once(tmp_path):
    log = open_log(tmp_path)
    for step in (3, 6, 9, 6):  # restored from step 3 or 4
        texts = Texts(["ü\u2028", "b"], [[f"x {step}"], ["y", "z"]])
        log.write(step, {"samples/lines": texts, "validation/loss": 1.0})
    log.close()
    assert read_samples(tmp_path) == [
        {"step": step, "samples": [["ü\u2028", [f"x {step}"]], ["b", ["y", "z"]]]}
        for step in (3, 6)
    ]
    assert records(tmp_path) == [{"step": step, "validation/loss": 1.0} for step in (3, 6, 9, 6)]
    (tmp_path / "samples.jsonl").write_text('{"step": 3}\n')
    with pytest.raises(ValueError, match="samples.jsonl is broken"):
        read_samples(tmp_path)


def test_results_are_merged(tmp_path):
    assert read_results(tmp_path) == {}
    log = open_log(tmp_path)
    log.results({"status": "running", "steps": 3})
    scores = {"validation/loss": 2.5, "test/bleu": 31.5}
    log.results({"status": "finished", **scores})
    log.close()
    known = {"status": "finished", "steps": 3}
    assert timeless(read_results(tmp_path)) == known | scores

    # All steps are done: what is known stays.
    log = open_log(tmp_path, restored_step=TOTAL)
    log.results({"train/token_loss": 2.0})
    known |= {"train/token_loss": 2.0}
    assert timeless(read_results(tmp_path)) == known | scores

    # New scores replace those of their split, which may be of another way to decode.
    log.results({"test/chrf": 50.0})
    known |= {"validation/loss": 2.5, "test/chrf": 50.0}
    assert timeless(read_results(tmp_path)) == known
    log.close()

    # With steps to go, old scores are not those of this run.
    log = open_log(tmp_path, restored_step=TOTAL - 1)
    log.results({"status": "running"})
    log.close()
    assert timeless(read_results(tmp_path)) == {"status": "running"}


def test_wall_time_adds_up_over_restarts(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])
    log = open_log(tmp_path)
    now[0] += 5
    log.write(1, {})
    now[0] += 7
    log.write(2, {})
    log.close()
    now[0] = 30.0  # another process, another zero
    log = open_log(tmp_path, restored_step=1)  # the 7 s of step 2 were spent all the same
    now[0] += 2
    log.write(2, {})
    now[0] += 1
    log.results({"status": "finished"})
    log.close()
    assert [record["time/wall_seconds"] for record in read_metrics(tmp_path)] == [5, 14]
    assert read_results(tmp_path)["time/wall_seconds"] == 15
