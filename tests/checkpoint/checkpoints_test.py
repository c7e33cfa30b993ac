"""Checkpoints come back bit for bit, or not at all."""

import copy
import errno
import itertools
import math
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.states import (
    ORIGIN,
    POWERS,
    STREAMS,
    abstract,
    bits,
    flip_a_bit,
    folder_with,
    make_state,
    names,
    restore,
    save,
    save_powers,
)
from transformer_jax.checkpoint import checkpoints as checkpoint
from transformer_jax.checkpoint.checkpoints import Checkpoints
from transformer_jax.runs import manifest


def test_round_trip_is_bit_exact_whatever_the_caller_does_after_the_save(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric="")
    state, streams = make_state(7), copy.deepcopy(STREAMS)
    checkpoints.save(7, state, streams, ORIGIN, {}, scheduled=True, records=5)
    overwrite = jax.jit(lambda tree: jax.tree.map(jnp.zeros_like, tree), donate_argnums=0)
    overwrite((state.params, state.opt_state))
    streams["0"]["next"] = 2
    restored = restore(checkpoints, "last", abstract(make_state(0)))
    assert (restored.step, restored.streams, restored.records) == (7, STREAMS, 5)
    assert checkpoint.origin(tmp_path / "7") == ORIGIN
    assert jax.tree.structure(restored.state) == jax.tree.structure(make_state(7))
    assert bits(restored.state) == bits(make_state(7)) != bits(make_state(8))
    jax.random.normal(restored.state.rng)  # a key again, and not its words


def test_parameters_are_loaded_alone_wherever_the_checkpoint_lies(tmp_path):
    folder_with(tmp_path, 1, 2)
    for folder, step in ((tmp_path / "2", 2), ((tmp_path / "1").rename(tmp_path / "elsewhere"), 1)):
        params = make_state(step).params
        loaded_params = checkpoint.load_parameters([checkpoint.whole(folder)], abstract(params))
        assert bits(loaded_params) == bits(params)
    with pytest.raises(FileNotFoundError, match="not a whole checkpoint: manifest.json is missing"):
        checkpoint.whole(tmp_path)


def average(checkpoints, k):
    """The newest step, and the mean of what `save_powers` has saved, over `k` checkpoints."""
    folders = checkpoints.newest(k)
    return int(folders[0].name), checkpoint.load_parameters(folders, POWERS)["table"][0]


@pytest.mark.parametrize(("seed", "name"), [(0, "loss"), (1, "class_error"), (2, "accuracy")])
def test_keeps_the_last_and_the_best_also_across_restarts(tmp_path, seed, name):
    draw, metric = random.Random(seed), f"validation/{name}"
    keep_last = draw.randint(1, 3)
    measured: dict[int, float] = {}
    saved: list[int] = []
    checkpoints = Checkpoints(tmp_path, keep_last=keep_last, best_metric=metric)
    for step in range(1, 9):
        if draw.random() < 0.3:
            checkpoints.close()
            checkpoints = Checkpoints(tmp_path, keep_last=keep_last, best_metric=metric)
        # Some are not measured, and some are NaN.
        metrics = draw.choice([{}, {metric: float("nan")}, *4 * [{metric: float(step * 7 % 5)}]])
        save_powers(checkpoints, step, metrics)
        saved.append(step)
        if metrics and not math.isnan(metrics[metric]):
            measured[step] = metrics[metric]
        expected = set(saved[-keep_last:])
        if measured:
            better = max if name == "accuracy" else min
            best = better(measured, key=lambda step: measured[step])
            expected.add(best)
            assert checkpoints.find("best") == tmp_path / str(best)
        checkpoints.wait()
        assert names(tmp_path) == {str(step) for step in expected}
        assert checkpoints.steps() == sorted(expected)


