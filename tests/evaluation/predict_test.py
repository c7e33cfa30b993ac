"""Predicted classes and vectors of texts, with tiny functions in the place of a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.evaluation import generate as evaluate

CLASSES = 4
# By the number of the example: its tokens, and its labels (class + 1; 0 where there is none).
TOKENS = [[2, 7, 8, 1], [2, 9, 1], [2, 5, 5, 6, 1], [2, 1]]
LABELS = [[0, 3, 1, 0], [0, 4, 0], [0, 1, 0, 2, 0], [0, 0]]


def batch_of(numbers, length):
    """The numbered examples, -1 for a row of padding, whose labels must not matter."""

    def padded(rows, fill):
        rows = [rows[number] if number >= 0 else [fill] for number in numbers]
        return np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int32)

    return {"inputs": padded(TOKENS, 3), "labels": padded(LABELS, 1)}, np.array(numbers)


def one_way():
    return [batch_of([2, 0, -1], 6), batch_of([3, 1, -1], 4)]


def another_way():
    return [batch_of([1, 3, 0, 2], 5)]


def class_of_token(params, batch, rng):
    """Logits that make the class of a token (token + params) modulo the number of classes."""
    assert rng is None
    return jax.nn.one_hot((batch["inputs"] + params) % CLASSES, CLASSES)


@pytest.mark.parametrize("batches", [one_way, another_way])
def test_predictions_are_of_the_labelled_places_in_the_order_of_the_examples(batches):
    predict_step = evaluate.make_predict_step(class_of_token)
    predicted = evaluate.predict(1, batches(), predict_step=predict_step)
    expected = [
        [(token + 1) % CLASSES for token, label in zip(tokens, labels, strict=True) if label]
        for tokens, labels in zip(TOKENS, LABELS, strict=True)
    ]
    assert predicted == expected
    assert [len(row) for row in predicted] == [2, 1, 2, 0]


def test_a_predict_step_is_compiled_once_per_shape():
    shapes = []

    def apply(params, batch, rng):
        shapes.append(batch["inputs"].shape)
        return class_of_token(params, batch, rng)

    predict_step = evaluate.make_predict_step(apply)
    for _ in range(2):
        evaluate.predict(1, one_way(), predict_step=predict_step)
    assert shapes == [(3, 6), (3, 4)]


def test_nothing_is_predicted_of_no_batches():
    assert evaluate.predict(1, [], predict_step=evaluate.make_predict_step(class_of_token)) == []


@pytest.mark.parametrize("batches", [one_way, another_way])
def test_vectors_come_in_the_order_of_the_examples(batches):
    """Each vector is that of the row's first token; the others hold what must not be read."""

    def embed_step(params, batch):
        total = jnp.sum(batch["inputs"], axis=1, keepdims=True)
        vectors = params * jnp.stack([total, -total], axis=-1)
        return jnp.where(jnp.arange(batch["inputs"].shape[1])[None, :, None] == 0, vectors, 999)

    vectors = evaluate.embed(jnp.float32(0.5), batches(), embed_step=embed_step)
    expected = [[sum(tokens) / 2, -sum(tokens) / 2] for tokens in TOKENS]
    np.testing.assert_array_equal(vectors, np.array(expected, np.float32))


def test_vectors_need_batches():
    with pytest.raises(ValueError, match="no batches"):
        evaluate.embed(0.0, [], embed_step=lambda params, batch: jnp.zeros((1, 1, 1)))


def test_classifications_are_scored_under_flat_names():
    scores = evaluate.score_classification(["a", "b", "b", "a"], ["a", "b", "a", "b"])
    assert scores == {"accuracy": 0.5, "f1": 0.5, "matthews": 0.0}
    right = evaluate.score_classification(["a", "b"], ["a", "b"])
    assert right == {"accuracy": 1.0, "f1": 1.0, "matthews": 1.0}


def test_tags_are_scored_under_flat_names():
    scores = evaluate.score_tagging([["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]])
    f1_of_verb = 2 * 1 / (1 + 2)
    expected = {"accuracy": 2 / 3, "f1": (1 + 0 + f1_of_verb) / 3, "exact_match": 1 / 2}
    assert scores == pytest.approx(expected)


def test_span_tags_are_scored_as_spans_too():
    tags = [["B-a", "I-a", "O"], ["O", "O"]]
    assert evaluate.score_tagging(tags, tags)["span_f1"] == 1
    assert evaluate.score_tagging([["B-a", "O", "O"], ["O", "O"]], tags)["span_f1"] == 0
    assert "span_f1" not in evaluate.score_tagging([["O", "S-a"]], [["O", "O"]])
    assert evaluate.score_tagging([["O"]], [["O"]])["span_f1"] == 0


def test_tags_that_were_cut_off_are_wrong():
    tags = [["O", "B-a", "I-a", "O"], ["B-a", "O"]]
    scores = evaluate.score_tagging([["O", "B-a"], ["B-a", "O"]], tags)
    # Of four predicted tags all are right. O: 2 of 3 found; B-a: 2 of 2; I-a: 0 of 1.
    expected = {
        "accuracy": 4 / 6,
        "f1": (4 / 5 + 1 + 0) / 3,
        "exact_match": 1 / 2,
        "span_f1": 1 / 2,
    }
    assert scores == pytest.approx(expected)
    all_lost = evaluate.score_tagging([[], []], tags)
    assert all_lost == {"accuracy": 0, "f1": 0, "exact_match": 0, "span_f1": 0}


def test_tags_fit_their_sentences():
    with pytest.raises(ValueError, match="2 tags predicted for a sentence of 1 words"):
        evaluate.score_tagging([["O", "O"]], [["O"]])
    with pytest.raises(ValueError, match="1 tagged sentences, but 2"):
        evaluate.score_tagging([["O"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="empty"):
        evaluate.score_tagging([], [])
