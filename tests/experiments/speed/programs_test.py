"""This project's works do what they are called after; sentences are packed as flax packs them."""

import importlib

import numpy as np
import pytest

from experiments.speed.peers import SCRIPTS
from tests.experiments.speed import tiny
from transformer_jax.devices.mesh import use


def program(name):
    """A script of experiments/speed/programs as a module; they find each other as in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        return importlib.import_module(name)


@pytest.mark.long
@pytest.mark.parametrize("changes", [tiny.SOURCE, tiny.DECODER], ids=["both", "decoder_only"])
def test_every_prompt_gets_all_of_its_tokens(changes, tmp_path):
    """The work itself checks how many there are."""
    run = tiny.run(changes | {"decode.method": "greedy", "model.num_layers": 1}, tmp_path)
    with use(run.mesh):
        program("ours")._decode(run, tokens=5)()


def test_pairs_come_out_of_a_batch_as_they_went_into_it():
    flax_wmt = program("flax_wmt")
    pairs = [([5, 6], [7]), ([8], [9, 10]), ([3, 3], [4])]
    rows = flax_wmt.packed(pairs, 4, 3)
    batch = {name.replace("segmentation", "segment_ids"): rows[name] for name in rows}
    assert flax_wmt.unpacked(batch) == pairs


def test_a_row_is_closed_by_the_first_pair_that_does_not_fit():
    lengths = np.random.default_rng(0).integers(1, 8, (50, 2))
    pairs = [(list(range(1, m + 1)), list(range(1, n + 1))) for m, n in lengths.tolist()]
    rows = program("flax_wmt").packed(pairs, 16, 12)
    room = {"inputs": 16, "targets": 12}
    firsts = np.cumsum([0, *rows["targets_segmentation"].max(axis=1)])  # pairs of earlier rows
    assert firsts[-1] == len(pairs)
    for row, after in enumerate(firsts[1:-1].tolist()):
        used = {side: np.count_nonzero(rows[side][row]) for side in room}
        following = dict(zip(room, map(len, pairs[after]), strict=True))
        assert any(used[side] + following[side] > room[side] for side in room)
    for side in room:
        starts = rows[side] == 1  # each text here begins with a 1
        assert (rows[f"{side}_position"][starts] == 0).all()
