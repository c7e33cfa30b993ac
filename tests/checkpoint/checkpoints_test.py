"""Checkpoints come back bit for bit, or not at all."""

import errno
import itertools
import math
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.checkpoint import checkpoints as checkpoint
from transformer_jax.checkpoint.checkpoints import Checkpoints
from transformer_jax.devices import hosts
from transformer_jax.models.family import Role
from transformer_jax.training import optimizer

STREAMS = {"0": {"next": 3, "buffer": [1, 2]}, "1": {"next": 4, "buffer": []}}
CONFIG = {"seed": 0, "model": {"heads": [2, 4]}}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    step: Any
    params: Any
    opt_state: Any
    rng: Any
    window: Any


def make_state(seed: int) -> State:
    keys = jax.random.split(jax.random.key(seed), 3)
    params = {
        "decoder": {"query": jax.random.normal(keys[0], (2, 3, 4))},
        "embedding": {"table": jax.random.normal(keys[1], (5, 3), jnp.bfloat16)},
    }
    return State(
        step=jnp.asarray(seed, jnp.int32),
        params=params,
        opt_state=optax.chain(optax.clip(1.0), optax.adam(1e-3)).init(params),
        rng=keys[2],
        window={"loss": (jnp.float32(1.5), jnp.float32(2.0))},
    )


def abstract(state):
    return jax.eval_shape(lambda: state)


def bits(tree) -> list[tuple]:
    """Everything there is to know of a tree's leaves: kind, shape and bytes."""

    def describe(leaf):
        kind = str(leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return kind, leaf.shape, np.asarray(leaf).tobytes()

    return [describe(leaf) for leaf in jax.tree.leaves(tree)]


def save(checkpoints: Checkpoints, step: int, metrics=None) -> None:
    state = make_state(step)
    checkpoints.save(step, state, STREAMS, CONFIG, "data-1", metrics or {}, scheduled=True)


def folder_with(directory: Path, *steps: int, keep_last: int = 9) -> Checkpoints:
    """Whole checkpoints of these steps, seen by a fresh process."""
    checkpoints = Checkpoints(directory, keep_last=keep_last, best_metric="")
    for step in steps:
        save(checkpoints, step)
    checkpoints.close()
    return Checkpoints(directory, keep_last=keep_last, best_metric="")


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_round_trip_is_bit_exact(tmp_path):
    restored = folder_with(tmp_path, 7).restore("last", abstract(make_state(0)))
    assert restored is not None
    assert (restored.step, restored.streams, restored.fingerprint) == (7, STREAMS, "data-1")
    assert jax.tree.structure(restored.state) == jax.tree.structure(make_state(7))
    assert bits(restored.state) == bits(make_state(7)) != bits(make_state(8))
    jax.random.normal(restored.state.rng)  # a key again, and not its words


def make_optimizer(name):
    """With a frozen parameter, so that its state has masked nodes and none."""
    return optimizer.make_optimizer(
        name=name,
        schedule=lambda count: 0.1 / (1 + count),
        beta1=0.9,
        beta2=0.99,
        epsilon=1e-8,
        weight_decay=0.0,
        clip_norm=1.0,
        groups=(("embedding/*", 0.0, 0.0), ("encoder/*", 0.5, 0.0)),
        roles=lambda: {
            "encoder/query": Role((1, 2), True, True),
            "encoder/query_bias": Role(None, False, True),
            "logits/kernel": Role((1, 1), True, False),
        },
    )


@pytest.mark.parametrize("ema", [False, True])
@pytest.mark.parametrize("name", ["adam", "adamw", "radam", "adafactor", "lion", "muon"])
def test_every_optimizer_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, name, ema):
    transform = make_optimizer(name)
    keys = iter(jax.random.split(jax.random.key(5), 9))
    params = {
        "encoder": {
            "query": jax.random.normal(next(keys), (2, 4, 2, 3)),
            "query_bias": jnp.zeros((2, 2, 3)),
        },
        "embedding": {"table": jax.random.normal(next(keys), (5, 4))},
        "logits": {"kernel": jax.random.normal(next(keys), (128, 129))},  # factored by adafactor
    }

    def new():
        return {
            "params": params,
            "ema_params": params if ema else None,
            "opt_state": transform.init(params),
        }

    @jax.jit
    def step(state, n):
        gradient = jax.tree.map(lambda p: jnp.sin(9 * p + n), state["params"])
        updates, opt_state = transform.update(gradient, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        average = optax.incremental_update(params, state["ema_params"], 0.1) if ema else None
        return {"params": params, "ema_params": average, "opt_state": opt_state}

    cut = step(step(new(), 1), 2)
    checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric="")
    checkpoints.save(2, cut, {}, {}, "", {}, scheduled=True)
    checkpoints.close()
    restored = checkpoints.restore("last", jax.eval_shape(new))
    assert restored is not None
    assert jax.tree.structure(restored.state) == jax.tree.structure(cut)
    assert bits(restored.state) == bits(cut) != bits(new())
    assert bits(step(restored.state, 3)) == bits(step(cut, 3))


