"""The bigram language with copies: what is drawn has the entropy that is stated."""

import numpy as np
import pytest

from tests.data.corpora.repeat_test import pieces
from transformer_jax.data.corpora import bigram


@pytest.fixture(scope="module")
def train() -> np.ndarray:
    return pieces(bigram, "train")


def counted_entropy(*columns: np.ndarray) -> float:
    """Nats of the joint distribution of what stands in these columns, from their frequencies."""
    counts = np.bincount(np.ravel_multi_index(columns, (32,) * len(columns)))
    shares = counts[counts > 0] / counts.sum()
    return -np.sum(shares * np.log(shares))


def test_the_transitions_are_a_chain_with_this_stationary_distribution():
    transitions, stationary = bigram.chain()
    assert transitions.shape == (32, 32) and len(set(bigram.WORDS)) == 32
    assert np.all(transitions > 0)
    np.testing.assert_allclose(transitions.sum(axis=1), 1, rtol=1e-12)
    # Wherever the chain starts, it ends there.
    np.testing.assert_allclose(
        np.linalg.matrix_power(transitions, 200), np.tile(stationary, (32, 1)), atol=1e-9
    )


def test_the_words_have_the_entropies_of_the_closed_forms(train):
    before, after = train[:, :15].ravel(), train[:, 1:16].ravel()
    rate = counted_entropy(before, after) - counted_entropy(before)
    # 1024 frequencies of 750,000 words make an estimate that is about 0.001 too low.
    assert bigram.rate(bigram.chain()) == pytest.approx(1.5, abs=1e-9)
    assert rate == pytest.approx(1.5, abs=0.01)
    assert bigram.unigram_entropy() == pytest.approx(3.3, abs=0.05)
    for place in (0, 7, 15):  # the chain is stationary from the first word on
        assert counted_entropy(train[:, place]) == pytest.approx(bigram.unigram_entropy(), abs=0.01)


def test_entropy_is_the_mean_loss_of_the_chain_itself(train):
    transitions, stationary = bigram.chain()
    half = train[:, :16]
    nats = -np.log(stationary[half[:, 0]])
    nats -= np.log(transitions[half[:, :-1], half[:, 1:]]).sum(axis=1)
    error = nats.std() / len(nats) ** 0.5 / 32
    assert nats.mean() / 32 == pytest.approx(bigram.entropy(), abs=4 * error)
    assert error < 1e-3
