"""Spikes, ratios and their leads, of made-up series and of a tiny training."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from experiments.harness import results
from experiments.loss_spikes import measure, report, series, sweep
from tests.defaults import optimizer_settings
from tests.experiments import tiny
from tests.experiments.harness.runs import finished
from tests.training.stack import ROLES, make_stack
from transformer_jax.training.update_rules import OPTIMIZERS

STEPS, RATE, ODD = 6, 0.01, 4
MOMENTS = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}


# What is measured --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compiled_once):
    """The trainings, and rows of two seeds, with a state's number in place of its curvature."""
    # Nearly all of it is of few characters.
    letters = ["xyz"[i % 3] if i % 1_500 == 700 else chr(97 + i * i % 7) for i in range(20_000)]
    changes = {
        "data.max_target_length": 32,
        "data.batch_size": 48,
        "optimizer.schedule": "constant",
    }
    folder, arguments = tmp_path_factory.mktemp("text"), {"injected": ODD, "curvature": [3]}
    config = tiny.config(folder, STEPS, changes, "".join(letters))

    def read(state, batch):
        return {"preconditioned_sharpness": state.step}

    with tiny.shared(measure, config) as trainings, pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "make_sharpness", lambda run: read)
        rows = measure.measure(config, folder, seeds=2, learning_rate=RATE, **arguments)
    return trainings, rows


@pytest.mark.long
def test_a_row_for_each_seed_and_step(trained):
    _, rows = trained
    assert [(row["seed"], row["step"]) for row in rows] == [
        (seed, step) for seed in (0, 1) for step in range(1, STEPS + 1)
    ]
    read = [(row["seed"], row["step"], row["curvature"]) for row in rows if "curvature" in row]
    assert read == [(0, 3, pytest.approx(RATE * 2))]  # of the state that step 3 begins with


@pytest.mark.long
def test_training_is_the_ordinary_one_until_the_odd_batch(trained):
    trainings, rows = trained
    plain = [float(update.metrics["loss"]) for update in trainings.steps(RATE, 0) if update.step]
    losses = [row["loss"] for row in rows if row["seed"] == 0]
    np.testing.assert_allclose(losses[: ODD - 1], plain[: ODD - 1], rtol=1e-5)
    assert abs(losses[ODD - 1] - plain[ODD - 1]) > 0.01


@pytest.mark.long
def test_after_one_step_second_moments_are_the_gradients_squares(trained):
    for row in trained[1]:
        if row["step"] == 1:
            np.testing.assert_allclose(row["ratio"], 1, rtol=1e-4)


def test_the_odd_batch_holds_rare_tokens_alone():
    rng = np.random.default_rng(0)
    common = rng.integers(10, 13, (5, 40, 50))
    common[:, 0, :1] = 20  # one of 2,000
    batches = [{"targets": each, "more": np.ones(1)} for each in common]
    stream = list(measure.with_rare_batch(batches, 4, seed=1))
    assert [a is b for a, b in zip(stream, batches, strict=True)] == [True] * 3 + [False, True]
    assert (stream[3]["targets"] == 20).all() and stream[3]["targets"].shape == (40, 50)
    assert stream[3]["more"] is batches[3]["more"]
    with pytest.raises(ValueError, match="before step injected=1 every token"):
        next(measure.with_rare_batch(batches, 1, seed=1))


def _gradients():
    """Of which the last one is larger in one layer, and of a token that had none."""
    *before, last = make_stack(steps=10)[1]
    for tree in before:
        tree["embedding"]["table"] = tree["embedding"]["table"].at[2].set(0.0)
    last["encoder"]["feed_forward"]["up"] = last["encoder"]["feed_forward"]["up"].at[1].multiply(20)
    return [*before, last]


