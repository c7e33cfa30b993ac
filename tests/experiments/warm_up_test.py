"""Boundaries, findings and causes of made-up trainings; what is read on the way of a small one."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness import rates
from experiments.warm_up import measure, report
from tests.experiments import tiny
from tests.experiments.harness import runs
from tests.models.tiny import flat
from transformer_jax.inspection.sharpness import threshold
from transformer_jax.tasks.tokens import PLATEAU_MARGIN

STEPS, BURN_IN, RATE = 14, 2, 0.01


@pytest.fixture(scope="module")
def shared(tmp_path_factory, compiled_once):
    """A config and its trainings, for `measure` too."""
    changes = {
        "optimizer.name": "adam",
        "optimizer.weight_decay": 0.0,
        "optimizer.warmup_steps": 4,
        "optimizer.burn_in_steps": BURN_IN,
    }
    config = tiny.config(tmp_path_factory.mktemp("text"), STEPS, changes)
    with tiny.shared(measure, config) as trainings:
        yield config, trainings


@pytest.mark.long
def test_readings_are_counted_from_the_burn_in_and_the_edge_is_that_of_the_steps_rate(
    shared, tmp_path, monkeypatch
):
    """With the number of the state in place of its curvature."""
    config, trainings = shared

    def read(state, batch):
        return {"sharpness": 7, "preconditioned_sharpness": state.step}

    monkeypatch.setattr(measure, "make_sharpness", lambda run: read)
    (row,) = measure.measure(config, tmp_path, learning_rates=[RATE], seed=0, curvature=True)
    params_at, rate_at = {}, {}
    for update in trainings.steps(RATE, 0):
        params_at[update.step] = jax.tree.map(np.array, update.state.params)
        rate_at[update.step] = float(update.metrics.get("learning_rate", 0.0))
    for step in (1, 10):
        at = BURN_IN + step
        assert (row[f"sharpness/{step}"], row[f"preconditioned_sharpness/{step}"]) == (7, at)
        assert row[f"edge/{step}"] == pytest.approx(rate_at[at] * at / threshold(0.9), rel=1e-4)
        old, new = (_kernels(params_at[number]) for number in (at - 1, at))
        cosine = old @ new / np.linalg.norm(old) / np.linalg.norm(new)
        assert row[f"angle/{step}"] == pytest.approx(math.acos(cosine), rel=0.02)
    # In its first step after the burn-in the warm-up has a quarter of its peak.
    assert rate_at[BURN_IN + 1] == pytest.approx(RATE / 4)
    assert math.isnan(row["angle/50"]) and math.isnan(row["edge/100"])
    assert row["loss"] < row["initial"] and 0 <= row["dead"] <= 1
    assert row["unigram_entropy"] == trainings.run.data.unigram_entropy


def _kernels(params):
    """The kernels of the only layer's sublayers, as one vector of double precision."""
    names = ("query", "key", "value", "output", "up", "down")
    kernels = [leaf for path, leaf in flat(params["decoder"]).items() if path.endswith(names)]
    return np.concatenate([kernel.astype(np.float64).reshape(-1) for kernel in kernels])


@pytest.mark.long
def test_a_branch_is_dead_that_adds_the_same_to_all_tokens(shared):
    _, trainings = shared
    update = next(trainings.steps(RATE, 0))
    params, batch = update.state.params, update.batch
    dead = jax.jit(functools.partial(measure.dead_branches, trainings.run.model))
    assert float(dead(params, batch)) == 0
    layer = params["decoder"]["feed_forward"]
    killed = layer | {"down": jnp.zeros_like(layer["down"])}
    decoder = params["decoder"] | {"feed_forward": killed}
    assert float(dead(params | {"decoder": decoder}, batch)) == 0.5


# The report --------------------------------------------------------------------------------------


def _arm(losses, seeds=2):
    """rate -> loss of all seeds, or a loss for each."""
    by_seed = [
        {rate: loss[seed] if isinstance(loss, list) else loss for rate, loss in losses.items()}
        for seed in range(seeds)
    ]
    rows = runs.trainings(by_seed, dead=None)
    for row in rows:
        reading = None if row["loss"] is None else 0.1
        row |= {f"{n}/{s}": reading for n in measure.NUMBERS for s in measure.READINGS}
        row["curvature"] = row["seed"] == 0
    return rows


LOW = _arm({1e-3: 2.0, 3e-3: 3.3, 1e-2: None})
MIDDLE = _arm({1e-3: 2.0, 3e-3: 1.9, 1e-2: None})
HIGH = _arm({1e-3: 2.0, 3e-3: 1.8, 1e-2: [1.7, 1.72]})


def test_the_boundary_is_where_all_larger_rates_fail_by_seed():
    rows = _arm({1e-3: [2.0, None], 3e-3: [None, 2.0], 1e-2: [3.25, None]})
    assert report.boundaries(rows) == [3e-3, 1e-2]
    assert report.boundaries(HIGH) == [math.inf, math.inf]
    assert report.heights(rows, [1e-3, 3e-3, 1e-2]) == [1, 2]
    assert report.heights(HIGH, [1e-3, 1e-2]) == [2, 2]
    # Nothing trains: also the smallest one fails.
    assert report.heights(_arm({1e-3: None, 1e-2: 3.3}), [1e-3, 1e-2]) == [0, 0]


