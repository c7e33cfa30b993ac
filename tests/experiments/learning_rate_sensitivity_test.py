"""Sensitivities and predictions of made-up trainings, and what is measured of tiny ones."""

import functools
import itertools
import json
import math

import jax
import numpy as np
import pytest

from experiments.harness import lab
from experiments.learning_rate_sensitivity import measure, prediction, report, sizes, sweep
from tests.experiments import tiny
from tests.experiments.harness.runs import INITIAL, finished, trainings
from transformer_jax.inspection import observed

MODELS = [(3, 32), (6, 64), (6, 128)]


def _trainings(model, seed, losses, **columns):
    """A row for each learning rate of {rate: loss}."""
    layers, width = model
    base = {"layers": layers, "width": width, "qk_norm": False, "seed": seed}
    return trainings([losses], **base | columns)


def _power_law(model, rate):
    return 3 * rate * prediction.kernels(*model) ** 0.5


def _ladder(fails_above, seeds=2, **labels):
    """Logits of a power law, by which trainings fail."""
    rows = []
    for model, seed in itertools.product(MODELS, range(seeds)):
        logits = {rate: _power_law(model, rate) for rate in sweep.RATES}
        losses = {rate: 2.0 if logits[rate] < fails_above else None for rate in sweep.RATES}
        mine = _trainings(model, seed, losses, **labels)
        rows += [row | {"warm_up/largest_logit": logits[row["learning_rate"]]} for row in mine]
    return rows


# Prediction --------------------------------------------------------------------------------------


def test_size_counts_the_matrices_of_a_block():
    attention, feed_forward = 4 * 32 * 32, 2 * 32 * 128
    assert prediction.kernels(3, 32) == 3 * (attention + feed_forward)


def test_the_threshold_lies_between_what_trains_and_what_fails_at_the_smallest_model():
    rows = _ladder(100.0, seeds=1)
    smallest = [_power_law(MODELS[0], rate) for rate in sweep.RATES]
    below = max(logit for logit in smallest if logit < 100)
    above = min(logit for logit in smallest if logit > 100)
    assert below < prediction.threshold(rows) < above
    # The first two models train everywhere: it is that of the third.
    rows = _ladder(_power_law(MODELS[2], 0.2), seeds=1)
    assert _power_law(MODELS[2], 0.1) < prediction.threshold(rows) < _power_law(MODELS[2], 0.3)
    assert prediction.threshold(_ladder(math.inf)) == math.inf


def test_what_diverged_inside_warm_up_is_predicted_to_fail():
    rows = _ladder(math.inf, seeds=1)
    rows[-1] |= {"loss": None, "warm_up/largest_logit": None}
    logits = prediction.largest_logits(rows, *sweep.BLIND)
    last = rows[-1]["learning_rate"]
    assert [rate for rate, logit in logits.items() if logit is None] == [last]
    assert prediction.first_above(logits, prediction.threshold(rows)) == last


# Sensitivity -------------------------------------------------------------------------------------


def test_sensitivity_is_the_mean_of_what_is_lost_up_to_the_initial_loss():
    rows = _trainings(MODELS[0], 0, {0.01: 2.0, 0.1: 3.0, 1.0: 9.0, 10.0: None})
    (cell,) = sizes.sensitivities(rows)
    expected = np.mean([0, 1, INITIAL - 2, INITIAL - 2])
    assert cell["S"] == [pytest.approx(expected)]
    assert cell["share"] == [pytest.approx(expected / (INITIAL - 2))]
    assert (cell["first"], cell["below"], cell["at"]) == ([1.0], [2], 0.01)


def test_a_seed_that_never_trains_has_no_sensitivity():
    rows = _trainings(MODELS[0], 0, {0.01: 2.0, 0.1: None})
    rows += _trainings(MODELS[0], 1, {0.01: None, 0.1: None})
    rows += _trainings(MODELS[0], 2, {0.01: 3.29, 0.1: None})
    (cell,) = sizes.sensitivities(rows)
    assert cell["S"][1:] == [None, None] and cell["S"][0] is not None
    assert cell["below"] == [1, 0, 0] and cell["finished"] == "2 of 6"
    assert "at" not in cell


