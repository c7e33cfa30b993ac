"""Induction and horizons: what is measured of made-up losses, a small trunk, and the verdicts."""

import math

import jax
import numpy as np
import pytest

from experiments.harness.sweep import ROOT
from experiments.harness.trainings import Trainings
from experiments.horizons import measure as horizons
from experiments.induction import measure as induction
from experiments.induction import report, sweep
from tests.experiments import tiny
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.devices.mesh import place
from transformer_jax.inspection.losses import of_tokens

STEPS, RATE = 20, 0.02


def test_progress_is_0_for_who_knows_the_words_and_1_for_who_is_certain():
    words = np.array([[3, 1, 2] * 4, [5, 6, 7, 8] * 3])
    periods = induction.periods(words)
    assert list(periods) == [3, 4]
    assert induction.periods(np.arange(10)[None]) == [10]  # it never repeats itself
    knows = np.repeat(np.log(periods)[:, None], 12, axis=1)
    knows[:, :4] = 9.0  # what is drawn does not count, nor the first repeat
    assert induction.progress(knows, words) == pytest.approx(0)
    assert induction.progress(0 * knows, words) == 1
    half = knows.copy()
    half[0] /= 2  # of 8 and of 7 places that count
    assert induction.progress(half, words) == pytest.approx(0.5 * 8 / 15)


@pytest.mark.long
@pytest.mark.parametrize("layers", [1, 2])
def test_repeats_take_two_layers(layers, tmp_path):
    """One finds which words a row has, two which of them comes next (Olsson et al. 2022)."""
    arm = next(run for run in sweep.SWEEPS["depth"](False) if run.labels["arm"] == layers)
    small = {"model.d_model": 32, "model.d_ff": 64, "model.num_heads": 2}
    changes = {"train.steps": 400, "data.cache_dir": str(tmp_path)}
    run = build(load(str(ROOT / arm.config), {**arm.overrides, **small, **changes}))
    *_, last = Trainings(run).steps(8e-3, seed=0)
    batch = place(run.mesh, run.data.split("validation").batches[0][0])
    losses = of_tokens(run.outputs(last.state.params, batch, None, ())[0], batch, run.loss)
    progress = induction.progress(np.asarray(losses), np.asarray(batch["targets"]))
    assert progress > 0.8 if layers == 2 else progress < 0


def training(arm, seed, at, rate=2e-3):
    solved = dict(at_25=at and at - 20, at_50=at, at_75=at and at + 20, prefix_at=at)
    row = dict(arm=arm, seed=seed, learning_rate=rate, progress=0.95 if at else 0.0)
    return row | solved | (dict(without=0.05, control=0.9) if at else {})


def test_verdicts_follow_the_lines_of_the_protocol():
    two = [training(2, seed, 200 + 10 * seed) for seed in range(5)]
    one = [training(1, seed, None) for seed in range(5)]
    text, _ = report._depth({1: one, 2: two}, one + two)
    assert text.count("**held**") == 3
    text, _ = report._depth({1: [*one[:4], training(1, 4, 300)], 2: two}, [])
    assert "*It takes two layers*: **contradicted**" in text
    late = [row | {"prefix_at": 2 * row["at_50"], "without": 0.9} for row in two]
    text, _ = report._depth({1: one, 2: late}, [])
    assert "drop*: **contradicted**" in text and "carry it*: **contradicted**" in text
    apart = {arm: [training(arm, s, at + s) for s in range(3)] for arm, at in
             (("a", 100), ("b", 200), ("c", 400))}  # fmt: skip
    assert "**held**" in report._schemes(apart, [])[0]
    alike = {arm: [training(arm, s, 200 + 40 * s) for s in range(3)] for arm in "abc"}
    assert "**contradicted**" in report._schemes(alike, [])[0]
    draws = [training("normal", seed, None, rate) for rate in (1e-3, 2e-3) for seed in range(3)]
    best = {"xavier": apart["a"], "normal": draws[:3]}
    assert "**held**" in report._draws(best, draws)[0]
    solved = [*draws[:3], *(training("normal", seed, 300, 2e-3) for seed in range(3))]
    assert "**contradicted**" in report._draws(best, solved)[0]


def test_the_best_rate_is_that_which_solves_most_and_then_soonest():
    slow = [training("a", seed, 400, 1e-3) for seed in range(3)]
    fast = [training("a", seed, 100, 4e-3) for seed in range(2)] + [training("a", 2, None, 4e-3)]
    assert report._best(slow + fast) == slow
    assert report._best(slow + [training("a", s, 300, 2e-3) for s in range(3)])[0]["at_50"] == 300


def test_an_average_of_equal_weights_is_itself_and_factors_count_from_the_newest():
    trees = [{"w": np.full(3, value)} for value in (1.0, 2.0, 4.0)]
    np.testing.assert_allclose(horizons._weighted([trees[1]] * 3, [1.0, 0.5, 0.25])["w"], 2)
    np.testing.assert_allclose(horizons._weighted(trees, [1.0] * 2)["w"], 1.5)
    np.testing.assert_allclose(horizons._weighted(trees, [2.0, 1.0])["w"], 4 / 3)


def test_shapes_begin_at_1_and_end_at_their_floor():
    halves = {"line": 0.5, "1-sqrt": 1 - math.sqrt(0.5), "cosine": 0.5, "exponential": 0.1}
    for name, shape in horizons.SHAPES.items():
        assert shape(0.0) == 1
        assert shape(0.5) == pytest.approx(halves[name])
        assert shape(1.0) == pytest.approx(0.01 if name == "exponential" else 0, abs=1e-12)


@pytest.mark.long
def test_a_trunk_and_a_branch_end_as_trainings_of_these_rates_do(tmp_path, monkeypatch):
    changes = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
    config = tiny.config(tmp_path, STEPS, changes | {"optimizer.name": "adamw"})
    monkeypatch.setattr(horizons, "_WINDOWS", (1,))
    monkeypatch.setattr(horizons, "_EVERY", 5)
    arguments = {"rate": RATE, "seed": 0, "horizons": [STEPS], "warm_up": 4}
    with tiny.shared(horizons, config) as trainings:
        rows = horizons.measure(config, tmp_path, part="trunk", **arguments)
    losses = {row["arm"]: row["loss"] for row in rows}

    def loss(rate):
        *_, last = trainings.steps(rate, 0)
        return trainings.validation_loss(jax.tree.map(np.array, last.state.params))

    def warm(step):
        return RATE * min(1.0, step / 4)

    def line(step):
        return warm(step) * (1 if step <= 16 else (20 - step) / 4)

    assert losses["trunk"] == loss(warm)
    assert losses["trunk, mean of 1 %"] == pytest.approx(losses["trunk"], rel=1e-6)
    assert losses["line, 20 %"] == pytest.approx(loss(line), rel=1e-6)
    assert len({losses[f"{shape}, 20 %"] for shape in horizons.SHAPES}) == 4
