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
    """The work directory of a run on so many hosts and devices, which has ended in order."""
    processes = start(workdir, *LAYOUTS[layout], *flags)
    assert {process.wait() for process in processes} <= {0, 1}
    assert results(workdir)["status"] in ("finished", "plateaued", "diverged")
    return workdir


def parameters(workdir):
    run = build(load(str(workdir / "config.json")), workdir)
    newest = run.checkpoints(workdir).find("last")
    assert newest is not None
    return [
        np.asarray(x) for x in jax.tree.leaves(restore(newest, run.abstract_state()).state.params)
    ]


def furthest(ours, theirs):
    """The largest difference of two sequences of arrays, as a share of each array's largest."""
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)


def losses(workdir):
    return [
        np.array([record["train/loss"] for record in records(workdir) if "train/loss" in record])
    ]


def test_a_mesh_gives_the_same_bits_again_and_other_meshes_the_same_up_to_rounding(folder, capsys):
    runs = {
        layout: [train(folder / f"{layout}.{attempt}", layout) for attempt in "ab"]
        for layout in LAYOUTS
    }
    for layout, (first, second) in runs.items():
        assert records(first) == records(second), layout
        assert furthest(parameters(first), parameters(second)) == 0.0, layout
    reference, _ = runs["1 device"]
    for layout, (run, _) in runs.items():
        apart = [furthest(f(run), f(reference)) for f in (losses, parameters)]
        with capsys.disabled():
            print(f"\n{layout}: losses differ by {apart[0]:.1e}, parameters by {apart[1]:.1e}")
        assert apart[0] < 1e-5 and apart[1] < 1e-3


@pytest.mark.parametrize("bad_step", ["skip", "restore"])
def test_two_hosts_agree_on_which_spikes_are_bad(folder, bad_step):
    flags = [f"--config.train.{key}" for key in ("spike_threshold=2", "steps=56")]
    flags.append(f"--config.train.bad_step={bad_step}")
    alone, pair = (
        train(folder / layout, layout, *flags) for layout in ("8 devices", "2 hosts of 4 devices")
    )
    assert results(alone)["bad_steps"] == results(pair)["bad_steps"] != []
    assert [record.keys() for record in records(alone)] == [r.keys() for r in records(pair)]
    assert furthest(parameters(alone), parameters(pair)) < 1e-3