def test_ratios_are_what_stable_adamw_divides_by():
    gradients, divided = _gradients(), {}
    for name in ("stable_adamw", "adam"):
        transform = OPTIMIZERS[name].scale(optimizer_settings(**MOMENTS), lambda: ROLES)
        state: Any = transform.init(gradients[0])
        update = jax.jit(transform.update)
        for gradient in gradients:
            before = state
            updates, state = update(gradient, state)
        divided[name] = measure.named(updates)
    moments = before.mu, state.mu, state.nu  # Adam's
    ratios = measure.ratios(*moments, len(gradients), ROLES, **MOMENTS)
    assert ratios["encoder/feed_forward/up"].argmax() == 1
    for name, ratio in ratios.items():
        whole, clipped = (divided[each][name] for each in ("adam", "stable_adamw"))
        factors = np.maximum(ratio, 1).reshape(-1, *[1] * (whole.ndim - 1))
        np.testing.assert_allclose(whole, clipped * factors, rtol=1e-3, atol=1e-6)


# Series ------------------------------------------------------------------------------------------

START, INJECTED, ALL = 250, 1_000, 2_000


def _series(losses):
    return series.Series(losses, np.ones(losses.size), START, INJECTED)


def _noise(deviation=0.03, size=ALL):
    return 2 + deviation * np.random.default_rng(0).normal(size=size)


def test_neither_descent_nor_odd_batch_is_a_spike():
    losses = _noise()
    losses[: START - 1] += 3
    losses[INJECTED - 1] = 9
    scores = series.scores(_series(losses))
    assert scores["jumps_before"] == scores["jumps_after"] == 0
    assert scores["above_before"] < 1 and scores["above_after"] < 1


@pytest.mark.parametrize("at, piece", [(600, "before"), (INJECTED, "after"), (1_700, "after")])
def test_a_jump_counts_in_its_own_piece(at, piece):
    losses = _noise()
    calm = series.scores(_series(losses))
    losses[at] += 1
    scores = series.scores(_series(losses))
    judged = {"before": INJECTED - 1 - START, "after": ALL - INJECTED}
    for name in judged:
        more = 100 / judged[name] if name == piece else 0.0
        assert scores[f"above_{name}"] - calm[f"above_{name}"] == pytest.approx(more)
        assert (scores[f"jumps_{name}"] > 0) == (name == piece)
    assert scores["below_before"] == calm["below_before"]


def test_all_that_a_divergence_cuts_off_counts():
    losses = _noise(deviation=0.01)
    losses[1_500:] = np.nan
    scores = series.scores(_series(losses))
    assert scores["above_before"] == 0
    assert scores["above_after"] == pytest.approx(50) == scores["jumps_after"]
    losses[600:] = np.nan
    scores = series.scores(_series(losses))
    assert scores["above_before"] == pytest.approx(100 * 399 / 749)
    assert scores["above_after"] is scores["jumps_after"] is scores["below_after"] is None
    assert series.harm(_series(losses)) is series.recovery(_series(losses)) is None


def test_a_spike_is_more_than_one_batch():
    over = np.zeros(300)
    over[20] = 5.0
    over[50:53] = 0.2
    over[[58, 60, 62]] = 0.2  # of the one before
    over[[100, 102, 104]] = 0.2
    over[200:260] = 0.3
    np.testing.assert_array_equal(series.spikes(over), [50, 100, 200])
    over[290:] = np.nan
    np.testing.assert_array_equal(series.spikes(over), [50, 100, 200, 290])
    over[270:] = np.where(np.arange(30) == 29, np.nan, 0.0)  # diverged in the last step
    assert series.spikes(over)[-1] == 299


def _spiky(places, size=800):
    losses = _noise(size=size, deviation=0.01)
    for at in places:
        losses[at : at + 5] += 0.5
    return losses


@pytest.mark.parametrize("before, led", [(1, 5), (8, 5), (0, 0), (9, 0), (-3, 0)])
def test_a_lead_is_of_1_to_8_steps(before, led):
    places = np.array([100, 230, 390, 500, 640])
    ratios = np.ones(800)
    ratios[places - before] = 3.0
    lead = series.lead(_spiky(places), ratios)
    assert (lead.spikes, lead.led) == (5, led)
    # 40 of 800 steps have one in the 8 steps before them.
    assert lead.expected == pytest.approx(5 * 40 / 800)


