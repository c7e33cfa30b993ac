"""The language of keys and answers: frequencies, floor, and the same key with the same answers."""

import math

import numpy as np
import pytest

from tests.data.corpora.repeat_test import pieces
from transformer_jax.data.corpora import zipf


@pytest.fixture(scope="module", params=[0.5, 1.0])
def sample(request) -> tuple[float, np.ndarray]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipf, "SPLITS", {"train": 10_000})
        return request.param, pieces(zipf, "train", str(request.param))


def test_keys_are_as_frequent_as_a_power_of_their_rank_and_answers_as_their_distribution(sample):
    a, words = sample
    first, second, answer = words.reshape(-1, 3).T
    total = sum(k ** -(1 + a) for k in range(1, zipf.KEYS + 1))
    keys, answers = zipf.language(a)
    ranked = np.argsort(-keys)
    counts = np.bincount(first * len(zipf.WORDS) + second, minlength=zipf.KEYS)[ranked]
    for rank in (1, 2, 5, 20):
        expected = len(first) * rank ** -(1 + a) / total
        assert counts[rank - 1] == pytest.approx(expected, abs=5 * math.sqrt(expected))
    for key in ranked[:3]:
        of_key = answer[first * len(zipf.WORDS) + second == key]
        shares = np.bincount(of_key, minlength=len(zipf.WORDS)) / len(of_key)
        np.testing.assert_allclose(shares, answers[key], atol=5 / math.sqrt(len(of_key)))
        assert answers[key].sum() == pytest.approx(1)


def test_the_floor_is_what_pieces_cost_who_knows_the_language(sample):
    a, words = sample
    keys, answers = zipf.language(a)
    first, second, answer = np.moveaxis(words.reshape(len(words), -1, 3), 2, 0)
    key = 256 * first + second
    nats = -np.sum(np.log(keys[key] * answers[key, answer]), axis=1)
    error = nats.std() / len(nats) ** 0.5 / 63
    entropies = -np.sum(answers * np.log(answers), axis=1)
    entropy = keys @ (entropies - np.log(keys))  # of a pair
    assert nats.mean() / 63 == pytest.approx(entropy / 3, abs=4 * error)
    assert error < 0.005


def test_the_mass_of_keys_that_n_draws_do_not_show_falls_as_the_law_says():
    """By a / (1 + a), away from where the keys end."""
    for a in (0.5, 1.0):
        keys, _ = zipf.language(a)
        unseen = [float(keys @ (1 - keys) ** n) for n in (300, 1_000)]
        slope = math.log(unseen[1] / unseen[0]) / math.log(1_000 / 300)
        assert slope == pytest.approx(-a / (1 + a), abs=0.06)
