"""Grokking: the pairs and their files, accuracies by a slow loop, and what the lines say."""

import numpy as np
import pytest

from experiments.grokking import measure, report
from experiments.grokking.sweep import SWEEPS
from experiments.harness.trainings import Trainings
from transformer_jax.config.load import replace

MODULUS, SHARE = 11, 0.3


def test_all_pairs_are_there_once_and_commuted_ones_are_known():
    pairs = measure.split(97, SHARE)
    both = [tuple(pair) for side in pairs for pair in side.tolist()]
    assert len(both) == len(set(both)) == 97**2 and set(both) == {*np.ndindex(97, 97)}
    assert len(pairs.train) == round(SHARE * 97**2)
    train = pairs.train.tolist()
    assert pairs.commuted.tolist() == [[b, a] in train for a, b in pairs.test.tolist()]
    # A pair's other order is trained on as often as any pair.
    assert np.mean(pairs.commuted) == pytest.approx(SHARE, abs=0.03)


def test_files_have_the_sums_and_every_label_is_a_97th_of_them(tmp_path):
    measure.write(tmp_path, measure.split(97, SHARE), 97)
    text = "".join((tmp_path / name).read_text() for name in (measure.TRAIN, measure.TEST))
    labels = []
    for line in text.splitlines():
        label, a, b = line.split()
        assert (a[0], b[0]) == ("a", "b")
        labels.append(int(label))
        assert labels[-1] == (int(a[1:]) + int(b[1:])) % 97
    assert np.bincount(labels).tolist() == [97] * 97


@pytest.mark.long
def test_readings_are_accuracies_of_the_written_pairs(tmp_path, monkeypatch):
    (run, *_) = SWEEPS["decay"](True)  # without decay
    changes = {"data.cache_dir": str(tmp_path), "train.steps": 6, "data.batch_size": 32}
    config = replace(run.resolved, changes)
    snapshots = []

    class Recorder(Trainings):
        def steps(self, *args):
            for update in super().steps(*args):
                if update.step == 6:
                    snapshots.append((self.run, update.state.params))
                yield update

    monkeypatch.setattr(measure, "Trainings", Recorder)
    arguments = {"modulus": MODULUS, "share": SHARE, "rate": 3e-3, "seeds": [0], "read_every": 3}
    *_, before, last, training = measure.measure(config, tmp_path, **arguments)
    assert (before["step"], last["step"]) == (3, 6) and last["train"] > before["train"]
    assert training["fits_at"] is training["generalises_at"] is None
    (trained_run, params), pairs = snapshots[0], measure.split(MODULUS, SHARE)
    trained = trained_run.trained(params)
    for name, side in zip(("train", "test"), pairs, strict=True):
        predicted = trained_run.task.results(trained, [f"a{a} b{b}" for a, b in side.tolist()])
        right = np.array(predicted, int)[:, 0] == np.sum(side, axis=1) % MODULUS
        assert last[name] == pytest.approx(np.mean(right))
    assert last["commuted"] == pytest.approx(np.mean(right[pairs.commuted]))  # of the test pairs


def training(seed, fits, generalises):
    return {"seed": seed, "fits_at": fits, "generalises_at": generalises, "step": 6000}


def arm(fits, generalises):
    return [
        training(seed, fits, generalises and round(generalises * 1.05**seed)) for seed in range(3)
    ]


def test_lines_on_decay():
    arms = {0.0: arm(100, None), 0.1: arm(100, 4000), 0.3: arm(100, 2000), 1.0: arm(100, 900)}
    text, numbers = report._decay(arms)
    assert text.count("**held**") == 3 and numbers["slope"] < 0
    against = {0.0: arm(100, 3000), 0.1: arm(100, 300), 0.3: arm(100, 500), 1.0: arm(100, 900)}
    assert report._decay(against)[0].count("**contradicted**") == 3
    text, _ = report._decay({0.0: arm(100, None), 0.1: arm(None, None)})
    assert text.count("**undecided**") == 2 and "contradicted" not in text
    # That none generalises is not that they do so late.
    bounds = {0.0: arm(100, None), 0.1: arm(100, None), 0.3: arm(100, 900), 1.0: arm(100, 500)}
    words = [line.split("**")[1] for line in report._decay(bounds)[0].split("\n\n")]
    assert words == ["undecided", "held", "undecided"]
    diverged = training(0, 100, None) | {"step": 40}
    assert report._decay({0.0: [*arm(100, None)[1:], diverged]})[0].count("**undecided**") == 2
    # Four points have no deviation from the three lines of their seeds.
    seeds = {0.1: (0, 1), 0.3: (0,), 1.0: (2,)}
    few = {decay: [training(seed, 100, 900) for seed in own] for decay, own in seeds.items()}
    assert "too few of them fit" in report._decay(few)[0]
    assert report.delay(training(0, 100, None)) == 60  # at least


def test_the_line_on_schemes_leaves_out_what_never_generalises():
    apart = {"a": arm(100, 500), "b": arm(100, 1500), "c": arm(100, 4500), "d": arm(100, None)}
    text, _ = report._schemes(apart)
    assert "**held**" in text and "left out: d" in text
    assert "**contradicted**" in report._schemes({name: arm(100, 900) for name in "abc"})[0]
    alike = {name: arm(100, 900) for name in "abc"}
    assert "**undecided**" in report._schemes(alike | {"d": arm(100, None)})[0]
    assert "**undecided**" in report._schemes({"a": arm(100, 900), "b": arm(100, None)})[0]


def test_a_training_that_generalised_stays_in_the_mean_of_its_arm():
    rows = [
        {"kind": "reading", "arm": 1.0, "seed": seed, "step": step, "test": step / ends}
        for seed, ends in enumerate((40, 80))
        for step in range(0, ends + 1, 20)
    ]
    at = {
        step: sorted(row["test"] for row in report._readings(rows) if row["step"] == step)
        for step in (20, 60, 80)
    }
    assert at == {20: [0.25, 0.5], 60: [0.75, 1.0], 80: [1.0, 1.0]}
