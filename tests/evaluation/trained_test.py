"""A trained model asked with tiny functions in the place of its own: means, classes, vectors."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.evaluation.trained import (
    Trained,
    make_eval_step,
    make_predict_step,
    mean_losses,
)

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


def trained(params, batches=(), **functions):
    """A model that reads these batches whatever lines come in."""
    names = (
        "data eval_step memory predict_step embed_step start step limit most_positions decode seed"
    )
    fields = dict.fromkeys([*names.split(), "bleu_tokenizer"])
    data = types.SimpleNamespace(prompts=lambda lines: batches)
    return Trained(**(fields | {"params": params, "data": data} | functions))  # pyright: ignore


@pytest.mark.parametrize("batches", [one_way, another_way])
def test_predictions_are_of_the_labelled_places_in_the_order_of_the_examples(batches):
    predict_step = make_predict_step(class_of_token)
    predicted = trained(1, predict_step=predict_step).predict(batches())
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

    predict_step = make_predict_step(apply)
    for _ in range(2):
        trained(1, predict_step=predict_step).predict(one_way())
    assert shapes == [(3, 6), (3, 4)]


def test_nothing_is_predicted_of_no_batches():
    assert trained(1, predict_step=make_predict_step(class_of_token)).predict([]) == []


@pytest.mark.parametrize("batches", [one_way, another_way])
def test_vectors_come_in_the_order_of_the_examples(batches):
    """Each vector is that of the row's first token; the others hold what must not be read."""

    def embed_step(params, batch):
        total = jnp.sum(batch["inputs"], axis=1, keepdims=True)
        vectors = params * jnp.stack([total, -total], axis=-1)
        return jnp.where(jnp.arange(batch["inputs"].shape[1])[None, :, None] == 0, vectors, 999)

    vectors = trained(jnp.float32(0.5), batches(), embed_step=embed_step).embed(["any"])
    expected = [[sum(tokens) / 2, -sum(tokens) / 2] for tokens in TOKENS]
    np.testing.assert_array_equal(vectors, np.array(expected, np.float32))


def test_vectors_need_lines():
    with pytest.raises(ValueError, match="no lines"):
        trained(0.0, embed_step=lambda params, batch: jnp.zeros((1, 1, 1))).embed([])


def loss(outputs, batch):
    """Mean distance of the prediction from y, over the rows with a weight."""
    error = jnp.abs(outputs - batch["y"])
    weight = jnp.sum(batch["weights"])
    total = jnp.sum(error * batch["weights"])
    return total, weight, {"loss": (total, weight), "token_loss": (2 * total, weight)}


def test_evaluation_does_not_depend_on_how_batches_are_cut():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 12)).astype(np.float32)
    weights = np.array([1] * 10 + [0] * 2, np.float32)

    def batches(size):
        for rows in np.split(np.arange(12), 12 // size):
            yield {"x": x[rows], "y": y[rows], "weights": weights[rows]}, rows

    eval_step = make_eval_step(
        loss, lambda params, batch, rng, memory: (params * batch["x"], memory)
    )
    expected = np.mean(np.abs(3 * x[:10].astype(np.float64) - y[:10]))
    for size in (12, 4, 3, 1):
        result = mean_losses(jnp.float32(3), batches(size), eval_step)
        assert set(result) == {"loss", "token_loss", "perplexity"}
        assert result["loss"] == pytest.approx(expected, rel=1e-6)
        assert result["perplexity"] == pytest.approx(np.exp(2 * expected), rel=1e-5)


def test_an_eval_step_is_compiled_once_per_shape():
    traces = []

    def apply(params, batch, rng, memory):
        traces.append(batch["x"].shape)
        return batch["x"], memory

    eval_step = make_eval_step(loss, apply)
    for size in (4, 2, 4, 2):
        batch = {name: np.ones((size,), np.float32) for name in ("x", "y", "weights")}
        mean_losses(0.0, [(batch, np.arange(size))], eval_step)
    assert traces == [(4,), (2,)]


def test_what_a_batch_leaves_is_there_for_the_next():
    """Each batch is scored by the sum of all before it, which begins at 0."""

    def apply(params, batch, rng, memory):
        return memory["sum"], {"sum": memory["sum"] + batch["x"]}

    batches = [
        ({"x": np.full(1, x), "y": np.zeros(1), "weights": np.ones(1)}, np.zeros(1))
        for x in (1.0, 2.0, 4.0)
    ]
    memory = {"sum": jax.ShapeDtypeStruct((1,), jnp.float32)}
    found = mean_losses(0.0, batches, make_eval_step(loss, apply), memory)
    assert found["loss"] == pytest.approx((0 + 1 + 3) / 3)


def test_evaluation_needs_batches():
    with pytest.raises(ValueError, match="no batches"):
        mean_losses(0.0, [], lambda params, batch, memory: ({}, memory))
