"""Runs side by side: from work directories in any state to a table and a figure."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_jax.tools.reports import compare, figures, records

FINISHED = {
    "status": "finished",
    "steps": 20,
    "parameters": 1234567,
    "time/wall_seconds": 75.5,
    "train/token_loss": 1.5,
    "validation/token_loss": 2.5,
    "test/bleu": 31.4159,
    "test/bleu_signature": "nrefs:1",
}


def make_run(
    folder: Path, config: dict[str, Any], results: dict[str, Any] | None = None, logged: int = 0
) -> Path:
    """A work directory with its config, where given its results, and losses at steps 1, 2, ..."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if results is not None:
        (folder / "results.json").write_text(json.dumps(results))
    records = [
        {
            "step": step,
            "train/token_loss": 5 / step,
            "validation/token_loss": 6 / step,
            "time/wall_seconds": 10.0 * step,
        }
        for step in range(1, logged + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    return folder


def config(**model: Any) -> dict[str, Any]:
    return {"model": model, "train": {"steps": 20}}


@pytest.fixture
def runs(tmp_path):
    """One that has finished, one that trains, one that has not logged yet."""
    return [
        make_run(tmp_path / "post_ln", config(residual="post_ln"), FINISHED, logged=20),
        make_run(tmp_path / "pre_ln", config(residual="pre_ln"), {"status": "running"}, logged=4),
        make_run(tmp_path / "new", config(residual="admin", num_heads=2)),
    ]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own: exit status, rows of the table by name, the rest."""

    def call(*arguments: object):
        (tmp_path / "here").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "here")
        status = compare.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        rows = {line[: line.find("  ")]: line.split() for line in out.splitlines() if "  " in line}
        return status, rows, out + err

    return call


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves empty files in place of figures, which take a second each."""

    def save(figure, stem):
        for kind in ("png", "svg"):
            Path(f"{stem}.{kind}").touch()

    monkeypatch.setattr(figures, "save", save)


def test_runs_stand_side_by_side_whatever_has_become_of_them(call, runs, tmp_path):
    before = {path: path.read_bytes() for run in runs for path in run.iterdir()}
    status, rows, text = call(*runs)
    assert status == 0 and text.split()[:3] == ["post_ln", "pre_ln", "new"]
    assert rows["model.residual"][1:] == ["post_ln", "pre_ln", "admin"]
    # A key that a config does not hold has its default's value.
    assert rows["model.num_heads"][1:] == ["8", "8", "2"]
    assert "train.steps" not in rows and "seed" not in rows
    assert rows["status"][1:] == ["finished", "running", "-"]
    assert rows["steps"][1:] == "20 of 20 4 of 20 0 of 20".split()
    assert rows["parameters"][1:] == ["1,234,567", "-", "-"]
    assert rows["wall seconds"][2:] == ["200.00", "40.00", "-"]
    # What has ended shows its scores, what still trains the last that it logged.
    assert rows["train/token_loss"][1:] == ["1.5000", "1.2500", "-"]
    assert rows["validation/token_loss"][1:] == ["2.5000", "1.5000", "-"]
    assert rows["test/bleu"][1:] == ["31.42", "-", "-"]
    assert "signature" not in text
    # It writes its figure, in the current folder, and nothing else.
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"compare.png", "compare.svg"}
    assert "compare.png" in text and "compare.svg" in text
    assert {path: path.read_bytes() for run in runs for path in run.iterdir()} == before


def test_the_figure_has_a_line_for_each_run_in_each_panel(runs):
    read = [records.read(run) for run in runs]
    figure = compare._draw(read, ["one", "two", "three"])
    assert figure is not None
    training, validation = figure.axes
    for axes, first in ((training, 5.0), (validation, 6.0)):
        lines = [np.asarray(line.get_xydata()).tolist() for line in axes.lines]
        assert [len(points) for points in lines] == [20, 4, 0]
        assert lines[1] == [[step, first / step] for step in range(1, 5)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two", "three"]


def test_a_loss_that_is_not_finite_leaves_a_gap(tmp_path, call, undrawn):
    run = make_run(tmp_path / "run", config(), {"status": "diverged", "test/loss": None}, logged=1)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "train/token_loss": null}\n{"step": 3, "tra')  # torn by a kill
    status, rows, _ = call(run)
    assert status == 0 and rows["status"][1:] == ["diverged"]
    assert rows["test/loss"][1:] == rows["train/token_loss"][1:] == ["not", "finite"]


def test_one_run_alone_and_runs_of_one_config_are_shown(call, runs, undrawn):
    status, rows, text = call(runs[0], runs[0])
    assert status == 0 and "model.residual" not in rows and "same config" not in text
    (runs[1] / "config.json").write_text((runs[0] / "config.json").read_text())
    assert "the same config" in call(*runs[:2])[2]


def test_without_anything_logged_there_is_a_table_and_no_figure(call, runs, tmp_path):
    status, rows, text = call(runs[2])
    assert status == 0 and rows["status"][1:] == ["-"]
    assert "nothing has been logged yet" in text
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["one/run", "two/run"], ["one/run", "two/run"]),
        (["one/a", "one/b", "two/a"], ["one/a", "one/b", "two/a"]),
        (["a"], ["a"]),
    ],
)
def test_names_are_the_shortest_that_tell_runs_apart(call, tmp_path, folders, names, undrawn):
    text = call(*[make_run(tmp_path / folder, config()) for folder in folders])[2]
    assert text.split()[: len(names)] == names