def test_save_copies_before_it_returns(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric="")
    state, streams = make_state(3), {"0": {"next": 1}}
    checkpoints.save(3, state, streams, {}, "data-1", {}, scheduled=True)
    overwrite = jax.jit(lambda tree: jax.tree.map(jnp.zeros_like, tree), donate_argnums=0)
    overwrite((state.params, state.opt_state))
    streams["0"]["next"] = 2
    restored = checkpoints.restore("last", abstract(make_state(3)))
    assert restored is not None
    assert bits(restored.state) == bits(make_state(3))
    assert restored.streams == {"0": {"next": 1}}


def test_parameters_alone_and_from_a_path(tmp_path):
    checkpoints = folder_with(tmp_path, 1, 2)
    params = make_state(2).params
    for restored in (
        checkpoints.restore_parameters("last", abstract(params)),
        checkpoint.restore_parameters_from(tmp_path / "2", abstract(params)),
    ):
        assert restored is not None
        assert restored[0] == 2
        assert bits(restored[1]) == bits(params)
    moved = (tmp_path / "1").rename(tmp_path / "elsewhere")
    step, restored_params = checkpoint.restore_parameters_from(moved, abstract(params))
    assert step == 1
    assert bits(restored_params) == bits(make_state(1).params)
    with pytest.raises(FileNotFoundError, match="not a whole checkpoint"):
        checkpoint.restore_parameters_from(tmp_path, abstract(params))


def test_stored_layout_needs_no_class_of_ours(tmp_path):
    import orbax.checkpoint as ocp

    folder_with(tmp_path, 4)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        stored = reader.metadata(tmp_path / "4" / "state").item_metadata.tree
    assert stored["params"]["decoder"]["query"].shape == (2, 3, 4)
    assert stored["opt_state"]["1"]["0"]["mu"]["embedding"]["table"].shape == (5, 3)


def test_restored_state_lands_on_the_sharding_asked_for(tmp_path):
    checkpoints = folder_with(tmp_path, 1)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    wanted = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), make_state(0)
    )
    restored = checkpoints.restore("last", wanted)
    assert restored is not None
    assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(restored.state))


@pytest.mark.parametrize("metric", ["validation/loss", "validation/bleu"])
@pytest.mark.parametrize("seed", [0, 1])
def test_keeps_the_last_and_the_best_also_across_restarts(tmp_path, metric, seed):
    draw = random.Random(seed)
    keep_last = draw.randint(1, 3)
    measured: dict[int, float] = {}
    saved: list[int] = []
    checkpoints = Checkpoints(tmp_path, keep_last=keep_last, best_metric=metric)
    for step in range(1, 9):
        if draw.random() < 0.3:
            checkpoints.close()
            checkpoints = Checkpoints(tmp_path, keep_last=keep_last, best_metric=metric)
        # Some are not measured, and some measured as not a number.
        metrics = draw.choice([{}, {metric: float("nan")}, *4 * [{metric: float(step * 7 % 5)}]])
        save(checkpoints, step, metrics)
        saved.append(step)
        if metrics and not math.isnan(metrics[metric]):
            measured[step] = metrics[metric]
        expected = set(saved[-keep_last:])
        if measured:
            better = min if metric.endswith("loss") else max
            best = better(measured, key=lambda step: measured[step])
            expected.add(best)
            restored = checkpoints.restore_parameters("best", abstract(make_state(0).params))
            assert restored is not None
            assert restored[0] == best
        checkpoints.wait()
        assert names(tmp_path) == {str(step) for step in expected}
        assert checkpoints.steps() == sorted(expected)
    assert measured