def test_chance_is_that_of_shifted_ratios():
    """Of series that have nothing to do with each other, the lead is within its deviations."""
    z = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        places = np.sort(rng.choice(50, 12, replace=False)) * 15 + 10
        ratios = np.where(rng.random(800) < 0.03, 3.0, 1.0)
        lead = series.lead(_spiky(places), ratios)
        assert lead.spikes == 12
        z.append((lead.led - lead.expected) / math.sqrt(lead.variance))
    assert abs(np.mean(z)) < 0.5 and 0.6 < np.std(z) < 1.5


@pytest.mark.parametrize("lasts", [30, 100])
def test_harm_is_over_the_level_before_and_recovery_when_the_running_median_is_back(lasts):
    losses = _noise(deviation=0.001)
    losses[INJECTED : INJECTED + lasts] += 0.4
    losses[INJECTED - 1] = 9
    assert series.harm(_series(losses)) == pytest.approx(0.4, abs=0.005)
    recovery = series.recovery(_series(losses))
    # At most half of the steps of the median are still above.
    assert recovery is not None and lasts - series.MEDIAN // 2 <= recovery <= lasts


# Reports -----------------------------------------------------------------------------------------


def _measured(run, seed, until):
    """Made-up rows of a training that diverges after so many steps."""
    steps, odd = run.resolved.train.steps, run.measure["injected"]
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(1, min(steps, until) + 1):
        loss = 2 + 5 * math.exp(-step / 10) + 0.02 * rng.normal()
        loss += 0.5 * (odd < step < odd + 20) + 6 * (step == odd)
        ratio = 5.0 if step == odd else 1.2
        row = {"seed": seed, "step": step, "loss": loss, "ratio": ratio, "tensor": "table"}
        if seed == 0 and step in run.measure["curvature"]:
            row["curvature"] = 50.0 if step > odd else 20.0
        rows.append(row)
    if until < steps:
        rows.append({"seed": seed, "step": until + 1, "loss": None})
    return rows


# Of each condition, the steps after which its seeds diverge, if they do before the last, 400.
ENDS = [
    [[150, 999], [999, 999], [120, 10]],
    [[1, 1], [1, 1], [1, 1]],
    [[999], [999], [300]],
]


@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_a_report_of_trainings_of_which_some_diverge(ends, tmp_path, undrawn):
    runs = sweep.spikes(quick=True)
    finished_runs = []
    for run, stops in zip(runs, ends, strict=True):
        rows = [row for seed, until in enumerate(stops) for row in _measured(run, seed, until)]
        finished_runs.append(finished(run, rows))
    text = report.report(finished_runs, tmp_path)
    for stops in ends:
        assert f"{sum(until > 400 for until in stops)} of {len(stops)}" in text
    assert "nan" not in text and "None" not in text
    assert "has not measured which one is best" in text
    assert ("diverged" in text.split("### Differences")[1].split("###")[0]) == (
        any(until < 200 + series.HARM for stops in ends for until in stops)
    )
    scores = (tmp_path / "scores.csv").read_text().splitlines()
    assert len(scores) == 1 + sum(map(len, ends))
    assert results.read_json(tmp_path / "summary.json")


def _curved(run, end):
    (training,) = report.trainings_of(finished(run, _measured(run, 0, end)))
    return report.curvature_row(training)


def test_when_curvature_ratio_and_loss_pass_their_limits():
    run: Any = sweep.spikes(quick=True)[0]
    odd, read = run.measure["injected"], run.measure["curvature"]
    row = _curved(run, 999)
    assert row["before"] == row["largest_before"] == 20
    assert row["ratio_at"] == odd and row["spike_at"] == odd + 1
    assert row["curvature_at"] == min(step for step in read if step > odd)
    assert _curved(run, odd + 5)["curvature_at"] is None
    assert _curved(run, odd - 5) == {"before": None}
