"""What tasks over tokens and labels share."""

import math
import types
from typing import Any

import pytest

from transformer_jax.tasks.tokens import judge


def trained(entropy) -> Any:
    return types.SimpleNamespace(
        data=types.SimpleNamespace(unigram_entropy=entropy),
        model=types.SimpleNamespace(config=types.SimpleNamespace(vocab_size=32)),
    )


@pytest.mark.parametrize(
    ("token_loss", "status"),
    [
        (0.0, "finished"),
        (2.89, "finished"),
        (2.91, "plateaued"),
        (math.log(32) + 0.99, "plateaued"),
        (math.log(32) + 1.01, "diverged"),
        (math.inf, "diverged"),
        (math.nan, "diverged"),
    ],
)
def test_a_run_is_judged_by_what_a_uniform_guess_or_frequencies_would_lose(token_loss, status):
    verdict, grounds = judge({"token_loss": token_loss}, trained(3.0))
    assert verdict == status
    expected = {"train/token_loss": token_loss, "unigram_entropy": 3.0}
    assert grounds == pytest.approx(expected, nan_ok=True)


def test_where_labels_are_predicted_there_is_no_plateau():
    expected = "finished", {"train/token_loss": 9.0}
    assert judge({"token_loss": 9.0}, trained(None)) == expected