@pytest.mark.parametrize("seed", range(4))
def test_preempted_and_extended_runs_end_like_an_unbroken_one(tmp_path, seed):
    draw = random.Random(seed)
    every, steps = 3, draw.choice([11, 12])  # off and on the grid
    k, keep_last = draw.randint(2, 3), 3
    grid = range(every, steps + 1, every)
    between = [step for step in range(1, steps) if step not in grid]
    # The steps between look best of all, and so would win if they counted.
    losses = {step: draw.random() + (step in grid) for step in range(1, steps + 1)}
    wanted = {"params": {"table": jax.ShapeDtypeStruct((2,), jnp.float32)}}

    def seen_by_a_fresh_process(directory):
        return Checkpoints(directory, keep_last=keep_last, best_metric="loss")

    def mean(step):
        """Of powers of two, so that it tells which steps it was taken over."""
        averaged = ([step] + [scheduled for scheduled in reversed(grid) if scheduled < step])[:k]
        return np.float32(np.mean([2.0**step for step in averaged]))

    def run(directory, stops):
        for begin, end in itertools.pairwise([0, *stops, steps]):
            checkpoints = seen_by_a_fresh_process(directory)
            for step in range(begin + 1, end + 1):
                if step in grid or step == end:
                    state = {"params": {"table": np.full(2, 2.0**step, np.float32)}}
                    metrics = {"loss": losses[step]}
                    checkpoints.save(step, state, {}, {}, "", metrics, scheduled=step in grid)
            checkpoints.close()
            restored = seen_by_a_fresh_process(directory).restore("last", wanted)
            assert restored is not None and restored.step == end
            assert result(directory)[0] == (end, mean(end))

    def result(directory):
        checkpoints = seen_by_a_fresh_process(directory)
        averaged = checkpoints.average(k, wanted["params"])
        best = checkpoints.restore_parameters("best", wanted["params"])
        assert averaged is not None and best is not None
        return (averaged[0], averaged[1]["table"][0]), best[0], names(directory)

    run(tmp_path / "unbroken", [])
    # One between the last two of the grid, where it would be averaged if it counted.
    stops = {*draw.sample(between, 2), draw.choice([7, 8])}
    run(tmp_path / "preempted", sorted(stops))
    assert result(tmp_path / "preempted") == result(tmp_path / "unbroken")


def test_an_unscheduled_one_that_was_not_removed_in_time_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoints, "_prune", lambda self, saved: None)  # killed before it
    checkpoints = Checkpoints(tmp_path, keep_last=9, best_metric="loss")
    for step in (2, 3, 4):
        state = {"params": {"table": np.full(2, step, np.float32)}}
        metrics = {"loss": abs(step - 3.1)}
        checkpoints.save(step, state, {}, {}, "", metrics, scheduled=step % 2 == 0)
    params = {"table": jax.ShapeDtypeStruct((2,), jnp.float32)}
    averaged = checkpoints.average(2, params)
    best = checkpoints.restore_parameters("best", params)
    assert averaged is not None and best is not None
    assert (averaged[0], averaged[1]["table"][0]) == (4, (2 + 4) / 2)
    assert best[0] == 4
    assert checkpoints.steps() == [2, 3, 4]


def test_best_needs_a_metric(tmp_path):
    with pytest.raises(ValueError, match="best_metric"):
        folder_with(tmp_path, 1).restore("best", abstract(make_state(0)))
    checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric="validation/loss")
    with pytest.raises(FileNotFoundError, match="validation/loss.*whole checkpoints: 1"):
        checkpoints.restore("best", abstract(make_state(0)))
    empty = Checkpoints(tmp_path / "none", keep_last=1, best_metric="validation/loss")
    assert empty.restore("best", None) is empty.restore("last", None) is None


def flip_a_bit(folder: Path) -> None:
    path = max((folder / "state").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(folder: Path) -> None:
    path = folder / "progress.json"
    path.write_bytes(path.read_bytes()[:-1])


def remove_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def tear_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-9])


