"""What the tasks' losses choose and weigh, and the means of their sums."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.reference import SETTINGS, V, make_case, reference
from transformer_jax.models.family import Outputs
from transformer_jax.training.losses import (
    label_loss,
    masked_token_loss,
    means,
    means_of_tokens,
    next_token_loss,
)

# Of which most are 0; of labels the first and the last are among the others.
MASKED = np.array([[0, 4, 0, 0, 6], [1, 0, 0, 0, 0]], np.int32)
LABELS = np.array([[0, 4, 0, 0, V], [1, 0, 0, 0, 0]], np.int32)
_, TARGETS, WEIGHTS = make_case()
# Masked tokens are stored as they are, classes as class + 1: 0 is "nothing here" in both. All
# segments of a packed row count.
CASES = {
    "next": (
        next_token_loss,
        {"targets": TARGETS, "targets_segment_ids": (WEIGHTS * [[1, 1, 2, 2, 2]]).astype(np.int32)},
        TARGETS,
        WEIGHTS,
    ),
    "masked": (masked_token_loss, {"targets": MASKED}, MASKED, MASKED != 0),
    "labels": (label_loss, {"labels": LABELS}, np.maximum(LABELS - 1, 0), LABELS != 0),
}


@pytest.mark.parametrize(("function", "batch", "targets", "mask"), CASES.values(), ids=CASES)
def test_a_loss_is_that_of_the_chosen_places_alone(function, batch, targets, mask):
    logits, _, _ = make_case()

    def loss(logits):
        total, *others = function(Outputs(logits), batch, SETTINGS)
        return total, others

    (total, (weight, sums)), gradient = jax.value_and_grad(loss, has_aux=True)(jnp.array(logits))
    assert weight == mask.sum() > 0
    mask = mask.astype(np.float32)
    expected = reference(logits, targets, mask, SETTINGS.label_smoothing, SETTINGS.z_loss)
    assert sums.keys() == expected.keys() and sums["loss"] == (total, weight)
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name][0], value, rtol=1e-5, err_msg=name)
        assert sums[name][1] == weight
    np.testing.assert_array_equal(np.any(np.asarray(gradient) != 0, axis=-1), mask != 0)
    nothing = jax.tree.map(np.zeros_like, batch)
    assert function(Outputs(logits), nothing, SETTINGS)[:2] == (0, 0)


def test_means_divide_sums_by_weights_in_double_precision():
    window = {"accuracy": (jnp.float32(1), jnp.float32(3)), "gradient_norm": (3.5, 1)}
    assert means(window) == {"accuracy": 1 / 3, "gradient_norm": 3.5}
    with pytest.raises(ValueError, match="no mean of accuracy"):
        means({"loss": (1.0, 2.0), "accuracy": (0.0, 0.0)})


@pytest.mark.parametrize(
    ("total", "perplexity"), [(6.0, math.exp(1.5)), (1e7, math.inf), (math.nan, math.nan)]
)
def test_means_of_tokens_bring_the_perplexity(total, perplexity):
    metrics = means_of_tokens({"token_loss": (jnp.float32(total), jnp.float32(4))})
    assert metrics == {
        "token_loss": pytest.approx(total / 4, nan_ok=True),
        "perplexity": pytest.approx(perplexity, nan_ok=True),
    }