def test_the_runs_of_an_experiment_are_called_by_their_labels(call, tmp_path, undrawn):
    runs = [make_run(tmp_path / name, config()) for name in ("0123456789ab", "ba9876543210")]
    for run, scheme in zip(runs, ("admin", "pre_ln"), strict=True):
        labels = {"scheme": scheme, "layers": 6}
        (run / "run.json").write_text(json.dumps({"labels": [labels]}))
    assert call(*runs)[2].split()[:2] == ["admin", "pre_ln"]
    assert call(runs[0])[2].split()[0] == "0123456789ab"


def test_the_output_names_the_figure_or_its_folder(call, runs, tmp_path, undrawn):
    (tmp_path / "figures").mkdir()
    for output, written in (
        (tmp_path / "figures", "compare"),
        (tmp_path / "figures" / "lr_0.1", "lr_0.1"),
        (tmp_path / "figures" / "mine.png", "mine"),
    ):
        assert call(runs[0], f"--output={output}")[0] == 0
        for kind in ("png", "svg"):
            (tmp_path / "figures" / f"{written}.{kind}").unlink()
    assert not list((tmp_path / "figures").iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["@/nothing"], "nothing is not a run: there is no such folder"),
        (["@/here"], "is not a run: it has no config.json"),
        (["@"], "is not a run: but it holds some; give these, as @/broken"),
        (["@/new/checkpoints/20"], "is not a run: it is a part of one"),
        (["@/new", "--output=@/nowhere/x"], "--output=@/nowhere/x: there is no folder @/nowhere"),
        (["@/broken"], "@/broken/config.json is broken"),
        (["@/list"], "@/list/config.json is broken: it holds a list"),
    ],
)
def test_what_is_not_a_run_is_one_line(call, runs, tmp_path, arguments, message):
    make_run(tmp_path / "new" / "checkpoints" / "20", config())
    for name, text in (("broken", '{"model":'), ("list", "[1]")):
        (make_run(tmp_path / name, config()) / "config.json").write_text(text)
    status, rows, text = call(*[argument.replace("@", str(tmp_path)) for argument in arguments])
    assert status == 1 and not rows
    assert message.replace("@", str(tmp_path)) in text and "Traceback" not in text


def test_a_folder_that_is_not_a_run_stops_no_other(call, runs, tmp_path, undrawn):
    status, rows, text = call(runs[0], tmp_path / "here")
    assert status == 0 and rows["status"][1:] == ["finished"]
    assert "here is not a run" in text


def test_names_are_what_differs():
    rows = [{"scheme": scheme, "layers": 6} for scheme in ("admin", "post_ln")]
    assert records.differing(rows) == ["scheme"]
    assert records.short_names(rows) == ["admin", "post_ln"]
    rows.append({"scheme": "admin", "layers": 18})
    assert records.short_names(rows)[1:] == ["scheme=post_ln layers=6", "scheme=admin layers=18"]
    assert records.differing([{"a": 1}, {}]) == ["a"]
    assert records.short_names([{"a": 1}]) == [""]
