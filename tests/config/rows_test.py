"""Rows of one's own: a file adds to the tables, is named by its content, fails in a line."""

import hashlib
from pathlib import Path

import pytest

from experiments import run
from experiments.harness import new
from tests.own_rows import ROWS
from transformer_jax.config import load as overrides
from transformer_jax.config import rows
from transformer_jax.config.effects import check
from transformer_jax.config.load import to_json
from transformer_jax.configs import default
from transformer_jax.models.transformer.schemes import SCHEMES, ResidualScheme

pytestmark = pytest.mark.usefixtures("forget")
MADE = "from transformer_jax.models.transformer.schemes import *\nSCHEMES = {%r: %s}\n"


def _load(*texts: str, file: object = default.__file__):
    return overrides.load(str(file), [*texts])


def _rows_file(folder: Path, name: str = "a", row: str = "ResidualScheme()") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rows.py").write_text(MADE % (name, row))
    return folder / "rows.py"


def test_a_files_rows_are_choices_and_have_an_effect(tmp_path, monkeypatch):
    (tmp_path / "rows.py").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    texts = "model.residual=mine", "data.source=counting", 'train.probes=(("stream_rms",2),)'
    with pytest.raises(ValueError, match="is not one of"):
        _load(*texts)
    config = _load("rows=rows.py", *texts)
    named = hashlib.sha256(ROWS.encode()).hexdigest()[:12]
    assert config.rows == f"{tmp_path}/rows.py@{named}"
    assert rows.source(config.rows) == ROWS
    check(config, ["rows=rows.py", *texts])
    read = "model.depth_exponent=0.7"
    with pytest.raises(ValueError, match="depth_exponent=0.7 has no effect with model.residual='m"):
        check(_load("rows=rows.py", "model.residual=mine", read), [read])
    check(_load("rows=rows.py", "model.residual=reads", read), [read])


def test_a_saved_config_finds_its_rows_wherever_they_lie(tmp_path, monkeypatch, forget):
    """It is the content that counts, of which a work directory's own copy runs only if named."""
    monkeypatch.chdir(tmp_path)
    file, run = _rows_file(tmp_path / "old"), tmp_path / "run"
    run.mkdir()
    config = _load("rows=old/rows.py", "model.residual=a")
    (run / "config.json").write_text(to_json(config))
    monkeypatch.chdir("/")
    for _ in range(2):  # of the second file nothing has to be read
        assert _load(file=run / "config.json") == config
    forget()
    assert _load(file=run / "config.json") == config
    for change in (lambda: file.write_text("SCHEMES = {}"), file.unlink):
        forget()
        change()
        with pytest.raises(ValueError, match="work directory keeps, as rows.py.* --config.rows"):
            _load(file=run / "config.json")
    copy = _rows_file(tmp_path / "new")
    (run / "rows.py").write_bytes(copy.read_bytes())
    named = to_json(config).replace(f"{file}@", f"{run}/rows.py@")
    (run / "config.json").write_text(named)
    with pytest.raises(ValueError, match="there is no file"):
        _load(file=run / "config.json")
    moved = _load(f"rows={copy}", file=run / "config.json")
    overrides.check_workdir(config, moved)
    assert moved.rows != config.rows and overrides.identity(moved)["rows"] in moved.rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x / 0\n", "rows.py, line 2: ZeroDivisionError"),
        ("SCHEMES = {", "rows.py: '{' was never closed"),
        ("SCHEME = {}", "rows.py has no rows: a dict called OPTIMIZERS, "),
        ("SCHEMES = [1]", r"rows.py: SCHEMES is no dict of rows: \[1\]"),
        ("PROBES = {'a': 1}", r"rows.py: PROBES\['a'\] is no function: 1"),
        (MADE % ("pre_ln", "ResidualScheme()"), r"SCHEMES\['pre_ln'\] is a row of this library"),
        # Rows that would fail later
        (
            MADE % ("a", "ResidualScheme(skip=2.0)"),
            "rows.py, line 2: skip=2.0 is no formula: expected a func",
        ),
        (
            "SOURCES = {'m': {('text',): print}}",
            "'m'.* by <built-in function print>: expected Files or Gen",
        ),
    ],
)
def test_a_mistake_in_the_file_adds_nothing(tmp_path, text, message):
    before = {table: dict(rows.TABLES[table]) for table in rows.TABLES}
    (tmp_path / "rows.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        _load(f"rows={tmp_path}/rows.py")
    assert rows.TABLES == before


def test_a_name_means_one_thing_in_a_process(tmp_path):
    one = _load(f"rows={_rows_file(tmp_path / 'one')}", "model.residual=a")
    again = _load(f"rows={_rows_file(tmp_path / 'copy')}", "model.residual=a")
    assert overrides.identity(again) == overrides.identity(one)
    more = _rows_file(tmp_path / "more")
    more.write_text(more.read_text() + "SCHEMES['b'] = ResidualScheme(pre_norm=True)")
    both = _load(f"rows={more}", "model.residual=b")
    assert SCHEMES["a"] == ResidualScheme() and SCHEMES["b"].pre_norm
    with pytest.raises(ValueError, match="belongs to another config.*\n  rows: '@"):
        overrides.check_workdir(one, overrides.replace(both, {"model.residual": "a"}))
    with pytest.raises(ValueError, match=r"SCHEMES\['a'\] is not that of .*more/rows.py@"):
        _load(f"rows={_rows_file(tmp_path / 'other', row='ResidualScheme(post_norm=True)')}")


def test_an_experiments_runs_have_its_rows(tmp_path, capsys, forget):
    ids = set()
    for folder in (tmp_path / "first", tmp_path / "moved"):
        _rows_file(folder, "a", "ResidualScheme(pre_norm=True, final_norm=True)")
        new.make(tmp_path / "new" / folder.name, "new")
        text = (tmp_path / "new" / folder.name / "sweep.py").read_text()
        (folder / "sweep.py").write_text(text.replace('"post_ln"', '"a"'))
        forget()
        capsys.readouterr()
        assert run.main([str(folder), "--dry_run", f"--runs_dir={tmp_path}/runs"]) == 0
        ids.add(capsys.readouterr().out.partition("\n")[2])
    assert len(ids) == 1 and "scheme=a" in ids.pop()