@pytest.mark.parametrize("moment", ["warm_up", "end"])
def test_slopes_part_norms_and_alignment(moment):
    rows = _trainings(MODELS[0], 0, dict.fromkeys([0.01, 0.03, 0.1], 2.0))
    for row in rows:
        rate = row["learning_rate"]
        row |= {f"{moment}/query_norm": 2 * rate**0.5, f"{moment}/key_norm": 5 * rate**0.25}
        row |= {f"{moment}/alignment": 0.1 * rate**-0.125}
    assert sizes.slopes(rows, moment) == pytest.approx((0.75, -0.125))
    rows[0][f"{moment}/alignment"] = None
    assert sizes.slopes(rows, moment) == pytest.approx((0.75, -0.125))
    rows[1][f"{moment}/query_norm"] = 0.0
    assert sizes.slopes(rows, moment) is None


# Reports -----------------------------------------------------------------------------------------


def _numbers(out):
    return json.loads((out / "summary.json").read_text())


def _both_arms(seeds):
    return [*_ladder(100.0, seeds=seeds), *_ladder(math.inf, seeds=seeds, qk_norm=True)]


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_ladder_names_the_rates_that_blind_trains(tmp_path, monkeypatch, seeds, undrawn):
    text = report.report([finished({"part": "sizes"}, _both_arms(seeds))], tmp_path)
    numbers = _numbers(tmp_path)
    by_law = [rate for rate in sweep.RATES if _power_law(sweep.BLIND, rate) > 100]
    assert numbers["prediction/first_failing"] == by_law[0]
    before = sweep.RATES[sweep.RATES.index(by_law[0]) - 1]
    assert numbers["prediction/rates"] == [before, by_law[0]]
    assert f"predicted to be: {by_law[0]:g}" in text
    monkeypatch.setattr(sweep, "SUMMARY", tmp_path / "summary.json")
    (run,) = sweep.blind(False)
    assert run.measure is not None and run.measure["learning_rates"] == [before, by_law[0]]
    assert (run.labels["layers"], run.labels["width"]) == sweep.BLIND
    # All that diverge without QK-norm cost S; with it all rates are alike.
    assert numbers["S_difference/6L/d128"] > 0 and numbers["S/6L/d128/with"] == 0
    assert numbers["first_failing_difference/6L/d128"] < 0
    assert numbers["first_failing/3L/d32/with"] is None


@pytest.mark.parametrize(
    "losses, right", [([2.0, None], 2), ([2.0, 3.29], 2), ([None, None], 1), ([None, 2.0], 0)]
)
def test_blind_compares_with_what_was_written_before(tmp_path, losses, right, undrawn):
    report.report([finished({"part": "sizes"}, _both_arms(1))], tmp_path)
    before = _numbers(tmp_path)
    pair = dict(zip(before["prediction/rates"], losses, strict=True))
    rows = _trainings(sweep.BLIND, 0, pair)
    text = report.report([finished({"part": "blind"}, rows)], tmp_path)
    after = _numbers(tmp_path)
    assert (after["blind/right"], after["blind/runs"]) == (right, 2)
    assert f"{right} of 2 as predicted" in text
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("part, base, other", [("z_loss", 0.0, 1e-4), ("kappa", 1.0, 1e3)])
def test_losses_are_compared_with_the_least_value(tmp_path, part, base, other, undrawn):
    rows = [
        row | {"end/log_z": value, "end/largest_logit": value}
        for value, losses in ((base, (2.0, 2.2)), (other, (3.0, None)))
        for seed, loss in enumerate(losses)
        for row in _trainings(MODELS[0], seed, {0.1: loss}, **{part: value})
    ]
    text = report.report([finished({"part": part}, rows)], tmp_path)
    numbers, name = _numbers(tmp_path), f"difference/loss/{part}/{other:g}/0.1"
    # What diverged counts as the loss before training.
    assert numbers[name] == pytest.approx((3.0 + INITIAL) / 2 - 2.1)
    deviation = math.sqrt((2 * 0.1**2 + (INITIAL - 3) ** 2 / 2) / 2)
    assert numbers[f"{name}/error"] == pytest.approx(deviation, rel=1e-4)
    assert not numbers[f"{name}/counts"] and "1 of 2" in text
    assert f"{part}.svg" in text


# Measuring ---------------------------------------------------------------------------------------

STEPS, RATE, SEED = 10, 0.01, 1