def remove_array(folder: Path) -> None:
    next(path for path in (folder / "state" / "d").iterdir()).unlink()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (flip_a_bit, "SHA-256"),
        (truncate, "progress.json has"),
        (remove_manifest, "manifest.json is missing"),
        (tear_manifest, "manifest.json cannot be parsed"),
        (remove_array, "is missing"),
    ],
)
def test_a_harmed_checkpoint_is_passed_over(tmp_path, monkeypatch, harm, reason):
    checkpoints = folder_with(tmp_path, 1, 2)
    harm(tmp_path / "2")
    warnings: list[str] = []
    monkeypatch.setattr(
        checkpoint.logging, "warning", lambda text, *values: warnings.append(text % values)
    )
    restored = checkpoints.restore("last", abstract(make_state(0)))
    assert restored is not None
    assert bits(restored.state) == bits(make_state(1))
    passed_over, going_on = warnings
    assert str(tmp_path / "2") in passed_over
    assert reason in passed_over
    assert "step 1" in going_on

    with pytest.raises(FileNotFoundError, match="2 is broken.*whole checkpoints: 1$"):
        checkpoints.restore(2, abstract(make_state(0)))
    with pytest.raises(FileNotFoundError, match="3 is missing.*whole checkpoints: 1$"):
        checkpoints.restore(3, abstract(make_state(0)))
    # Training comes by again and replaces it.
    save(checkpoints, 2)
    assert checkpoints.steps() == [1, 2]
    checkpoints.close()


def test_where_all_are_broken_nothing_starts_anew(tmp_path):
    folder_with(tmp_path, 1, 2)
    checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric="loss")
    for folder in tmp_path.iterdir():
        flip_a_bit(folder)
    state = abstract(make_state(0))
    for call in (
        lambda: checkpoints.restore("last", state),
        lambda: checkpoints.restore("best", state),
        lambda: checkpoints.restore_parameters("last", state.params),
        lambda: checkpoints.average(1, state.params),
    ):
        with pytest.raises(FileNotFoundError) as error:
            call()
        assert f"in {tmp_path} is whole" in str(error.value)
        assert "Move that folder away" in str(error.value)
    assert names(tmp_path) == {"1", "2"}


def test_a_first_save_that_was_killed_is_no_checkpoint(tmp_path):
    (tmp_path / "1.tmp").mkdir()
    checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric="")
    assert checkpoints.restore("last", None) is checkpoints.average(1, None) is None


def test_a_broken_checkpoint_takes_no_place_among_the_last(tmp_path):
    checkpoints = folder_with(tmp_path, 1, 4, keep_last=2)
    flip_a_bit(tmp_path / "4")
    assert checkpoints.steps() == [1]
    save(checkpoints, 2)
    assert checkpoints.steps() == [1, 2]
    checkpoints.close()


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
            checkpoints.restore("last", abstract(make_state(0)))
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


def test_mismatch_names_the_parameter_and_both_shapes(tmp_path):
    checkpoints = folder_with(tmp_path, 1)
    params = make_state(1).params
    params["decoder"]["query"] = jnp.zeros((9, 3, 4))
    with pytest.raises(
        ValueError, match=r"params/decoder/query: saved \(2, 3, 4\) float32, expected \(9, 3, 4\)"
    ):
        checkpoints.restore_parameters("last", abstract(params))
    params = make_state(1).params
    params["logits"] = {"kernel": params.pop("embedding")["table"].astype(jnp.float32)}
    with pytest.raises(ValueError) as error:
        checkpoints.restore_parameters("last", abstract(params))
    assert "params/embedding/table: saved (5, 3) bfloat16, expected nothing" in str(error.value)
    assert "params/logits/kernel: saved nothing, expected (5, 3) float32" in str(error.value)


def test_average_is_the_mean_over_the_newest_whole_ones(tmp_path):
    checkpoints = folder_with(tmp_path, 1, 2, 3, 4)
    flip_a_bit(tmp_path / "3")
    params = abstract(make_state(0).params)
    averaged = checkpoints.average(2, params)
    assert averaged is not None
    assert averaged[0] == 4
    for mean, two, four in zip(
        *(
            jax.tree.leaves(tree)
            for tree in (averaged[1], make_state(2).params, make_state(4).params)
        ),
        strict=True,
    ):
        expected = np.mean([np.asarray(two, np.float64), np.asarray(four, np.float64)], axis=0)
        np.testing.assert_array_equal(mean, expected.astype(mean.dtype))
    alone = checkpoints.average(1, params)
    assert alone is not None
    assert bits(alone[1]) == bits(make_state(4).params)
    assert Checkpoints(tmp_path / "none", keep_last=1, best_metric="").average(2, params) is None


def save_with_average(directory: Path, *steps: int) -> Checkpoints:
    """Checkpoints of these steps, whose parameters are 0 and whose averages are 2^step."""
    checkpoints = Checkpoints(directory, keep_last=9, best_metric="loss")
    for step in steps:
        state = {
            name: {"head": {"kernel": np.full(3, value, np.float32)}}
            for name, value in (("params", 0.0), ("ema_params", 2.0**step))
        }
        checkpoints.save(step, state, {}, {}, "", {"loss": -step}, scheduled=True)
    checkpoints.close()
    return Checkpoints(directory, keep_last=9, best_metric="loss")