@pytest.mark.parametrize("seed", range(2))  # on the grid and off, with 3 and 2
def test_preempted_and_extended_runs_end_like_an_unbroken_one(tmp_path, seed):
    draw = random.Random(seed)
    every, steps = 3, draw.choice([11, 12])  # off and on the grid
    k, keep_last = draw.randint(2, 3), 3
    grid = range(every, steps + 1, every)
    between = [step for step in range(1, steps) if step not in grid]
    # The steps between look best of all, and so would win if they counted.
    losses = {step: draw.random() + (step in grid) for step in range(1, steps + 1)}

    def seen_by_a_fresh_process(directory):
        return Checkpoints(directory, keep_last=keep_last, best_metric="loss")

    def mean(step):
        averaged = ([step] + [scheduled for scheduled in reversed(grid) if scheduled < step])[:k]
        return np.float32(np.mean([2.0**step for step in averaged]))

    def run(directory, stops):
        for begin, end in itertools.pairwise([0, *stops, steps]):
            checkpoints = seen_by_a_fresh_process(directory)
            for step in range(begin + 1, end + 1):
                if step in grid or step == end:
                    metrics = {"loss": losses[step]}
                    save_powers(checkpoints, step, metrics, scheduled=step in grid)
            checkpoints.close()
            assert seen_by_a_fresh_process(directory).find("last") == directory / str(end)
            assert result(directory)[0] == (end, mean(end))

    def result(directory):
        checkpoints = seen_by_a_fresh_process(directory)
        best = checkpoints.find("best")
        assert best is not None
        return average(checkpoints, k), best.name, names(directory)

    run(tmp_path / "unbroken", [])
    # One between the last two of the grid, where it would be averaged if it counted.
    stops = {*draw.sample(between, 2), draw.choice([7, 8])}
    run(tmp_path / "preempted", sorted(stops))
    assert result(tmp_path / "preempted") == result(tmp_path / "unbroken")


def test_an_unscheduled_one_that_was_not_removed_in_time_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoints, "_prune", lambda self, saved: None)  # killed before it
    checkpoints = Checkpoints(tmp_path, keep_last=9, best_metric="loss")
    for step in (2, 3, 4):
        metrics = {"loss": abs(step - 3.1)}
        save_powers(checkpoints, step, metrics, scheduled=step % 2 == 0)
    assert average(checkpoints, 2) == (4, (2**2 + 2**4) / 2)
    assert checkpoints.find("best") == tmp_path / "4"
    assert checkpoints.steps() == [2, 3, 4]


def test_best_needs_a_metric(tmp_path):
    with pytest.raises(ValueError, match="best_metric"):
        folder_with(tmp_path, 1).find("best")
    checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric="validation/loss")
    with pytest.raises(FileNotFoundError, match="validation/loss.*whole checkpoints: 1"):
        checkpoints.find("best")
    (tmp_path / "none" / "1.tmp").mkdir(parents=True)  # as a first save that was killed leaves it
    empty = Checkpoints(tmp_path / "none", keep_last=1, best_metric="validation/loss")
    assert empty.find("best") is empty.find("last") is None and empty.newest(2) == []


def test_a_harmed_checkpoint_is_passed_over_and_takes_no_place_among_the_last(tmp_path):
    checkpoints = folder_with(tmp_path, 1, 2, keep_last=2)
    flip_a_bit(tmp_path / "2")
    restored = restore(checkpoints, "last", abstract(make_state(0)))
    assert bits(restored.state) == bits(make_state(1))
    assert checkpoints.newest(2) == [tmp_path / "1"]
    with pytest.raises(FileNotFoundError, match="2 is broken.*whole checkpoints: 1$"):
        checkpoints.find(2)
    with pytest.raises(FileNotFoundError, match="3 is missing.*whole checkpoints: 1$"):
        checkpoints.find(3)
    # Training comes by again and replaces it.
    save(checkpoints, 2)
    assert checkpoints.steps() == [1, 2]
    flip_a_bit(tmp_path / "2")
    assert checkpoints.steps() == [1]
    save(checkpoints, 3)
    assert checkpoints.steps() == [1, 3]
    checkpoints.close()


def test_a_renamed_checkpoint_does_not_pass_for_another_step(tmp_path, caplog):
    checkpoints = folder_with(tmp_path, 1, 2)
    (tmp_path / "2").rename(tmp_path / "3")
    assert checkpoints.steps() == [1]
    assert "it is of step 2" in caplog.text
    # Nor does one whose manifest does not list what it is made of.
    (tmp_path / "1" / "manifest.json").write_text('{"files": {}}')
    assert checkpoints.steps() == []


