"""The masks of masked language modelling, against the probabilities of BERT's procedure."""

import itertools
import math

import numpy as np
import tokenizers

from transformer_jax.data.prepare.recipe import Drawing, Limits
from transformer_jax.data.prepare.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    SpecialIds,
    Tokenizer,
)
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.masked_lm import Masking

RECIPE = TASKS["masked_lm"].recipe
MASK_ID = 1000
RATE = 0.15


def documents(n, length):
    """n rows [bos, ordinary tokens and a few unknown ones, eos] and their positions."""
    tokens = np.random.default_rng(5).integers(UNK_ID, MASK_ID, (n, length), dtype=np.int32)
    tokens[:, 0], tokens[:, -1] = BOS_ID, EOS_ID
    return {
        "inputs": tokens,
        "inputs_positions": np.tile(np.arange(length, dtype=np.int32), (n, 1)),
    }


def mask(batch, seed=0, rate=RATE):
    """The batch as masked for a tokenizer whose last id is the mask's."""
    silent = PAD_ID, EOS_ID, BOS_ID
    masking = Masking(rate, MASK_ID, silent, (*silent, UNK_ID, MASK_ID), MASK_ID + 1)
    return masking(batch, np.random.default_rng(seed))


def assert_share(count, n, probability):
    """Five standard deviations of the binomial distribution: fails by chance once in a million."""
    assert abs(count - n * probability) < 5 * math.sqrt(n * probability * (1 - probability))


def test_masks_are_eighty_ten_ten_of_fifteen_percent():
    batch = documents(200, 502)
    masked = mask(batch)
    inputs, masked_inputs, targets = batch["inputs"], masked["inputs"], masked["targets"]
    places = targets != PAD_ID
    n = int(places.sum())
    assert_share(n, 200 * 500, RATE)
    np.testing.assert_array_equal(targets[places], inputs[places])
    np.testing.assert_array_equal(masked_inputs[~places], inputs[~places])
    assert not places[:, [0, -1]].any()  # neither bos nor eos
    assert_share((masked_inputs[places] == MASK_ID).sum(), n, 0.8)
    # A random token is the original one in one of MASK_ID - 4 cases.
    assert_share((masked_inputs[places] == inputs[places]).sum(), n, 0.1 + 0.1 / (MASK_ID - 4))
    random_tokens = masked_inputs[places & (masked_inputs != inputs) & (masked_inputs != MASK_ID)]
    assert random_tokens.min() > UNK_ID
    assert_share((random_tokens < (UNK_ID + 1 + MASK_ID) / 2).sum(), len(random_tokens), 0.5)
    assert masked_inputs.dtype == targets.dtype == np.int32


def test_every_packed_example_has_a_token_to_predict_where_it_has_one_at_all():
    lengths = [3, 2, 9, 3, 1, 5]  # 2: bos and eos alone; the last ones are padding
    rows = [[BOS_ID, *range(4, 4 + length - 2), EOS_ID][:length] for length in lengths]
    tokens = np.array([*itertools.chain.from_iterable(rows), PAD_ID], np.int32)
    positions = np.array([*itertools.chain.from_iterable(map(range, lengths)), 0], np.int32)
    batch = {"inputs": tokens.reshape(2, -1), "inputs_positions": positions.reshape(2, -1)}
    for seed in range(20):
        targets = mask(batch, seed, rate=0.0)["targets"].ravel()
        parts = np.split(targets, np.cumsum(lengths))
        assert [np.count_nonzero(part) for part in parts] == [1, 0, 1, 1, 0, 1, 0]
    all_of_them = mask(batch, rate=1.0)["targets"]
    np.testing.assert_array_equal(all_of_them, np.where(tokens > BOS_ID, tokens, 0).reshape(2, -1))


def test_a_tokenizers_own_special_ids_are_neither_masked_nor_drawn():
    """They may lie anywhere, as BERT's do."""
    special = SpecialIds(pad=0, eos=102, bos=101, unk=100, mask=103)
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(n): n for n in range(150)}))
    assert RECIPE.draw is not None
    drawing = Drawing(0.5, 3.0, Limits(80, 40, "drop"), training=True)
    draw = RECIPE.draw(Tokenizer(library, special), drawing)
    batch = documents(200, 200)
    batch["inputs"] = np.random.default_rng(0).integers(90, 115, (200, 200), dtype=np.int32)
    masked = draw(batch, np.random.default_rng(1))
    places = masked["targets"] != 0
    assert not np.isin(batch["inputs"][places], [0, 101, 102]).any()
    changed = masked["inputs"][masked["inputs"] != batch["inputs"]]
    assert set(changed) - {103} == set(range(1, 150)) - {100, 101, 102, 103}
    assert (changed == 103).mean() > 0.8
