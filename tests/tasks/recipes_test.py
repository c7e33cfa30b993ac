"""What each task makes of its examples, prompts and batches, and what all tasks have in common."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from tests.data.datasets import TOKENIZED, rows_of
from tests.data.prepared_sets import make_arrays
from tests.training.reference import SETTINGS
from transformer_jax.data.prepare.recipe import Drawing, Limits
from transformer_jax.data.prepare.tokenizer import BOS_ID, EOS_ID, train_tokenizer
from transformer_jax.data.serve import streams
from transformer_jax.data.serve.batches import eval_batches
from transformer_jax.data.serve.streams import shuffled_streams
from transformer_jax.models.family import Outputs
from transformer_jax.tasks import TASKS

BYTES = train_tokenizer("bytes", [], 0)
TEXTS = ["the cat sat", "", "a", "dogs\nran off", "abcdefgh" * 5]
WORDS = [["the", "cat", "sat"], ["go"], ["a", "b c", "", "d"], ["unbelievable", "!"], []]
# The columns that tasks read, and the labels of those that have some.
EXAMPLES = {
    "source": ["ab", "", "abcdef", "a", "abcd"],
    "target": ["x", "y", "z", "0123456", "wxyz"],
    "text": TEXTS,
    "label": ["good", "bad", "bad", "good", "good"],
    "words": WORDS,
    "tags": [["DET", "NOUN", "VERB"], ["VERB"], ["DET", "NOUN", "X", "NOUN"], ["NOUN", "X"], []],
}
LABELS = {"label": ("bad", "good"), "tags": ("X", "NOUN", "VERB", "DET")}
ROOMY = Limits(44, 48, "drop")
LENGTHS = {"source": 50, "target": 52}  # of rows, by side
DRAWING = Drawing(0.3, 3.0, ROOMY, training=True)


def labels_of(recipe):
    return LABELS[recipe.labels] if recipe.labels else ()


def tokenizer_of(recipe):
    return train_tokenizer("bytes", [], 0, recipe.extra_tokens)


def encode(task, limits=ROOMY, *, tokenizer=BYTES, **changes):
    recipe = TASKS[task].recipe
    examples = {name: (EXAMPLES | changes)[name] for name in recipe.reads}
    return recipe.encode(examples, tokenizer, labels_of(recipe), limits)


def prompt(task, lines, limits=ROOMY):
    recipe = TASKS[task].recipe
    return recipe.prompt(lines, BYTES, labels_of(recipe), limits)


# What every task over tokens owes to data, training and evaluation


def arrays_of(recipe):
    return make_arrays([EXAMPLES], tokenizer_of(recipe), recipe, labels_of(recipe), ROOMY)


def draw_of(recipe):
    return recipe.draw(tokenizer_of(recipe), DRAWING) if recipe.draw else None


def corrupt_of(recipe):
    return recipe.corrupt(tokenizer_of(recipe), DRAWING) if recipe.corrupt else None


def streams_of(recipe, arrays, *, packing, batch_size=4, seed=0):
    return shuffled_streams(
        [arrays],
        recipe.columns,
        {name: LENGTHS[column.side] for name, column in recipe.columns.items()},
        batch_size=batch_size,
        streams=2,
        packing=packing,
        seed=seed,
        draw=draw_of(recipe),
        corrupt=corrupt_of(recipe),
    )


def scored_batches(recipe, arrays, batch_size):
    functions = {"draw": draw_of(recipe), "corrupt": corrupt_of(recipe)}
    return eval_batches([arrays], recipe.columns, batch_size=batch_size, **functions)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("task", TOKENIZED)
def test_training_batches_are_as_announced(task, packing, monkeypatch):
    monkeypatch.setattr(streams, "PACKING_BINS", 2)
    recipe = TASKS[task].recipe
    expected = {key: (4, LENGTHS[column.side]) for key, column in recipe.batch_columns().items()}
    batches = streams_of(recipe, arrays_of(recipe), packing=packing)
    for batch in itertools.islice(batches, 3):
        assert {key: values.shape for key, values in batch.items()} == expected
        assert {values.dtype for values in batch.values()} == {np.dtype(np.int32)}


@pytest.mark.parametrize("task", TOKENIZED)
def test_padding_weighs_nothing_in_the_loss(task):
    """Neither at the end of a row nor in a row without an example; everything else may count."""
    row = TASKS[task]
    ((batch, numbers),) = scored_batches(row.recipe, arrays_of(row.recipe), 16)
    inputs: Any = batch
    assert (numbers < 0).any()
    name, column = list(row.recipe.columns.items())[-1]
    real = batch[f"{column.along or name}_segment_ids"] > 0
    outputs = np.random.default_rng(0).normal(size=(*real.shape, 270)).astype(np.float32)

    @jax.jit
    def measured(outputs):
        def loss(outputs):
            value, weight, sums = row.bound_loss(SETTINGS)(Outputs(outputs), inputs)
            return value, (weight, sums)

        return jax.value_and_grad(loss, has_aux=True)(outputs)

    (value, (weight, sums)), gradient = jax.device_get(measured(outputs))
    assert set(sums) == set(row.metrics)
    assert 0 < weight <= real.sum() and value > 0
    assert (gradient[~real] == 0).all()
    # The weight counts the places that have a gradient.
    assert (gradient != 0).any(axis=-1).sum() == weight
    changed = jax.device_get(measured(np.where(real[..., None], outputs, np.float32(9))))
    jax.tree.map(np.testing.assert_array_equal, changed, ((value, (weight, sums)), gradient))


# Drawn anew for each epoch of training, and once for an evaluation

DRAWN = [name for name in TOKENIZED if TASKS[name].recipe.draw or TASKS[name].recipe.corrupt]
LONG = {"text": [f"{n} the cat sat on the mat"[: 20 + n % 7] for n in range(8)]}


@pytest.mark.parametrize("task", DRAWN)
def test_each_epoch_and_seed_draws_anew_and_evaluation_always_the_same(task):
    """Eight examples, each in a row: every batch is an epoch."""
    recipe = TASKS[task].recipe
    arrays = make_arrays([LONG], tokenizer_of(recipe), recipe, (), ROOMY)

    def epochs(**changes):
        batches = streams_of(recipe, arrays, packing=False, batch_size=8, **changes)
        return [set(map(bytes, next(batches)["inputs"])) for _ in range(3)]

    sets = epochs()
    assert sets == epochs()
    for one, other in itertools.combinations([*sets, epochs(seed=1)[0]], 2):
        assert len(one & other) < 4
    # Rows of other widths, in other company
    once, again = (rows_of(scored_batches(recipe, arrays, size)) for size in (8, 3))
    assert once == again and len(once) == len(LONG["text"])


@pytest.mark.parametrize("task", TOKENIZED)
def test_pieces_change_nothing(task):
    recipe = TASKS[task].recipe
    at_once = arrays_of(recipe)
    assert len(at_once) > 3
    pieces = [{name: EXAMPLES[name][n : n + 2] for name in recipe.reads} for n in range(0, 5, 2)]
    piecewise = make_arrays(pieces, tokenizer_of(recipe), recipe, labels_of(recipe), ROOMY)
    assert list(piecewise.columns) == list(recipe.stored) == list(at_once.columns)
    for name, tokens in at_once.columns.items():
        np.testing.assert_array_equal(piecewise.columns[name][:], tokens[:])
        np.testing.assert_array_equal(piecewise.offsets[name][:], at_once.offsets[name][:])


# Encoding


def test_in_evaluation_too_long_pairs_are_truncated_and_counted():
    columns, too_long = encode("translation", Limits(5, 6, "truncate"))
    assert too_long == [2, 3]
    assert list(map(BYTES.decode, columns["inputs"])) == ["ab", "", "abcd", "a", "abcd"]
    assert list(map(BYTES.decode, columns["targets"])) == ["x", "y", "z", "012345", "wxyz"]
    assert all(row[-1] == EOS_ID for row in columns["inputs"])
    # A target that is cut does not end there, and must not be scored as if it did.
    ends = [row[-1] == EOS_ID for row in columns["targets"]]
    assert ends == [True, True, True, False, True]


def test_of_several_right_targets_the_first_is_learned_and_translation_refuses_them():
    targets = [["x", "long"], "y", "z", ["a", "b"], "c"]
    several, _ = encode("text_to_text", target=targets)
    one, _ = encode("translation", target=["x", "y", "z", "a", "c"])
    assert several == one
    with pytest.raises(ValueError, match="several targets.*'text_to_text' takes"):
        encode("translation", target=targets)


@pytest.mark.parametrize("limit", [3, 7, 12, 100])
def test_the_pieces_of_documents_joined_are_the_documents(limit):
    columns, too_long = encode("causal_lm", Limits(0, limit, "drop"))
    assert not too_long
    assert max(map(len, columns["targets"])) <= limit
    joined = list(itertools.chain.from_iterable(columns["targets"]))
    assert joined == [i for ids in BYTES.encode(TEXTS) for i in [*ids, EOS_ID]]
    # Only the last piece of a document is shorter than the limit.
    assert len(columns["targets"]) == sum(-(-(len(text) + 1) // limit) for text in TEXTS)


@pytest.mark.parametrize("limit", [3, 7, 12, 100])
def test_masked_pieces_stand_between_bos_and_eos(limit):
    columns, too_long = encode("masked_lm", Limits(limit, 0, "drop"))
    assert not too_long
    assert set(columns) == {"inputs"}
    assert all(row[0] == BOS_ID and row[-1] == EOS_ID for row in columns["inputs"])
    assert {len(row) for row in columns["inputs"]} <= set(range(3, limit + 1))
    joined = [i for row in columns["inputs"] for i in row[1:-1]]
    assert joined == list(itertools.chain.from_iterable(BYTES.encode(TEXTS)))


def test_a_text_has_its_label_at_bos_alone():
    columns, _ = encode("classification")
    for text, name, row, labels in zip(
        TEXTS, EXAMPLES["label"], columns["inputs"], columns["labels"], strict=True
    ):
        assert row == [BOS_ID, *BYTES.encode([text])[0], EOS_ID]
        assert labels == [1 + ("bad", "good").index(name), *[0] * (len(row) - 1)]


@pytest.mark.parametrize("kind", ["bytes", "words", "bpe"])
def test_every_word_has_one_label_at_its_first_token(kind):
    texts = [" ".join(words) for words in WORDS[:2]]  # the others are partly unknown
    tokenizer = train_tokenizer(kind, texts, 30)
    columns, too_long = encode("tagging", tokenizer=tokenizer)
    assert not too_long
    for words, tags, row, labels in zip(
        WORDS, EXAMPLES["tags"], columns["inputs"], columns["labels"], strict=True
    ):
        assert (row[0], row[-1]) == (BOS_ID, EOS_ID)
        assert len(labels) == len(row)
        assert labels[0] == labels[-1] == 0
        starts = np.flatnonzero(labels).tolist()
        assert [LABELS["tags"][labels[start] - 1] for start in starts] == tags
        pieces = [row[a:b] for a, b in itertools.pairwise([*starts, len(row) - 1])]
        assert pieces == tokenizer.encode_words([words])[0]


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_too_long_sentences_are_left_out_or_cut_and_counted(task):
    whole, _ = encode(task)
    lengths = [len(row) for row in whole["inputs"]]
    *_, limit, _, _ = sorted(lengths)  # fits exactly; two are longer
    longer = [number for number, length in enumerate(lengths) if length > limit]
    dropped, too_long = encode(task, Limits(limit, 0, "drop"))
    assert too_long == longer and len(longer) == 2
    for name, rows in dropped.items():
        expected = [
            row for row, length in zip(whole[name], lengths, strict=True) if length <= limit
        ]
        assert rows == expected
    cut, too_long = encode(task, Limits(limit, 0, "truncate"))
    assert too_long == longer
    for name, end in (("inputs", EOS_ID), ("labels", 0)):
        assert cut[name] == [[*row[: min(limit, len(row)) - 1], end] for row in whole[name]]


# Prompts


PROMPTS = {
    "encoder_decoder": lambda ids: [*ids[:7], EOS_ID],
    # To be continued: no eos, and the end of one that is too long.
    "decoder_only": lambda ids: [BOS_ID, *ids[-7:]],
    "encoder_only": lambda ids: [BOS_ID, *ids[:6], EOS_ID],
}


@pytest.mark.parametrize("task", TOKENIZED)
def test_prompts_are_read_as_the_model_was_trained_and_cut_to_its_length(task):
    (expected,) = (PROMPTS[architecture] for architecture in TASKS[task].heads)
    lines = ["ab", "e", "xabcdefgh"]
    columns, too_long = prompt(task, lines, Limits(8, 8, "truncate"))
    line_ids = BYTES.encode([f" {line}" for line in lines] if task == "tagging" else lines)
    assert columns["inputs"] == [expected(ids) for ids in line_ids]
    assert too_long == [2]
    # What lies along another column is as long.
    for name, column in TASKS[task].recipe.columns.items():
        if name in columns and column.along:
            assert list(map(len, columns[name])) == list(map(len, columns[column.along]))
    # Labels are asked for where it was trained to answer: at bos, or at a word's first token.
    for labels in columns.get("labels", []):
        assert np.flatnonzero(labels).tolist() == [int(task == "tagging")]
    assert not any(prompt(task, [])[0].values())


def test_words_to_tag_end_at_blanks_and_tabs_alone():
    columns, _ = prompt("tagging", [" a  b\tc ", "a\u00a0b c"])
    assert [np.count_nonzero(row) for row in columns["labels"]] == [3, 2]
    assert columns["inputs"][0] == [BOS_ID, *BYTES.encode([" a b c"])[0], EOS_ID]


@pytest.mark.parametrize("most", [None, 5, 40])
@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.limit])
def test_a_limit_grows_with_the_prompt_or_falls(task, most):
    """So that its ends tell the longest text of all prompts."""
    limit = TASKS[task].limit
    assert limit is not None
    steps = np.diff(limit(np.arange(1, 31), 7, most))
    assert np.all(steps >= 0) or np.all(steps <= 0)
