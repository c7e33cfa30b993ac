"""Repetition: rows in epochs, a training by hand, best decays and what the lines say."""

import itertools

import numpy as np
import pytest

from experiments.harness import lab
from experiments.harness.trainings import Trainings
from experiments.repetition import measure, report
from tests.experiments import tiny
from transformer_jax.config.build import build


def test_an_epoch_has_every_row_once_in_an_order_of_its_own():
    rows = {"a": np.arange(12), "b": np.arange(24).reshape(12, 2)}
    batches = lab.epochs(rows, size=3, seed=1)
    orders = []
    for _ in range(2):
        epoch = lab.joined([next(batches) for _ in range(4)])
        assert sorted(epoch["a"]) == list(range(12))
        np.testing.assert_array_equal(epoch["b"], rows["b"][epoch["a"]])
        orders.append(epoch["a"].tolist())
    assert orders[0] != orders[1]
    uneven = lab.epochs(rows, size=5, seed=1)  # two rows are left over
    assert len({*lab.joined([next(uneven), next(uneven)])["a"].tolist()}) == 10


@pytest.mark.long
def test_its_trainings_read_the_first_rows_alone_and_end_as_one_by_hand_does(tmp_path):
    config = tiny.config(tmp_path, 12, {"optimizer.name": "adamw"})
    arguments = {"batches": 4, "decays": [0.1, 1.0], "standard": 0.1, "seeds": 1, "fresh": 1}
    rows = measure.measure(config, tmp_path, rate=0.02, readings=3, **arguments)
    grid = {row["decay"]: row for row in rows if row["kind"] == "grid"}
    assert grid.keys() == {0.1, 1.0} and grid[1.0]["norm"] < grid[0.1]["norm"]
    assert [row["step"] for row in rows if row["kind"] == "reading"][:3] == [4, 8, 12]
    other = tiny.config(tmp_path, 12, {"optimizer.name": "adamw", "optimizer.weight_decay": 1.0})
    trainings = Trainings(build(other))
    read = lab.joined(list(itertools.islice(trainings.batches(0), 4)))
    updates = list(trainings.steps(0.02, 0, lab.epochs(read, 8, 0)))
    assert grid[1.0]["loss"] == trainings.validation_loss(updates[-1].state.params)
    losses = [float(update.metrics["loss"]) for update in updates[-4:]]
    assert grid[1.0]["train"] == pytest.approx(np.mean(losses))


def grid(best):
    return [
        {"decay": decay, "loss": 2 + 0.1 * np.log10((decay or 0.01) / best) ** 2}
        for decay in (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
    ]


def test_the_best_decay_is_a_parabolas_and_knows_the_edges():
    assert report.best(grid(0.8)) == (pytest.approx(np.log10(0.8)), 0)
    assert report.best(grid(0.05))[1] == -1
    assert report.best(grid(20.0)) == (pytest.approx(1), 1)
    alike = [row | {"loss": None} if row["decay"] == 10 else row for row in grid(0.8)]
    assert report.best(alike)[1] == 0


def test_the_error_of_a_best_decay_is_that_of_its_parabola():
    """Of a parabola through five equal steps, whose vertex is -b / 2a, by propagation of errors."""
    rows = [{"decay": 10.0**step, "loss": 2 + 0.05 * step**2} for step in range(-2, 3)]
    expected = 1e-4 / np.sqrt(10) / (2 * 0.05)  # b deviates by that over the root of sum x^2
    assert report.error(rows, 1e-4) == pytest.approx(expected, rel=0.1)
    assert report.error(rows, 0.0) == 0


def known(epochs, best, rate=4e-3, edge=0, error=0.05):
    numbers = {"best": np.log10(best), "edge": edge, "error": error}
    widths = itertools.product(numbers.items(), (32, 64, 128))
    return {f"{name}/{epochs}/{width}/{rate:g}": value for (name, value), width in widths}


@pytest.mark.parametrize(
    ("one", "eight", "verdict"),
    [((0.2, 0), (3.0, 0), "held"), ((0.1, -1), (3.0, 0), "held"), ((0.2, 1), (3.0, 0), "undecided"),
     ((0.2, 0), (0.4, 0), "contradicted"), ((0.1, -1), (0.2, 0), "undecided"),
     ((0.2, 0), (1.0, 0), "undecided")],
)  # fmt: skip
def test_the_line_on_epochs(one, eight, verdict):
    numbers = known(1, one[0], edge=one[1]) | known(8, eight[0], edge=eight[1])
    assert f"**{verdict}**" in report.repeated(numbers)
    assert "**undecided**" in report.repeated(known(8, eight[0]))


@pytest.mark.parametrize(("slow", "verdict"), [(4.0, "held"), (1.0, "contradicted"), (2.0, "und")])
def test_the_line_on_the_product(slow, verdict):
    assert f"**{verdict}" in report.constant(known(8, 1.0) | known(8, slow, 1e-3))
    assert "**undecided" in report.constant(known(8, 1.0) | known(8, slow, 1e-3, edge=1))
    assert "**undecided" in report.constant(known(8, 1.0))
    assert "**undecided" in report.constant(known(8, 1.0) | known(8, slow, 1e-3, error=0.3))


def fresh(means):
    return [
        {"width": width, "decay": decay, "loss": mean + shift}
        for (width, decay), mean in means.items()
        for shift in (-0.001, 0.001)
    ]


def test_the_line_on_widths():
    means = {(32, 0.1): 1.9, (32, 1.0): 1.8, (64, 0.1): 1.9, (64, 3.0): 1.7, (128, 0.1): 2.0}
    assert "**held**" in report.widths(fresh(means | {(128, 3.0): 1.6}))[0]
    assert "**contradicted**" in report.widths(fresh(means | {(128, 3.0): 1.7}))[0]
    assert "**undecided**" in report.widths(fresh({(32, 0.1): 1.9}))[0]
    alone = {(32, 0.1): 1.9, (64, 0.1): 1.9, (128, 0.1): 2.0}  # the standard decay is the best one
    assert "**contradicted**" in report.widths(fresh(alone))[0]