def test_the_moving_average_is_what_is_read_where_there_is_one(tmp_path):
    checkpoints = save_with_average(tmp_path / "checkpoints", 1, 2, 3)
    params = {"head": {"kernel": jax.ShapeDtypeStruct((3,), jnp.float32)}}

    def only(found):
        (leaf,) = jax.tree.leaves(found)
        assert np.all(leaf == leaf[0])
        return leaf[0]

    for which, expected in (("last", 8), ("best", 8), (1, 2)):
        found = checkpoints.restore_parameters(which, params)
        assert found is not None and only(found[1]) == expected
    averaged = checkpoints.average(2, params)
    assert averaged is not None and only(averaged[1]) == (4 + 8) / 2
    folder = tmp_path / "checkpoints" / "2"
    assert only(checkpoint.restore_parameters_from(folder, params)[1]) == 4
    zeros = {"head": {"kernel": jnp.zeros(3)}}
    assert only(checkpoint.init_from(tmp_path, zeros)[0]) == 8
    assert only(checkpoint.init_from(folder, zeros)[0]) == 4
    with pytest.raises(ValueError, match=r"ema_params/head/kernel: saved \(3,\)"):
        checkpoints.restore_parameters("last", {"head": {"kernel": jnp.zeros(4)}})


def test_init_from_takes_what_fits_and_says_what_became_of_the_rest(tmp_path):
    folder_with(tmp_path / "checkpoints", 3, 4)
    fresh = {
        "decoder": {"query": jnp.ones((2, 3, 4), jnp.bfloat16)},  # of another type
        "embedding": {"table": jnp.ones((6, 3))},  # of another shape
        "logits": {"kernel": jnp.ones((3, 6))},  # not there
    }
    saved = make_state(4).params
    for path, step in ((tmp_path, 4), (tmp_path / "checkpoints" / "3", 3)):
        params, report = checkpoint.init_from(path, fresh)
        taken = make_state(step).params["decoder"]["query"].astype(jnp.bfloat16)
        assert jax.tree.structure(params) == jax.tree.structure(fresh)
        assert bits(params) == bits(fresh | {"decoder": {"query": taken}})
        assert report == checkpoint.InitReport(
            checkpoint=str(tmp_path / "checkpoints" / str(step)),
            taken=("decoder/query",),
            new=("embedding/table", "logits/kernel"),
            left={"embedding/table": "its shape (5, 3) is not (6, 3)"},
        )
    _, report = checkpoint.init_from(tmp_path, {"decoder": saved["decoder"]})
    assert report.left == {"embedding/table": "no such parameter"}
    text = checkpoint.format_report(report)
    assert "1 parameters taken, 0 new, 1 left" in text
    assert all(path in text for path in (*report.taken, *report.new, *report.left))
    assert report.left["embedding/table"] in text


def test_init_from_takes_the_head_of_the_same_labels_alone(tmp_path):
    """Heads of as many other labels have the same shape, and mean something else."""
    state = make_state(4).params
    params = {"encoder": state["decoder"], "label_head": {"labels": jnp.ones((3, 2))}}
    checkpoints = checkpoint.Checkpoints(tmp_path / "checkpoints", keep_last=1, best_metric="")
    run = {"streams": {}, "config": {}, "fingerprint": "", "metrics": {}}
    checkpoints.save(1, {"params": params}, **run, scheduled=True)
    checkpoints.close()
    (tmp_path / "labels.json").write_text('["no", "yes"]')
    _, report = checkpoint.init_from(tmp_path, params, labels=("no", "yes"))
    assert report.taken == ("encoder/query", "label_head/labels")
    _, report = checkpoint.init_from(tmp_path, params, labels=("yes", "no"))
    assert report.taken == ("encoder/query",) and report.new == ("label_head/labels",)
    assert report.left == {"label_head/labels": "it is of other labels"}


