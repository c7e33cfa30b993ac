"""What the tasks' losses choose and weigh."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.reference import B, T, V, make_case, reference
from transformer_jax.tasks import TASKS
from transformer_jax.training.cross_entropy import METRICS
from transformer_jax.training.losses import judge, label_loss, means, next_token_loss


def make_batch():
    _, targets, weights = make_case()
    return {"targets": jnp.array(targets), "targets_segment_ids": jnp.array(weights, jnp.int32)}


MASKED = TASKS["masked_lm"].loss


def loss_of(logits, batch, loss=next_token_loss):
    return loss(logits, batch, label_smoothing=0.1, z_loss=0.01)


def test_weight_counts_the_tokens_that_are_not_padding():
    logits, _, weights = make_case()
    loss_sum, weight, aux = loss_of(logits, make_batch())
    assert weight == weights.sum() == 7
    assert set(aux) == set(METRICS)
    assert aux["loss"] == (loss_sum, weight)


def test_padding_changes_neither_loss_nor_gradient():
    logits, _, weights = make_case()
    batch = make_batch()
    changed_logits = np.where(weights[..., None] == 0, 100.0, logits)
    changed_batch = batch | {"targets": jnp.where(weights == 0, 3, batch["targets"])}
    value, gradient = jax.value_and_grad(lambda x: loss_of(x, batch)[0])(logits)
    changed, changed_gradient = jax.value_and_grad(lambda x: loss_of(x, changed_batch)[0])(
        jnp.array(changed_logits)
    )
    assert value == changed
    assert np.all(np.asarray(gradient)[weights == 0] == 0)
    np.testing.assert_array_equal(gradient, changed_gradient)


def test_packed_segments_all_count():
    batch = make_batch()
    packed = batch | {"targets_segment_ids": batch["targets_segment_ids"] * 3}
    logits, _, _ = make_case()
    assert loss_of(logits, packed)[:2] == loss_of(logits, batch)[:2]


def sparse_targets():
    """Targets of which most are 0, as of masked tokens and labels."""
    return np.array([[0, 4, 0, 0, 6], [1, 0, 0, 0, 0]], np.int32)


@pytest.mark.parametrize(
    ("loss", "key", "shift"),
    [(MASKED, "targets", 0), (label_loss, "labels", 1)],
)
def test_only_places_with_something_to_predict_count(loss, key, shift):
    """Masked tokens are stored as they are, classes as class + 1: 0 is "nothing here" in both."""
    logits, _, _ = make_case()
    stored = sparse_targets()
    chosen = (stored != 0).astype(np.float32)
    expected = reference(logits, np.maximum(stored - shift, 0), chosen, 0.1, 0.01)
    loss_sum, weight, sums = loss_of(logits, {key: jnp.array(stored)}, loss)
    assert weight == 3
    np.testing.assert_allclose(loss_sum, expected["loss"], rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name][0], value, rtol=1e-5, err_msg=name)
        assert sums[name][1] == weight


@pytest.mark.parametrize(("loss", "key"), [(MASKED, "targets"), (label_loss, "labels")])
def test_places_with_nothing_to_predict_have_no_gradient(loss, key):
    logits, _, _ = make_case()
    stored = sparse_targets()
    batch = {key: jnp.array(stored)}
    gradient = np.asarray(jax.grad(lambda x: loss_of(x, batch, loss)[0])(jnp.array(logits)))
    np.testing.assert_array_equal(np.any(gradient != 0, axis=-1), stored != 0)


@pytest.mark.parametrize("class_", [0, V - 1])
def test_the_first_and_the_last_class_can_be_right(class_):
    logits = np.zeros((1, 1, V), np.float32)
    logits[0, 0, class_] = 50.0
    _, _, sums = loss_of(logits, {"labels": jnp.array([[class_ + 1]])}, label_loss)
    assert sums["accuracy"] == (1, 1) and sums["token_loss"][0] < 1e-6


@pytest.mark.parametrize(
    ("loss", "batch"),
    [
        (MASKED, {"targets": jnp.zeros((B, T), jnp.int32)}),
        (label_loss, {"labels": jnp.zeros((B, T), jnp.int32)}),
    ],
)
def test_a_batch_with_nothing_to_predict_weighs_nothing(loss, batch):
    logits, _, _ = make_case()
    loss_sum, weight, _ = loss_of(logits, batch, loss)
    assert (loss_sum, weight) == (0, 0)


def test_means_divide_sums_by_weights():
    window = {
        "token_loss": (jnp.float32(6), jnp.float32(4)),
        "accuracy": (jnp.float32(1), jnp.float32(4)),
        "gradient_norm": (3.5, 1),
    }
    assert means(window) == {
        "token_loss": 1.5,
        "accuracy": 0.25,
        "gradient_norm": 3.5,
        "perplexity": pytest.approx(math.exp(1.5)),
    }


def test_means_are_in_double_precision():
    mean = means({"x": (jnp.float32(1), jnp.float32(3))})["x"]
    assert mean == 1 / 3


def test_perplexity_of_a_diverged_run_is_infinite_or_not_a_number():
    assert means({"token_loss": (1e6, 1)})["perplexity"] == math.inf
    assert math.isnan(means({"token_loss": (math.nan, 1)})["perplexity"])


def test_a_mean_over_nothing_is_an_error():
    with pytest.raises(ValueError, match="no mean of accuracy"):
        means({"loss": (1.0, 2.0), "accuracy": (0.0, 0.0)})


@pytest.mark.parametrize(
    ("token_loss", "status"),
    [
        (0.0, "finished"),
        (2.89, "finished"),
        (2.91, "plateaued"),
        (np.log(32) + 0.99, "plateaued"),
        (np.log(32) + 1.01, "diverged"),
        (np.inf, "diverged"),
        (np.nan, "diverged"),
    ],
)
def test_a_run_is_judged_by_what_knowing_nothing_or_frequencies_alone_would_lose(
    token_loss, status
):
    assert judge(token_loss, unigram_entropy=3.0, vocab_size=32) == status
