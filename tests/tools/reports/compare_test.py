"""Runs side by side: from work directories in any state to a table and a figure."""

import itertools
import json

import numpy as np
import pytest

from tests.tools.reports.workdirs import make, records
from transformer_jax.process import tables
from transformer_jax.tools.reports import arms, compare, report
from transformer_jax.tools.reports import records as work


@pytest.fixture
def runs(tmp_path):
    """One that has finished, one that trains, one that has not logged yet."""
    new = {"residual": "admin", "num_heads": 2}
    return [
        make(tmp_path / "post_ln", model={"residual": "post_ln"}),
        make(tmp_path / "pre_ln", steps=4, planned=20, results={"status": "running"}),
        make(tmp_path / "new", model=new, steps=0, planned=20, results={}),
    ]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own: exit status, rows of the table by name, the rest."""

    def call(*arguments: object, command=compare):
        (tmp_path / "here").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "here")
        status = command.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        rows = {line[: line.find("  ")]: line.split() for line in out.splitlines() if "  " in line}
        return status, rows, out + err

    return call


def test_runs_stand_side_by_side_whatever_has_become_of_them(call, runs, tmp_path, undrawn):
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
    assert rows["wall seconds"][2:] == ["20.00", "4.0000", "-"]
    # What lacks a score shows the last that it logged.
    for name in ("train/token_loss", "validation/token_loss"):
        last = [records(run)[-1][name] for run in runs[:2]]
        assert rows[name][1:] == [*(f"{loss:.4f}" for loss in last), "-"]
    assert rows["test/bleu"][1:] == ["30.00", "-", "-"]
    assert "signature" not in text
    # It writes its figure, in the current folder, and nothing else.
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"compare.png", "compare.svg"}
    assert "compare.png" in text and "compare.svg" in text
    assert {path: path.read_bytes() for run in runs for path in run.iterdir()} == before


@pytest.mark.parametrize("room", [1, 12, 15, 25, 99])
def test_a_table_has_parts_that_are_as_wide_as_there_is_room_for(room):
    table = [["", "arm", "b", "long arm"], ["steps", "1", "2", "3"], []]
    parts = [*compare._parts(table, room)]
    for row, *pieces in zip(table, *parts, strict=True):
        assert all(part[:1] == row[:1] for part in pieces)
        assert sum((part[1:] for part in pieces), row[:1]) == row

    def fits(part):
        return max(map(len, tables.aligned(part))) <= room

    assert all(fits(part) or len(part[0]) == 2 for part in parts)
    for part, after in itertools.pairwise(parts):
        assert not fits([[*row, *more[1:2]] for row, more in zip(part, after, strict=True)])


def test_the_figure_has_a_line_for_each_arm_in_each_panel(runs):
    figure = compare._draw(arms.arms([work.read(run) for run in runs]))
    assert figure is not None
    for axes, name in zip(figure.axes, ("train", "validation"), strict=True):
        for line, run in zip(axes.lines, runs, strict=True):
            key = f"{name}/token_loss"
            logged = [[row["step"], row[key]] for row in records(run) if key in row]
            assert np.asarray(line.get_xydata()).tolist() == logged
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["post_ln", "pre_ln", "new"]


def test_runs_without_tokens_have_the_curves_of_their_losses(tmp_path):
    """As those of detection."""
    lines = [{"step": step, "train/loss": 9.0 / step} for step in (10, 20)]
    run = make(tmp_path / "boxes")
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figure = compare._draw(arms.arms([work.read(run)]))
    assert figure is not None
    (axes,) = figure.axes
    assert axes.get_ylabel() == "loss"
    assert np.asarray(axes.lines[0].get_xydata()).tolist() == [[10, 0.9], [20, 0.45]]


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["one/a", "one/b", "two/a"], ["one/a", "one/b", "two/a"]),
    ],
)
def test_names_are_the_shortest_that_tell_runs_apart(call, tmp_path, folders, names, undrawn):
    text = call(*[make(tmp_path / folder, steps=0) for folder in folders])[2]
    assert text.split()[: len(names)] == names


def test_the_runs_of_an_experiment_are_called_by_their_labels(call, tmp_path, undrawn):
    runs = [
        make(tmp_path / name, steps=0, labels={"scheme": scheme, "layers": 6})
        for name, scheme in (("0123456789ab", "admin"), ("ba9876543210", "pre_ln"))
    ]
    assert call(*runs)[2].split()[:2] == ["admin", "pre_ln"]
    other = make(tmp_path / "mine", steps=0, model={"residual": "rezero"})
    assert call(runs[0], other)[2].split()[:3] == ["scheme=admin", "layers=6", "mine"]


def test_seeds_of_an_arm_are_a_column(call, tmp_path, undrawn):
    """Pairs share the seed of the data, too; where none is set, it is the other."""
    runs = [
        make(tmp_path / f"{scheme}_{seed}", model={"residual": scheme}, seed=seed)
        for scheme, seeds in (("post_ln", range(3)), ("admin", range(2)))
        for seed in seeds
    ]
    other = {"data": {"seed": 7}}
    runs.append(make(tmp_path / "admin_2", model={"residual": "admin"}, seed=2, config=other))
    (runs[0] / "results.json").write_text('{"status": "diverged", "steps": 7}')
    status, rows, text = call(*runs)
    assert status == 0 and text.split()[:6] == "post_ln (3 seeds) admin (3 seeds)".split()
    assert rows["status"][1:] == "diverged (1), finished (2) finished".split()
    assert rows["test/bleu"][1:] == "2 of 3 have one 31.0 ± 2.5".split()
    assert rows[""][3:] == "+0 (1 pair, 3 runs left out)".split()
    assert "n = 3" in text


def test_forks_of_runs_that_differ_in_their_seeds_are_an_arm(tmp_path):
    """So are not those of another step, or of a run that differs in more."""
    runs = []
    for scheme, step in (("post_ln", 4), ("post_ln", 8), ("admin", 4)):
        for seed in range(2):
            name = f"{scheme}_{step}_{seed}"
            trunk = make(tmp_path / f"of_{name}", model={"residual": scheme}, seed=seed, steps=0)
            results = {"fork": {"run": str(trunk), "step": step}}
            fork = {"checkpoint": {"fork_from": f"{trunk}/checkpoints/{step}"}}
            runs.append(work.read(make(tmp_path / name, seed=seed, results=results, config=fork)))
    names = [[run.folder.name for run in arm.runs] for arm in arms.arms(runs)]
    assert names == [[run.folder.name for run in runs[at : at + 2]] for at in (0, 2, 4)]


def test_forks_of_forks_of_runs_that_differ_are_no_arm(tmp_path):
    """Though the runs that they branched off from are alike."""
    runs = []
    for seed, scheme in enumerate(("post_ln", "admin")):
        place = make(tmp_path / f"{scheme}_0", model={"residual": scheme}, steps=0)
        for name in ("1", "2"):
            results = {"fork": {"run": str(place), "step": 4}}
            config = {"checkpoint": {"fork_from": f"{place}/checkpoints/4"}}
            place = make(tmp_path / f"{scheme}_{name}", seed=seed, results=results, config=config)
            (place / "fork.json").write_text(json.dumps(results["fork"]))
        runs.append(work.read(place))
    assert [len(arm.runs) for arm in arms.arms(runs)] == [1, 1]


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


# What a run may hold that is JSON, but not of its kind; report alone reads replay and samples.
BROKEN = [
    ("results.json", '{"status": ["finished"]}'),
    ("run.json", '{"labels": []}'),
    ("run.json", '{"labels": {"a": 1}}'),
    ("run.json", '{"labels": "ab"}'),
    ("config.json", '{"train": {"steps": "7"}}'),
    ("config.json", '{"train": 7}'),
    ("config.json", '{"seed": [1]}'),
    ("metrics.jsonl", '{"step": 1, "x": [1]}\n{"step": 2, "x": 1}'),
    ("metrics.jsonl", '{"step": 1, "x": {}}'),
    ("metrics.jsonl", '{"step": 1, "x": "a"}'),
    ("metrics.jsonl", f'{{"step": 1, "x": 1{"0" * 400}}}'),
    ("metrics.jsonl", '{"step": 1, "diagnostics/x": [1]}\n{"step": 2, "diagnostics/x": [1, 2]}'),
    ("metrics.jsonl", '{"step": 1, "diagnostics/x": "a"}'),
    ("metrics.jsonl", '{"step": 1, "diagnostics/x": [[1]]}'),
]


@pytest.mark.parametrize(
    ("command", "file", "content"),
    [(command, *row) for command in (compare, report) for row in BROKEN]
    + [
        (report, "replay.json", '{"found": "x"}'),
        (report, "replay.json", '{"step": "7", "found": "x"}'),
        (report, "samples.jsonl", '{"step": 1, "samples": [7]}\n'),
    ],
)
def test_what_is_json_of_another_kind_is_named(call, tmp_path, command, file, content):
    whole, run = make(tmp_path / "whole"), make(tmp_path / "run")
    (run / file).write_text(content)
    status, _, text = call(whole, run, command=command)
    assert status == 1 and len(text.splitlines()) == 1 and len(text) < 500
    assert f"{run / file} is broken (" in text
    assert not [*(tmp_path / "here").iterdir()]
