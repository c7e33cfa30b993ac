"""Readings against the threshold: what made-up ones are called, and what a small training gives."""

import numpy as np
import pytest

from experiments.edge_of_stability import measure, report
from experiments.harness import results
from tests.experiments import tiny
from tests.experiments.harness.runs import finished
from transformer_jax.devices.mesh import place
from transformer_jax.inspection.sharpness import make_sharpness, threshold

PART, RATE = 4, 0.01


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
def test_above_the_threshold_momentum_on_a_parabola_grows_and_below_it_shrinks(beta1):
    """The optimizer of Cohen et al.: an exponential average of gradients, P = 1, curvature 1."""
    for share, grows in ((0.95, False), (1.05, True)):
        rate = share * threshold(beta1)
        # (x, m) -> (x - rate m', m') with m' = beta1 m + (1 - beta1) x
        step = np.array([[1 - rate * (1 - beta1), -rate * beta1], [1 - beta1, beta1]])
        assert (np.abs(np.linalg.eigvals(step)).max() > 1) == grows


@pytest.mark.long
def test_readings_are_those_of_the_whole_batch_whatever_steps_are_made_on(
    tmp_path, monkeypatch, compiled_once
):
    changes = {
        "optimizer.name": "adam",
        "optimizer.schedule": "constant",
        "optimizer.weight_decay": 0.0,
    }
    config = tiny.config(tmp_path, 4, changes)
    with tiny.shared(measure, config) as trainings:
        read = make_sharpness(trainings.run)
        monkeypatch.setattr(measure, "make_sharpness", lambda run: read)
        rows = measure.measure(config, tmp_path, learning_rate=RATE, rows=PART, every=2)
    whole = next(trainings.batches(measure.SEED))
    on, expected = place(trainings.run.mesh, whole), {}
    for update in trainings.steps(RATE, measure.SEED, measure._parts(whole, PART)):
        words = np.asarray(update.batch["targets"])
        assert len(words) == PART and set(map(tuple, words)) <= set(map(tuple, whole["targets"]))
        if update.step in (2, 4):
            expected[update.step] = {"loss": update.metrics["loss"], **read(update.state, on)}
    assert [row["step"] for row in rows] == [2, 4]
    for row in rows:
        for name in measure.NUMBERS:
            assert row[name] == pytest.approx(float(expected[row["step"]][name]), rel=1e-3), name


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([0.2] * 6 + [0.9, 1.1], report.AT),  # risen
        ([50.0] * 6 + [0.9, 1.1], report.AT),  # fallen to it
        ([0.2] * 6 + [1.16, 1.2], report.ABOVE),
        ([0.2, 0.9, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5], report.LEFT),
        ([0.2] * 8, report.BELOW),
        ([50.0, 1.0] + [0.5] * 6, report.BELOW),  # it only fell past it
        ([0.2] * 12 + [0.5, 1.5, 0.7, 1.3], report.UNSTEADY),
        ([1.0] * 12 + [1.0, 1.0, 0.9, 40.0], report.AT),  # a spike between readings at it
        ([1.0] * 7 + [None], report.DIVERGED),
        ([None] * 8, report.DIVERGED),
        ([1.0], report.AT),
    ],
)
def test_what_readings_are_called(shares, said):
    assert report.outcome(shares) == said


def _training(beta1, products, rate=1e-3, rows=128):
    """A run whose readings are these, of learning rate * each number that is measured."""
    labels = {"scheme": "pre_ln", "learning_rate": rate, "beta1": beta1}
    labels |= {"rows": rows, "whole": rows == 128}
    numbers = [None if product is None else product / rate for product in products]
    readings = [dict.fromkeys(measure.NUMBERS, number) for number in numbers]
    return finished(labels, [{"step": at, **each} for at, each in enumerate(readings)])


def _cells(*trainings):
    rows = [{**row, "product": report._product(row)} for row in results.rows(trainings)]
    return [cell["outcome"] for cell in report.cells(rows)]


def test_a_plateau_that_does_not_move_with_beta1_refutes():
    plateau = _training(0.0, [2.0] * 8)
    assert _cells(plateau, _training(0.9, [2.1] * 8)) == [report.AT, report.UNMOVED]
    # On its way from one threshold to the other it is only slow.
    assert _cells(plateau, _training(0.9, [9.0] * 8)) == [report.AT, report.BELOW]
    # Without a plateau at beta1 = 0, or at another rate, there is nothing to compare to.
    assert _cells(_training(0.0, [1.0] * 8), _training(0.9, [1.0] * 8)) == [report.BELOW] * 2
    assert _cells(plateau, _training(0.9, [2.0] * 8, rate=3e-3)) == [report.AT, report.BELOW]


@pytest.mark.parametrize(
    ("products", "word"),
    [
        ({0.0: 2.0, 0.9: 38.0}, "Confirmed"),
        ({0.0: 2.0, 0.9: 10.0}, "Inconclusive"),
        ({0.0: 2.0, 0.9: 60.0}, "Held in part"),
        ({0.0: 4.0, 0.9: 60.0}, "Refuted"),
        ({0.0: None, 0.9: None}, "Inconclusive"),
    ],
)
def test_the_report_counts_all_trainings(products, word, tmp_path, undrawn):
    whole = [_training(beta1, [product] * 8) for beta1, product in products.items()]
    text = report.report([*whole, _training(0.0, [1.5] * 8, rows=32)], tmp_path)
    assert text.startswith(f"**{word}: of 2 trainings")
    assert (tmp_path / "edge.svg").exists() and (tmp_path / "cells.csv").exists()
    lower = 0 if products[0.0] is None else 1
    assert f"in {lower} of {lower} controls, and {1 - lower} cannot" in text
