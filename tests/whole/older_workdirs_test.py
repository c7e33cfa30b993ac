"""Work directories of commit 91d694e: this version evaluates, generates, embeds and resumes them.

Each folder in `workdirs` holds what that version made of it in expected.json: the scores of both
splits, results of lines by flags, and the records of five more steps. Of a checkpoint's files the
note that Orbax writes at its end was shortened, since it names a folder.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.whole.command_line import call

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compiled_once")]

FOLDER = Path(__file__).parent / "workdirs"
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.name != "data")


@pytest.fixture
def workdir(request, tmp_path, monkeypatch):
    """A copy, with its data where its config has it: in the current folder."""
    for name in (request.param, "data"):
        shutil.copytree(FOLDER / name, tmp_path / name)
    monkeypatch.setenv("HOME", str(tmp_path))  # of data.cache_dir
    monkeypatch.chdir(tmp_path)
    return Path(request.param)


def expected(workdir):
    return json.loads((workdir / "expected.json").read_text("utf-8"))


def compare(values, others):
    """Equal, but for rounding of numbers."""
    assert values.keys() >= others.keys()
    for name, other in others.items():
        close = pytest.approx(other, rel=1e-5) if isinstance(other, float) else other
        assert values[name] == close, name


each = pytest.mark.parametrize("workdir", NAMES, indirect=True)


@each
def test_it_is_scored_as_before(workdir):
    path = workdir / "results.json"
    results = json.loads(path.read_text())
    bare = {key: value for key, value in results.items() if not key.startswith(("test", "valid"))}
    path.write_text(json.dumps(bare))
    for split in ("validation", "test"):
        assert call(f"--workdir={workdir}", "--mode=evaluate", f"--split={split}") == 0
    compare(json.loads(path.read_text()), expected(workdir)["scores"])


@each
def test_it_writes_and_embeds_as_before(workdir):
    known, source = expected(workdir), Path("lines")
    source.write_text("".join(f"{line}\n" for line in known["lines"]), "utf-8")
    files = (f"--workdir={workdir}", f"--input={source}", "--output=results")
    for flags, results in known["generate"].items():
        assert call(*files, "--mode=generate", *flags.split()) == 0
        assert Path("results").read_text("utf-8").splitlines() == results
    if "embed" in known:
        assert call(*files, "--mode=embed") == 0
        np.testing.assert_allclose(np.loadtxt("results"), known["embed"], rtol=1e-4, atol=1e-5)


@each
def test_it_resumes_as_before(workdir):
    steps = json.loads((workdir / "config.json").read_text())["train"]["steps"]
    more = (f"--config.train.steps={steps + 5}", "--config.train.log_every=1")
    assert call(f"--workdir={workdir}", "--mode=train", *more) == 0
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    after = [record for record in records if record["step"] > steps]
    for record, known in zip(after, expected(workdir)["resumed"], strict=True):
        compare(record, known)
