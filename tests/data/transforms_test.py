import itertools
import math

import numpy as np
import pytest

from transformer_jax.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, train_tokenizer
from transformer_jax.data.transforms import TooLong, encode, mask_tokens

BYTES = train_tokenizer("bytes", [], 0)
TEXTS = ["the cat sat", "", "a", "dogs\nran off", "abcdefgh" * 9]
TAGGED = {
    "words": [["the", "cat", "sat"], ["go"], ["a", "b c", "", "d"], ["unbelievable", "!"]],
    "tags": [["DET", "NOUN", "VERB"], ["VERB"], ["DET", "NOUN", "X", "NOUN"], ["NOUN", "X"]],
}
TAGS = ("X", "NOUN", "VERB", "DET")


def columns(
    examples, objective, labels=(), *, tokenizer=BYTES, limit=1000, too_long: TooLong = "drop"
):
    limits = dict(max_source_length=limit, max_target_length=limit)
    return encode(examples, tokenizer, objective, labels, **limits, too_long=too_long)


@pytest.mark.parametrize("limit", [3, 7, 12, 100])
def test_the_pieces_of_documents_joined_are_the_documents(limit):
    encoded, too_long = columns({"text": TEXTS}, "causal_lm", limit=limit)
    assert too_long == 0
    assert max(map(len, encoded["targets"])) <= limit
    joined = list(itertools.chain.from_iterable(encoded["targets"]))
    assert joined == [i for ids in BYTES.encode(TEXTS) for i in [*ids, EOS_ID]]
    # Only the last piece of a document is shorter than the limit.
    assert len(encoded["targets"]) == sum(-(-(len(text) + 1) // limit) for text in TEXTS)


@pytest.mark.parametrize("limit", [3, 7, 12, 100])
def test_masked_pieces_stand_between_bos_and_eos(limit):
    encoded, too_long = columns({"text": TEXTS}, "masked_lm", limit=limit)
    assert too_long == 0
    assert set(encoded) == {"inputs"}
    assert all(row[0] == BOS_ID and row[-1] == EOS_ID for row in encoded["inputs"])
    assert {len(row) for row in encoded["inputs"]} <= set(range(3, limit + 1))
    joined = [i for row in encoded["inputs"] for i in row[1:-1]]
    assert joined == list(itertools.chain.from_iterable(BYTES.encode(TEXTS)))


def test_documents_need_room():
    for objective, limit in [("masked_lm", 2), ("causal_lm", 0)]:
        with pytest.raises(ValueError, match="data.max_.*_length leaves no room"):
            columns({"text": TEXTS}, objective, limit=limit)


def test_a_text_has_its_label_at_bos_alone():
    names = ["good", "bad", "bad", "good", "good"]
    encoded, _ = columns({"text": TEXTS, "label": names}, "classification", ("bad", "good"))
    for text, name, row, labels in zip(
        TEXTS, names, encoded["inputs"], encoded["labels"], strict=True
    ):
        assert row == [BOS_ID, *BYTES.encode([text])[0], EOS_ID]
        assert labels == [1 + ("bad", "good").index(name), *[0] * (len(row) - 1)]


@pytest.mark.parametrize("kind", ["bytes", "words", "bpe"])
def test_every_word_has_one_label_at_its_first_token(kind):
    texts = [" ".join(words) for words in TAGGED["words"][:2]]  # the others are partly unknown
    tokenizer = train_tokenizer(kind, texts, 30)
    encoded, too_long = columns(TAGGED, "tagging", TAGS, tokenizer=tokenizer)
    assert too_long == 0
    for words, tags, row, labels in zip(
        TAGGED["words"], TAGGED["tags"], encoded["inputs"], encoded["labels"], strict=True
    ):
        assert (row[0], row[-1]) == (BOS_ID, EOS_ID)
        assert len(labels) == len(row)
        assert labels[0] == labels[-1] == 0
        starts = np.flatnonzero(labels)
        assert [TAGS[labels[start] - 1] for start in starts] == tags
        pieces = [row[a:b] for a, b in itertools.pairwise([*starts, len(row) - 1])]
        assert pieces == tokenizer.encode_words([words])[0]


def test_too_long_sentences_are_left_out_or_cut_and_counted():
    whole, _ = columns(TAGGED, "tagging", TAGS)
    lengths = [len(row) for row in whole["inputs"]]
    limit = lengths[2]  # fits exactly; the first and the last are longer
    assert sum(length > limit for length in lengths) == 2
    dropped, too_long = columns(TAGGED, "tagging", TAGS, limit=limit)
    assert too_long == 2
    for name, rows in dropped.items():
        kept = [row for row, length in zip(whole[name], lengths, strict=True) if length <= limit]
        assert rows == kept
    cut, too_long = columns(TAGGED, "tagging", TAGS, limit=limit, too_long="truncate")
    assert too_long == 2
    for name, end in [("inputs", EOS_ID), ("labels", 0)]:
        beginnings = [[*row[: min(limit, len(row)) - 1], end] for row in whole[name]]
        assert cut[name] == beginnings


@pytest.mark.parametrize("objective", ["classification", "tagging"])
def test_an_unknown_label_is_named(objective):
    examples = TAGGED | {"text": ["a", "b"], "label": ["NOUN", "VERB"]}
    with pytest.raises(ValueError, match="'VERB' is none of those known: DET, NOUN, X"):
        columns(examples, objective, ("DET", "NOUN", "X"))


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


def mask(example, seed=0, rate=RATE):
    rng = np.random.default_rng(seed)
    return mask_tokens(example, rng, mask_rate=rate, mask_id=MASK_ID)


def assert_share(found, n, probability):
    """Five standard deviations of the binomial distribution: fails by chance once in a million."""
    assert abs(found - n * probability) < 5 * math.sqrt(n * probability * (1 - probability))


def test_masks_are_eighty_ten_ten_of_fifteen_percent():
    example = documents(200, 502)
    masked = mask(example)
    inputs, shown, targets = example["inputs"], masked["inputs"], masked["targets"]
    chosen = targets != PAD_ID
    n = int(chosen.sum())
    assert_share(n, 200 * 500, RATE)
    np.testing.assert_array_equal(targets[chosen], inputs[chosen])
    np.testing.assert_array_equal(shown[~chosen], inputs[~chosen])
    assert not chosen[:, [0, -1]].any()  # neither bos nor eos
    assert_share((shown[chosen] == MASK_ID).sum(), n, 0.8)
    # A random token is the original one in one of MASK_ID - 4 cases.
    assert_share((shown[chosen] == inputs[chosen]).sum(), n, 0.1 + 0.1 / (MASK_ID - 4))
    random_tokens = shown[chosen & (shown != inputs) & (shown != MASK_ID)]
    assert random_tokens.min() > UNK_ID
    assert_share((random_tokens < (UNK_ID + 1 + MASK_ID) / 2).sum(), len(random_tokens), 0.5)
    assert shown.dtype == targets.dtype == np.int32


def test_random_tokens_are_all_the_ordinary_ones():
    example = {"inputs": np.full(4000, 5, np.int32), "inputs_positions": np.arange(4000)}
    rng = np.random.default_rng(0)
    masked = mask_tokens(example, rng, mask_rate=1.0, mask_id=9)
    assert (masked["targets"] == 5).all()
    assert set(masked["inputs"].tolist()) == {4, 5, 6, 7, 8, 9}


def test_every_packed_example_has_a_token_to_predict_where_it_has_one_at_all():
    lengths = [3, 2, 9, 3, 1, 5]  # 2: bos and eos alone; the last ones are padding
    rows = [[BOS_ID, *range(4, 4 + length - 2), EOS_ID][:length] for length in lengths]
    tokens = np.array([*itertools.chain.from_iterable(rows), PAD_ID], np.int32)
    positions = np.array([*itertools.chain.from_iterable(map(range, lengths)), 0], np.int32)
    example = {"inputs": tokens.reshape(2, -1), "inputs_positions": positions.reshape(2, -1)}
    for seed in range(20):
        targets = mask(example, seed, rate=0.0)["targets"].ravel()
        parts = np.split(targets, np.cumsum(lengths))
        assert [np.count_nonzero(part) for part in parts] == [1, 0, 1, 1, 0, 1, 0]
    all_of_them = mask(example, rate=1.0)["targets"]
    np.testing.assert_array_equal(all_of_them, np.where(tokens > BOS_ID, tokens, 0).reshape(2, -1))


def test_masks_follow_the_generator_and_not_the_padding():
    example = {name: values[0] for name, values in documents(1, 60).items()}
    padded = {name: np.pad(values, (0, 20)) for name, values in example.items()}
    masked, longer = mask(example), mask(padded)
    for name in ("inputs", "targets"):
        np.testing.assert_array_equal(longer[name], np.pad(masked[name], (0, 20)))
    assert (mask(example, seed=1)["targets"] != masked["targets"]).any()
    np.testing.assert_array_equal(mask(example)["inputs"], masked["inputs"])