def test_one_that_does_not_fit_is_refused(tmp_path):
    checkpoints = folder_with(tmp_path, 1)
    state = make_state(1)
    state.params["decoder"]["query"] = jnp.zeros((9, 3, 4))
    expected = r"params/decoder/query: saved \(2, 3, 4\) float32, expected \(9, 3, 4\)"
    with pytest.raises(ValueError, match=expected):
        checkpoint.load_parameters([tmp_path / "1"], abstract(state.params))
    with pytest.raises(ValueError, match=expected):
        restore(checkpoints, "last", abstract(state))
    with pytest.raises(ValueError, match=r"params/more: saved nothing, expected \(2,\) float32"):
        checkpoint.load_parameters([tmp_path / "1"], abstract({"more": jnp.zeros(2)}))
    with pytest.raises(ValueError) as error:  # of many differences some are shown
        checkpoint.load_parameters(
            [tmp_path / "1"], abstract(dict.fromkeys("abcdefghi", state.step))
        )
    _, *lines, rest = str(error.value).splitlines()
    assert len(lines) == 8 and rest == "  and 3 more"
    # A state has to match as a whole, parameters alone only themselves.
    with pytest.raises(ValueError, match="step: saved .* expected nothing"):
        restore(checkpoints, "last", {"params": abstract(make_state(1).params)})


def test_where_all_are_broken_nothing_starts_anew(tmp_path):
    folder_with(tmp_path, 1, 2)
    checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric="loss")
    for folder in tmp_path.iterdir():
        flip_a_bit(folder)
    for call in (
        lambda: checkpoints.find("last"),
        lambda: checkpoints.find("best"),
        lambda: checkpoints.newest(1),
    ):
        with pytest.raises(FileNotFoundError, match=f"in {tmp_path} is whole.*Move that folder"):
            call()
    assert names(tmp_path) == {"1", "2"}


def test_a_checkpoint_that_the_disk_does_not_give_now_is_kept(tmp_path, monkeypatch):
    checkpoints = folder_with(tmp_path, 1)
    read_text = Path.read_text

    def fail(path, *arguments, **named):
        if path == tmp_path / "1" / "manifest.json":
            raise OSError(errno.EIO, "Input/output error")
        return read_text(path, *arguments, **named)

    message = f"kept as it is .Input/output error, of manifest.json.: .* '{tmp_path / '1'}'"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", fail)
        with pytest.raises(OSError, match=message):
            checkpoints.find("last")
        save(checkpoints, 2)
        with pytest.raises(OSError, match=message):
            checkpoints.wait()
    assert checkpoints.steps() == [1, 2]
    checkpoints.close()


def test_a_replaced_checkpoint_is_read_until_the_new_one_is_there(tmp_path):
    checkpoints = folder_with(tmp_path, 5, keep_last=1)
    (tmp_path / "5").rename(tmp_path / "5.old")  # killed between the two renames
    (tmp_path / "5.tmp").mkdir()
    assert checkpoints.steps() == [5]
    save(checkpoints, 6)
    checkpoints.close()
    assert names(tmp_path) == {"6"}


def test_the_moving_average_is_what_is_read_where_there_is_one(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=9, best_metric="loss")
    for step in (1, 2, 3):
        save_powers(checkpoints, step, {"loss": -step}, averaged=True)

    def read(folder):
        return checkpoint.load_parameters([folder], POWERS)["table"].tolist()

    assert read(checkpoints.find("last")) == read(checkpoints.find("best")) == [8, 8]
    assert read(checkpoints.find(1)) == [2, 2]
    assert average(checkpoints, 2) == (3, (4 + 8) / 2)
    with pytest.raises(ValueError, match=r"ema_params/table: saved \(2,\)"):
        checkpoint.load_parameters([tmp_path / "2"], {"table": jnp.zeros(4)})


@pytest.mark.parametrize(
    ("error", "deep", "message"),
    [
        (PermissionError("read-only"), False, "step 2 was not saved: read-only"),
        (OSError(errno.ENOSPC, "full"), False, "no space left for the checkpoint of step 2"),
        (OSError(errno.EDQUOT, "quota"), True, "no space left for the checkpoint of step 2"),
        # TensorStore's, and what is raised from it.
        (ValueError("No space left on device [x]"), True, "no space left .* of step 2"),
        (KeyError("disk quota exceeded"), False, "no space left .* of step 2"),
    ],
)
def test_errors_of_the_background_surface_at_the_next_call(
    tmp_path, monkeypatch, error, deep, message
):
    kind = OSError if message.startswith("no space") else RuntimeError
    checkpoints = folder_with(tmp_path, 1)

    def fail(folder):
        try:
            raise error
        except Exception as cause:
            if deep:
                raise RuntimeError("another") from cause
            raise

    monkeypatch.setattr(manifest, "write", fail)
    for call in (lambda: save(checkpoints, 3), checkpoints.steps, checkpoints.close):
        save(checkpoints, 2)
        with pytest.raises(kind, match=message):
            call()
    assert names(tmp_path) == {"1"}
