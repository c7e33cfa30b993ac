"""How far runs of one config differ: run to run, on other devices, and on several hosts."""

import jax
import numpy as np
import pytest

from tests.whole.command_line import records, results
from tests.whole.multi_host_test import start
from transformer_jax.checkpoint.checkpoints import restore
from transformer_jax.config.build import build
from transformer_jax.config.load import load

pytestmark = pytest.mark.faults

# Hosts and the devices of each
LAYOUTS = {"1 device": (1, 1), "8 devices": (1, 8), "2 hosts of 4 devices": (2, 4)}


@pytest.fixture
def folder(tmp_path):
    """A folder with a text of random words."""
    letters = np.random.default_rng(0).integers(97, 123, (400, 6), np.uint8)
    (tmp_path / "text").write_text("\n".join(word.tobytes().decode() for word in letters))
    return tmp_path


def train(workdir, layout, *flags):
    """The work directory of a run on such devices, which has ended in order."""
    assert {process.wait() for process in start(workdir, *LAYOUTS[layout], *flags)} <= {0, 1}
    assert results(workdir)["status"] in ("finished", "plateaued", "diverged")
    return workdir


def numbers(workdir):
    """The losses of all steps, and the parameters at the end."""
    losses = [record["train/loss"] for record in records(workdir) if "train/loss" in record]
    run = build(load(str(workdir / "config.json")), workdir)
    newest = run.checkpoints(workdir).find("last")
    assert newest is not None
    params = restore(newest, run.abstract_state).state.params
    return np.array(losses), list(map(np.asarray, jax.tree.leaves(params)))


def furthest(ours, theirs):
    """The largest difference of two arrays, as a share of the largest number."""
    return float(np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs)))


def test_a_mesh_gives_the_same_bits_again_and_others_the_same_up_to_rounding(folder, capsys):
    by_layout = {}
    for layout in LAYOUTS:
        first, second = (train(folder / f"{layout}.{attempt}", layout) for attempt in "ab")
        assert records(first) == records(second), layout
        by_layout[layout], (_, again) = numbers(first), numbers(second)
        assert all(map(np.array_equal, by_layout[layout][1], again)), layout
    losses, params = by_layout["1 device"]
    for layout, (own_losses, own_params) in by_layout.items():
        apart = furthest(own_losses, losses), max(map(furthest, own_params, params))
        with capsys.disabled():
            print(f"\n{layout}: losses differ by {apart[0]:.1e}, parameters by {apart[1]:.1e}")
        assert apart[0] < 1e-5 and apart[1] < 1e-3


@pytest.mark.parametrize(
    ("bad_step", "bad_steps"), [("skip", list(range(2, 25))), ("restore", 10 * [2])]
)
def test_two_hosts_agree_on_which_steps_are_bad(folder, bad_step, bad_steps):
    """The first update ruins all parameters, and is saved: they are finite."""
    keys = f"train.bad_step={bad_step} optimizer.learning_rate=1e30 checkpoint.every=1".split()
    workdir = train(folder / "pair", "2 hosts of 4 devices", *[f"--config.{key}" for key in keys])
    assert results(workdir)["bad_steps"] == bad_steps
    assert numbers(workdir)[0].shape == (1,)