def _config(folder, **changes):
    defaults = {"model.bias": False, "model.num_layers": 2, "optimizer.warmup_steps": 5}
    return tiny.config(folder, STEPS, defaults | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The trainings of a model, and the rows of two rates; one diverges."""
    folder = tmp_path_factory.mktemp("text")
    config = _config(folder)
    with tiny.shared(measure, config) as trainings:
        rows = measure.measure(config, folder, learning_rates=[RATE, math.inf], seed=SEED)
    return trainings, rows


@pytest.mark.long
def test_a_training_that_diverged_has_no_end(trained):
    _, (row, diverged) = trained
    assert (row["made"], diverged["made"]) == (STEPS, 0)
    assert math.isnan(diverged["loss"]) and math.isfinite(diverged["initial"] + row["loss"])
    assert not [name for name in diverged if name.startswith(("warm_up/", "end/"))]


@pytest.mark.long
def test_warm_up_is_seen_after_four_tenths_of_it(trained):
    trainings, (row, _) = trained
    params, batch = _at(trainings, step=2)
    observe = jax.jit(functools.partial(observed.observe, trainings.run.model))
    outputs, stacks = observe(params, batch)
    stack, kind = stacks["decoder"], "self_attention"
    largest, of_query, of_key = (
        np.asarray(values[kind])[0]
        for values in (stack.largest_logit, stack.query_norm, stack.key_norm)
    )
    expected = {
        "largest_logit": largest.max(),
        "query_norm": of_query.mean(),
        "key_norm": of_key.mean(),
        "alignment": np.mean(np.abs(largest) / (of_query * of_key)),
        "log_z": jax.nn.logsumexp(outputs.arrays(), axis=-1).mean(),
    }
    for name, value in expected.items():
        assert row[f"warm_up/{name}"] == pytest.approx(float(value), rel=1e-3), name


@pytest.mark.long
def test_gradients_are_those_that_adam_sees(trained):
    trainings, (row, _) = trained
    run, settings = trainings.run, trainings.run.optimizer
    gradient_of = jax.jit(jax.grad(functools.partial(lab.mean_loss, run, run.model)))
    m = v = 0.0
    before = _at(trainings, step=0)[0]
    for step in (1, 2):
        after, batch = _at(trainings, step)
        gradient = gradient_of(before, batch)
        norm = math.sqrt(sum(float(np.sum(np.square(g))) for g in jax.tree.leaves(gradient)))
        g = np.asarray(gradient["decoder"]["feed_forward"]["up"][0]) / max(norm, 1.0)
        m = settings.beta1 * m + (1 - settings.beta1) * g
        v = settings.beta2 * v + (1 - settings.beta2) * g**2
        before = after
    m, v = m / (1 - settings.beta1**2), v / (1 - settings.beta2**2)
    assert row["warm_up/gradient_rms"] == pytest.approx(np.sqrt(np.mean(v)), rel=1e-3)
    update = m / (np.sqrt(v) + settings.epsilon)
    assert row["warm_up/update_rms"] == pytest.approx(np.sqrt(np.mean(update**2)), rel=1e-2)


@pytest.mark.long
def test_kappa_sets_the_norms_of_queries_and_keys_for_good(tmp_path):
    # Weights that decayed would come near the norms' epsilon.
    changes = {"model.qk_norm": True, "optimizer.weight_decay": 0.0}
    config = _config(tmp_path, **changes, **sweep.FROZEN)
    kappa, head_dim = 9.0, 16
    (row,) = measure.measure(config, tmp_path, learning_rates=[RATE], seed=SEED, gain=kappa**0.5)
    for moment in ("warm_up", "end"):
        # Entries have a mean square of kappa; queries are divided by the root of their number.
        assert row[f"{moment}/query_norm"] == pytest.approx(kappa**0.5, rel=1e-2)
        assert row[f"{moment}/key_norm"] == pytest.approx((kappa * head_dim) ** 0.5, rel=1e-2)
        assert row[f"{moment}/largest_logit"] <= kappa * head_dim**0.5
    assert row["loss"] < row["initial"]


def _at(trainings, step):
    """The parameters after a step, and its batch."""
    update = next(each for each in trainings.steps(RATE, SEED) if each.step == step)
    return update.state.params, update.batch