def test_the_best_loss_is_of_rates_at_which_all_seeds_train():
    assert report.best(_arm({1e-3: [2.0, 2.2], 3e-3: [1.0, None]})) == (1e-3, [2.0, 2.2])
    assert report.best(_arm({1e-3: [1.0, 3.25]})) is None
    assert report.best(_arm({1e-3: None})) is None


@pytest.mark.parametrize(
    ("test", "verdict"),
    [(LOW, report.FAILS), (MIDDLE, report.PARTLY), (HIGH, report.RESCUES)],
)
def test_a_test_rescues_as_far_as_it_raises_the_boundary(test, verdict):
    findings = report.findings({"none": LOW, "20 %": HIGH, "burn-in": test})
    assert findings["burn-in"].verdict == verdict
    findings = report.findings({"none": HIGH, "20 %": HIGH, "top quarter": test})
    assert findings["top quarter"].verdict == report.NOTHING


def test_lamb_is_judged_by_its_best_loss():
    lamb = {"lamb": _arm({0.1: [1.7, 1.72]})}
    assert report.findings({"none": LOW, "20 %": HIGH} | lamb)["lamb"].verdict == report.RESCUES
    never = {"lamb": _arm({0.1: None})}
    finding = report.findings({"none": LOW, "20 %": HIGH} | never)["lamb"]
    assert finding.verdict == report.FAILS
    assert finding.gained.value == pytest.approx(2.0 - (runs.ENTROPY - PLATEAU_MARGIN))


def test_lion_needs_warm_up_if_that_raises_its_boundary():
    def verdict(without, with_it):
        return report.findings({"lion": without, "lion, 20 %": with_it})["lion"].verdict

    assert verdict(LOW, HIGH) == report.NEEDS
    assert verdict(LOW, LOW) == verdict(MIDDLE, LOW) == report.NO_NEED
    assert verdict(HIGH, HIGH) == report.UNDECIDED  # it trains at all rates
    never = _arm({1e-3: [3.3, 3.3], 3e-3: [3.3, 3.3], 1e-2: [3.3, 3.3]})
    assert verdict(never, never) == report.UNDECIDED  # or at none
    assert verdict(never, HIGH) == report.NEEDS


def test_one_seed_decides_nothing():
    arms = {"none": LOW, "20 %": HIGH, "top quarter": HIGH, "lamb": HIGH}
    arms |= {"lion": LOW, "lion, 20 %": HIGH}
    one = {arm: [row for row in rows if row["seed"] == 0] for arm, rows in arms.items()}
    findings = report.findings(one)
    assert {each.verdict for each in findings.values()} == {report.UNDECIDED}
    assert set(report.fitting(findings).values()) == {(0, 0)}


def test_seeds_that_part_make_a_small_gain_uncertain():
    parted = _arm({1e-3: [2.0, 3.3], 3e-3: [3.3, 1.9], 1e-2: [3.3, 1.9]})  # heights 1 and 3
    findings = report.findings({"none": LOW, "20 %": parted, "burn-in": HIGH})
    assert findings["burn-in"].verdict == report.NOTHING


def test_durations_compare_only_what_trains_in_all_seeds():
    shorter = _arm({1e-3: [2.0, 2.02], 3e-3: [1.9, None]})
    longer = _arm({1e-3: [1.8, 1.82], 3e-3: [1.8, 1.8]})
    same, other = report.durations({"5 %": shorter, "20 %": longer})
    assert other["difference"] is None
    assert same["difference"].value == pytest.approx(-0.2) and same["difference"].counts


def _runs(arms):
    labels = {"scheme": "post_ln", "kind": "all"}
    return [runs.finished(labels | {"arm": arm}, rows) for arm, rows in arms.items()]


@pytest.mark.parametrize(
    "arms",
    [
        {"none": LOW, "5 %": MIDDLE, "20 %": HIGH, "burn-in": MIDDLE, "lamb": HIGH},
        {"none": _arm({1e-3: None}), "20 %": _arm({1e-3: None}), "lamb": _arm({1e-3: None})},
        {"lion": LOW, "lion, 20 %": HIGH},
        # No rate in common.
        {"none": _arm({1e-3: 2.0}), "20 %": HIGH, "burn-in": _arm({1e-2: 2.0}, seeds=1)},
    ],
    ids=["most", "all diverged", "lion", "nothing shared"],
)
def test_a_report_of_whatever_arms_there_are(arms, tmp_path, undrawn):
    text = report.report(_runs(arms), tmp_path)
    for arm, rows in arms.items():
        assert f"| {arm} | {sum(map(rates.trains, rows))} of {len(rows)} |" in text
    assert (tmp_path / "summary.json").exists() and (tmp_path / "losses.csv").exists()


def test_trainings_above_the_edge_are_counted_by_how_they_end(tmp_path, undrawn):
    above = [row | {"edge/10": 1.5} for row in _arm({1e-3: 2.0, 3e-3: 3.3})]
    rows = above + _arm({1e-2: 3.3, 3e-2: None})
    text = report.report(_runs({"none": rows}), tmp_path)  # the one that diverged was not read
    assert "in 1 of 2 trainings that fail, and in 1 of 1 that train" in text
