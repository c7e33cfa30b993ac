"""What is asked of pure functions in the place of a model: means and classes."""

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.defaults import loss_settings
from transformer_jax.evaluation.trained import Trained
from transformer_jax.models.family import Outputs
from transformer_jax.tasks.tokens import labels, likeliest_labels
from transformer_jax.training.losses import Loss, means_of_tokens

CLASSES = "wxyz"
# By the number of the example: its tokens, and its labels (class + 1; 0 where there is none).
TOKENS = [[2, 7, 8, 1], [2, 9, 1], [2, 5, 5, 6, 1], [2, 1]]
LABELS = [[0, 3, 1, 0], [0, 4, 0], [0, 1, 0, 2, 0], [0, 0]]


def batch_of(numbers, length):
    """The numbered examples, -1 for a row of padding, whose labels must not matter."""

    def padded(rows, fill):
        rows = [rows[number] if number >= 0 else [fill] for number in numbers]
        return np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int32)

    return {"inputs": padded(TOKENS, 3), "labels": padded(LABELS, 1)}, np.array(numbers)


class Function(NamedTuple):
    """A "model" whose outputs are those of a function (params, batch, memory) -> (values, memory).

    Of the settings of a call matters that there is no dropout.
    """

    compute: Callable[..., tuple[Any, Any]]

    def apply(self, variables, batch, *, deterministic, method, **settings):
        assert deterministic and method == "outputs"
        values, memory = self.compute(variables["params"], batch, variables.get("memory", ()))
        return Outputs(values), {"memory": memory}


def class_of_token(params, batch, memory):
    """Logits that make the class of a token (token + params) modulo the number of classes."""
    return jax.nn.one_hot((batch["inputs"] + params) % len(CLASSES), len(CLASSES)), memory


def trained(params, compute, **fields):
    settings = types.SimpleNamespace(evaluation_batch_size=1)
    names = "loss prediction decoder seed bleu_tokenizer".split()
    arguments: Any = dict.fromkeys(names) | {"memory": lambda rows: ()} | fields
    arguments["data"] = types.SimpleNamespace(settings=settings, labels=CLASSES)
    return Trained(params=params, model=Function(compute), **arguments)  # pyright: ignore


@pytest.mark.parametrize(
    "batches",
    [[batch_of([2, 0, -1], 6), batch_of([3, 1, -1], 4)], [batch_of([1, 3, 0, 2], 5)]],
    ids=["two batches", "one"],
)
def test_labels_are_of_the_labelled_places_in_the_order_of_the_examples(batches):
    model = trained(1, class_of_token, prediction=likeliest_labels)
    expected = [
        [CLASSES[(token + 1) % 4] for token, label in zip(tokens, own_labels, strict=True) if label]
        for tokens, own_labels in zip(TOKENS, LABELS, strict=True)
    ]
    assert labels(model, batches) == expected
    assert [len(row) for row in expected] == [2, 1, 2, 0]
    assert labels(model, []) == []


def losses(params, compute, batches, memory=lambda rows: ()):
    split = types.SimpleNamespace(batches=list(batches))
    return trained(params, compute, loss=LOSS, memory=memory).losses(split)  # pyright: ignore


def distance(outputs, batch, settings):
    """Mean distance of the prediction from y, over the rows with a weight."""
    error = jnp.abs(outputs.values - batch["y"])
    weight = jnp.sum(batch["weights"])
    total = jnp.sum(error * batch["weights"])
    return total, weight, {"loss": (total, weight), "token_loss": (2 * total, weight)}


LOSS = Loss(distance, None, means_of_tokens, loss_settings(0.0))


def test_evaluation_does_not_depend_on_how_batches_are_cut():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 12)).astype(np.float32)
    weights = np.array([1] * 10 + [0] * 2, np.float32)

    def batches(size):
        for rows in np.split(np.arange(12), 12 // size):
            yield {"x": x[rows], "y": y[rows], "weights": weights[rows]}, rows

    def compute(params, batch, memory):
        return params * batch["x"], memory

    expected = np.mean(np.abs(3 * x[:10].astype(np.float64) - y[:10]))
    for size in (12, 4, 3, 1):
        result = losses(jnp.float32(3), compute, batches(size))
        assert set(result) == {"loss", "token_loss", "perplexity"}
        assert result["loss"] == pytest.approx(expected, rel=1e-6)
        assert result["perplexity"] == pytest.approx(np.exp(2 * expected), rel=1e-5)


def test_what_a_batch_leaves_is_there_for_the_next():
    """Each batch is scored by the sum of all before it, which begins at 0."""

    def compute(params, batch, memory):
        return memory["sum"], {"sum": memory["sum"] + batch["x"]}

    batches = [
        ({"x": np.full(1, x), "y": np.zeros(1), "weights": np.ones(1)}, np.zeros(1))
        for x in (1.0, 2.0, 4.0)
    ]
    memory = {"sum": jax.ShapeDtypeStruct((1,), jnp.float32)}
    metrics = losses(jnp.float32(0), compute, batches, lambda rows: memory)
    assert metrics["loss"] == pytest.approx((0 + 1 + 3) / 3)
    model: Any = trained(jnp.float32(0), compute, memory=lambda rows: memory)
    split: Any = types.SimpleNamespace(batches=batches)
    (row,) = model.by_place(split, lambda outputs, batch: outputs.values[:, None])
    assert row.tolist() == [0, 1, 3]  # what one reader reads
