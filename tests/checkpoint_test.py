"""Checkpoints come back bit for bit, or not at all."""

import errno
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

from transformer_jax import checkpoint
from transformer_jax.checkpoint import Checkpoints

STREAMS = {"0": {"next": 3, "buffer": [1, 2]}, "1": {"next": 4, "buffer": []}}


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
    checkpoints.save(step, make_state(step), STREAMS, {"seed": 0}, "data-1", metrics or {})


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


def test_save_copies_before_it_returns(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=1, best_metric="")
    state, streams = make_state(3), {"0": {"next": 1}}
    checkpoints.save(3, state, streams, {}, "data-1", {})
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
    whole = checkpoint.restore_from(moved, abstract(make_state(0)))
    assert whole.step == 1
    assert bits(whole.state) == bits(make_state(1))
    with pytest.raises(FileNotFoundError, match="not a whole checkpoint"):
        checkpoint.restore_from(tmp_path, abstract(make_state(0)))


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
    path = folder / "streams.json"
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
        (truncate, "streams.json has"),
        (remove_manifest, "no manifest.json"),
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
    assert len(warnings) == 1
    assert str(tmp_path / "2") in warnings[0]
    assert reason in warnings[0]

    with pytest.raises(FileNotFoundError, match="2 is broken.*whole checkpoints: 1$"):
        checkpoints.restore(2, abstract(make_state(0)))
    with pytest.raises(FileNotFoundError, match="3 is missing.*whole checkpoints: 1$"):
        checkpoints.restore(3, abstract(make_state(0)))
    # Training comes by again and replaces it.
    save(checkpoints, 2)
    assert checkpoints.steps() == [1, 2]
    checkpoints.close()


def test_a_broken_checkpoint_takes_no_place_among_the_last(tmp_path):
    checkpoints = folder_with(tmp_path, 1, 4, keep_last=2)
    flip_a_bit(tmp_path / "4")
    assert checkpoints.steps() == [1]
    save(checkpoints, 2)
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


# Saves 1, then 2, and kills itself at the n-th file operation of saving 2.
KILLED = """
import os, signal, sys
import numpy as np
from transformer_jax.checkpoint import Checkpoints

directory, n = sys.argv[1], int(sys.argv[2])
checkpoints = Checkpoints(directory, keep_last=1, best_metric="")
def save(step):
    state = {"params": {"table": np.full((64, 64), step, np.float32)}}
    checkpoints.save(step, state, {}, {}, "data-1", {})
    checkpoints.wait()
save(1)
seen = 0
def count(event, arguments):
    global seen
    # The folder's own operations: shutil works with names relative to a descriptor.
    if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "open") and (
        directory in str(arguments[0]) or event in ("os.remove", "os.rmdir")
    ):
        seen += 1
        if seen == n:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
save(2)
print(seen)
"""


def run_killed(directory: Path, n: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(directory), str(n)],
        env=os.environ | {"PYTHONPATH": str(Path(checkpoint.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_killed_at_any_moment_leaves_only_whole_or_ignored_checkpoints(tmp_path):
    unharmed = run_killed(tmp_path / "unharmed", 0)
    output, _ = unharmed.communicate()
    operations = int(output)
    assert names(tmp_path / "unharmed") == {"2"}

    moments = [round(1 + fraction * (operations - 1)) for fraction in (0.3, 0.8, 1)]
    killed = {n: run_killed(tmp_path / str(n), n) for n in moments}
    for n, process in killed.items():
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        directory = tmp_path / str(n)
        assert names(directory) != {"2"}, "killed too late to tell anything"
        checkpoints = Checkpoints(directory, keep_last=1, best_metric="")
        wanted = {"params": {"table": jax.ShapeDtypeStruct((64, 64), jnp.float32)}}
        restored = checkpoints.restore("last", wanted)
        assert restored is not None
        assert (restored.state["params"]["table"] == restored.step).all()
        # The next save clears what is left.
        save(checkpoints, 3)
        checkpoints.close()
        assert names(directory) == {"3"}


def test_work_directory_has_one_process_at_a_time(tmp_path):
    code = (
        "import sys; from transformer_jax.checkpoint import lock_workdir;"
        "lock_workdir(sys.argv[1]); print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(checkpoint.__file__).parents[1])},
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
    checkpoint.lock_workdir(tmp_path)
    checkpoint.lock_workdir(tmp_path)
    assert str(os.getpid()) in (tmp_path / ".lock").read_text()
