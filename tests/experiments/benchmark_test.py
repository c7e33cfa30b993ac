"""The benchmark: its rule, the files that are entries, and what its table keeps."""

import math

import pytest
from scipy import stats

from experiments.benchmark import rule, sweep
from experiments.benchmark.rule import Result


def test_the_rule_is_a_one_sided_test_of_a_fixed_deviation():
    assert stats.norm.sf(rule.QUANTILE) == pytest.approx(0.001, rel=1e-2)
    for count in (4, 8, 16):
        least = rule.TARGET - rule.MARGIN / math.sqrt(count)
        assert Result(400, [least - 1e-6] * count).passes
        assert not Result(400, [least + 1e-6] * count).passes
    # Lucky seeds bring no deviation of their own, and one that diverged fails the rest.
    assert not Result(400, [rule.TARGET - 0.001] * 8).passes
    assert not Result(400, [1.0] * 7 + [math.inf]).passes


def test_steps_count_as_what_the_baseline_gains_by_them():
    entry, longer = Result(400, [1.91] * 8), Result(500, [1.91 - 100 * rule.SLOPE] * 8)
    assert rule.lead(entry, longer) == pytest.approx(0, abs=1e-9)
    assert entry.steps_to_target == pytest.approx(longer.steps_to_target)
    assert entry.steps_to_target == pytest.approx(400 + 0.01 / rule.SLOPE)
    # Nothing is said by a slope that was not measured there.
    assert Result(400, [1.7] * 8).steps_to_target is None
    assert Result(400, [math.inf] * 8).steps_to_target is None
    assert rule.lead(entry, longer) == -rule.lead(longer, entry)
    better = Result(400, [1.91 - 2 * rule.MARGIN * math.sqrt(2 / 8)] * 8)
    assert rule.verdict(better, entry) == "ahead" and rule.verdict(entry, better) == "behind"
    assert rule.verdict(entry, longer) == "alike"
    assert rule.verdict(Result(400, [math.inf] * 4), entry) == "behind"


ENTRY = 'TRACK = "optimisation"\nSTEPS = 390\nOVERRIDES = {"optimizer.name": "lion"}\n'
MODEL = 'TRACK = "architecture"\n'


def entered(folder, text, quick=False):
    """The track and the runs of a file with this text."""
    (folder / "mine.py").write_text(text)
    return sweep.entered(folder / "mine.py", quick)


def test_a_file_elsewhere_is_an_entry_with_fresh_seeds(tmp_path):
    track, runs = entered(tmp_path, ENTRY)
    assert track == "optimisation" and len(runs) == 8
    assert sorted(run.overrides["seed"] for run in runs) == list(sweep.SEEDS)
    assert all(run.resolved.optimizer.name == "lion" for run in runs)
    assert all(run.resolved.train.steps == 390 for run in runs)
    assert {run.resolved.optimizer.warmup_steps for run in runs} == {39}
    _, quick = entered(tmp_path, ENTRY, quick=True)
    assert len(quick) == 2 and quick[0].resolved.train.steps < 390


def test_an_entry_may_bring_its_own_row(tmp_path):
    row = "import optax\nfrom transformer_jax.training.update_rules import Optimizer\n"
    row += 'OPTIMIZERS = {"plain_descent": Optimizer(lambda s, r: optax.identity(), reads=())}\n'
    _, runs = entered(tmp_path, ENTRY.replace("lion", "plain_descent") + row)
    assert runs[0].resolved.optimizer.name == "plain_descent"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TRACK = 'speed'", "TRACK is 'speed': expected one of optimisation, architecture"),
        (ENTRY.replace("390", "0"), "STEPS is 0: expected 1 to 980"),
        (ENTRY.replace("390", "981"), "STEPS is 981: expected 1 to 980"),
        (ENTRY + "SEEDS = [101, 102, 103]", r"SEEDS are \[101, 102, 103\]: expected 4 or more"),
        (ENTRY + "SEEDS = [101, 101, 102, 103, 104]", "each once"),
        (ENTRY + "SEEDS = range(8)", "from 100 on, which no entry is tuned by"),
        (ENTRY + "SEEDS = 8", "mine.py: SEEDS are 8"),
        (ENTRY.replace("OVERRIDES", "OVERIDES"), "mine.py: OVERRIDES is None"),
        (ENTRY.replace("optimizer.name", "data.batch_size"), "sets data.batch_size, .* fixes"),
        (MODEL + "OVERRIDES = []", r"mine.py: OVERRIDES is \[\]: expected a dict"),
        (MODEL + "STEPS = 500", "STEPS is 500: expected 400"),
        (MODEL + 'OVERRIDES = {"model.d_ff": 1024}', r"1\.\d+ times the baseline's: at most 1.05"),
        (MODEL + 'OVERRIDES = {"model.dtype": "bfloat16"}', "model.dtype"),
        ("TRACK = 1 / 0", "mine.py, line 1: .*ZeroDivisionError"),
    ],
)
def test_a_file_that_is_no_entry_is_refused_before_anything_runs(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        entered(tmp_path, text)


def test_a_name_is_that_of_one_entry(tmp_path):
    """Those of the repository may be judged again, another one of their name may not."""
    for file in sweep.ENTRIES.glob("*.py"):
        sweep.entered(file, quick=True)
    (file := tmp_path / f"{sweep.BASELINE}.py").write_text(ENTRY)
    with pytest.raises(
        ValueError, match="another entry 'adamw', of 400 steps with nothing changed"
    ):
        sweep.entered(file, quick=False)


def test_entries_of_the_repository_are_of_the_tracks_they_name():
    names = {run.labels["entry"] for track in sweep.SWEEPS.values() for run in track(False)}
    assert names == {path.stem for path in sweep.ENTRIES.glob("*.py")} and sweep.BASELINE in names