def test_init_from_nothing_is_refused(tmp_path):
    folder_with(tmp_path / "checkpoints", 1)
    with pytest.raises(ValueError, match="embedding/table: no such parameter"):
        checkpoint.init_from(tmp_path, {"table": jnp.ones(3)})
    with pytest.raises(FileNotFoundError, match="neither a work directory nor a whole checkpoint"):
        checkpoint.init_from(tmp_path / "none", {})
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        checkpoint.init_from(tmp_path / "empty", {})
    flip_a_bit(tmp_path / "checkpoints" / "1")
    for path in (tmp_path, tmp_path / "checkpoints" / "1"):
        with pytest.raises(FileNotFoundError, match="whole"):
            checkpoint.init_from(path, make_state(1).params)


def test_full_disk_leaves_older_checkpoints_and_one_clear_message(tmp_path, monkeypatch):
    checkpoints = folder_with(tmp_path, 1, keep_last=1)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full)
        save(checkpoints, 2)
        with pytest.raises(OSError, match="no space left.*step 2.*older checkpoints") as error:
            checkpoints.wait()
    assert error.value.errno == errno.ENOSPC
    assert names(tmp_path) == {"1"}
    save(checkpoints, 3)  # there is space again
    checkpoints.close()
    assert names(tmp_path) == {"3"}


def test_errors_of_the_background_surface_at_the_next_call(tmp_path, monkeypatch):
    checkpoints = folder_with(tmp_path, 1)

    def fail(folder):
        raise PermissionError("read-only")

    monkeypatch.setattr(checkpoint, "_write_manifest", fail)
    for call in (lambda: save(checkpoints, 3), checkpoints.steps, checkpoints.close):
        save(checkpoints, 2)
        with pytest.raises(RuntimeError, match="step 2 was not saved: read-only"):
            call()
    assert names(tmp_path) == {"1"}


# Saves 1, then 2, and kills itself when saving 2 comes to the given operation.
KILLED = """
import os, signal, sys
import numpy as np
from transformer_jax.checkpoint.checkpoints import Checkpoints

directory, operation, target = sys.argv[1:]
checkpoints = Checkpoints(directory, keep_last=1, best_metric="")
def save(step):
    state = {"params": {"table": np.full((64, 64), step, np.float32)}}
    checkpoints.save(step, state, {}, {}, "data-1", {}, scheduled=True)
    checkpoints.wait()
save(1)
def kill(event, arguments):
    if event == operation and any(str(value).endswith(target) for value in arguments):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
save(2)
"""


def test_killed_halfway_leaves_only_whole_or_ignored_checkpoints(tmp_path):
    moments = {
        ("open", "manifest.json"): {"1", "2.tmp"},  # not wholly written
        ("os.rmdir", ""): {"1.tmp", "2"},  # the old one half removed
    }
    killed = {}
    for operation, target in moments:
        killed[operation, target] = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / operation), operation, target],
            env=os.environ | {"PYTHONPATH": str(Path(checkpoint.__file__).parents[2])},
        )
    for moment, process in killed.items():
        assert process.wait() == -signal.SIGKILL
        directory = tmp_path / moment[0]
        assert names(directory) == moments[moment]
        checkpoints = Checkpoints(directory, keep_last=1, best_metric="")
        wanted = {"params": {"table": jax.ShapeDtypeStruct((64, 64), jnp.float32)}}
        restored = checkpoints.restore("last", wanted)
        assert restored is not None
        assert (restored.state["params"]["table"] == restored.step).all()
        # The next save clears what is left.
        save(checkpoints, 3)
        checkpoints.close()
        assert names(directory) == {"3"}


def test_work_directory_has_one_process_at_a_time(tmp_path, monkeypatch):
    code = (
        "import sys; from transformer_jax.checkpoint.checkpoints import lock_workdir;"
        "lock_workdir(sys.argv[1]); print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(checkpoint.__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(RuntimeError, match=f"in use by process {holder.pid} on"):
        checkpoint.lock_workdir(tmp_path)
    holder.kill()
    holder.communicate()
    met = []
    monkeypatch.setattr(hosts, "gather", lambda name, text: met.append(name))
    checkpoint.lock_workdir(tmp_path)
    checkpoint.lock_workdir(tmp_path)
    assert met == ["lock", "lock"]  # as the other hosts do, which hold no lock
    assert str(os.getpid()) in (tmp_path / ".lock").read_text()


def test_hosts_that_share_no_work_directory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "index", lambda: 1)
    with pytest.raises(FileNotFoundError, match=f"host 1 does not see .* into {tmp_path}: .*share"):
        checkpoint.lock_workdir(tmp_path)
    (tmp_path / ".lock").touch()  # by the first
    checkpoint.lock_workdir(tmp_path)
