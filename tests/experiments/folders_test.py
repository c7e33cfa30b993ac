"""Every folder of experiments: its parts, its runs, one step of each program that they train."""

import dataclasses
import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.harness import results
from experiments.harness.plan import check, plan
from experiments.harness.sweep import ROOT, Run, part
from transformer_jax.config.load import FREE_TO_CHANGE, flatten

FOLDERS = {path.parent.name: path.parent for path in (ROOT / "experiments").glob("*/report.py")}
SECTIONS = ["Question", "Protocol", "Results", "Conclusion", "What it does not show"]
pytestmark = [
    pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS),
    pytest.mark.usefixtures("forget"),  # folders have rows of their own
]


@functools.cache
def _sweeps(folder: Path) -> dict[str, tuple[Run, ...]]:
    """All runs, of the full and of the quick version of each sweep."""
    sweeps = part(folder, "sweep").SWEEPS
    return {
        f"{name}{' --quick' * quick}": tuple(sweeps[name](quick))
        for name, quick in itertools.product(sweeps, (False, True))
    }


def test_it_has_all_parts(folder):
    assert part(folder, "__init__").__doc__, "__init__.py says the question in a sentence"
    assert callable(part(folder, "report").report)
    measured = any(each.measure is not None for runs in _sweeps(folder).values() for each in runs)
    assert (folder / "measure.py").exists() == measured


def test_its_readme_has_all_sections_and_a_place_for_each_report(folder):
    text = (folder / "README.md").read_text()
    assert re.findall("^## (.*)$", text, re.MULTILINE) == SECTIONS
    # Also where no line was: so that nobody takes a reading for a test.
    assert re.search(r"written\s+before", text, re.IGNORECASE), "was a line written before?"
    section = text[text.index("## Results") : text.index("## Conclusion")]
    for name in part(folder, "sweep").SWEEPS:
        results.check_markers(folder / "README.md", name)
        assert results.markers(name)[0] in section


def test_its_results_are_those_that_its_readme_shows(folder):
    """What its README links to is there; or it says that its runs are still to come."""
    text = (folder / "README.md").read_text()
    start, end = results.markers(next(iter(part(folder, "sweep").SWEEPS)))
    generated = text[text.index(start) + len(start) : text.index(end)]
    out = folder / "results"
    if generated.strip() == "Not run yet.":
        assert not out.exists()
        assert "\n## Conclusion\n\nNone yet.\n" in text
        return
    assert "JAX" in generated, "run `python -m experiments.run FOLDER`"
    assert results.read_json(out / "summary.json")
    assert list(out.glob("*.csv"))
    figures = re.findall(r"\]\(results/(.*)\.svg\)", text)
    assert figures
    for kind in ("svg", "png"):  # nor is anything left of a figure that is shown no more
        assert {path.stem for path in out.glob(f"*.{kind}")} == set(figures)
    assert all(path.stat().st_size < 500_000 for path in out.iterdir())


def test_its_runs_can_be_run(folder, tmp_path):
    """`plan` builds the configs, and lets no two contents share an id. Of a sweep's product those
    runs are planned that hold a pair of settings which none before has."""
    met: set[Any] = set()
    for name, runs in _sweeps(folder).items():
        subset = []
        for each in runs:
            if not subset or not _features(each) <= met:
                subset.append(each)
                met |= _features(each)
        jobs = plan(subset, folder, tmp_path)
        assert sum(len(job.runs) for job in jobs) == len(subset), name


def _features(each: Run) -> set[Any]:
    """What a sweep says of a run: settings, and pairs of those that change more than numbers."""
    changes = {"config": each.config, "train": each.train, **each.overrides, **(each.measure or {})}
    settings = [(key, str(value)) for key, value in sorted(changes.items())]
    paired = [pair for pair in settings if not f"{pair[0]}:".startswith(_NUMBERS)]
    return {*settings, *itertools.combinations(paired, 2)}


def test_its_quick_sweeps_are_smaller(folder):
    sweeps = _sweeps(folder)
    for name in part(folder, "sweep").SWEEPS:
        quick, whole = (
            {repr(dataclasses.replace(each, labels={})) for each in sweeps[key]}
            for key in (f"{name} --quick", name)
        )
        assert len(quick) <= len(whole) and quick != whole, name


@pytest.mark.long
def test_a_step_with_each_setting_can_be_traced(folder):
    """Without data and without compiling: shapes alone. Each setting of each kind of model once,
    in as few runs as hold them all: those with the most that are new come first."""
    runs = [each for each in itertools.chain(*_sweeps(folder).values()) if each.train]
    queue = {_settings(each): each for each in runs}
    while queue:
        most = max(queue, key=lambda settings: len(settings - _traced))
        each = queue.pop(most)
        if most <= _traced:
            break
        _traced.update(most)
        built = check(each, folder)
        step: Any = built.train_step()
        step.trace(built.abstract_state, built.abstract_batch())


_traced: set[tuple[str, ...]] = set()  # by the tests of all folders, which have many in common
# The settings that give a program other numbers and no other shape: layers are scanned.
_NUMBERS = (
    "seed",
    "data.train",
    "data.validation",
    "data.test",
    "train.steps",
    "train.log_every",
    "model.num_layers",
    "optimizer.learning_rate",
    "optimizer.beta",
    "optimizer.warmup_steps",
    "optimizer.epsilon",
    *(key for key in FREE_TO_CHANGE if key != "train.diagnostics_every"),
)


def _settings(each: Run) -> frozenset[tuple[str, ...]]:
    """What the program of a training step depends on."""
    flat = flatten(each.resolved)
    kind = str(flat["model.family"]), str(flat["model.architecture"])
    return frozenset(
        (*kind, key, str(value))
        for key, value in flat.items()
        if not f"{key}:".startswith(_NUMBERS)
    )
