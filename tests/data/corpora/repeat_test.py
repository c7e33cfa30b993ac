"""The languages of repeats and of backcopies: their rules and floors; splits of bigrams too."""

import math

import numpy as np
import pytest

from transformer_jax.data.corpora import backcopy, bigram, repeat


def pieces(corpus, split: str, *of: str) -> np.ndarray:
    """The whole pieces (n, T) of a split, by the numbers of their words: all but the last."""
    words = corpus.text(split, *of).split(" ")
    length = 2 * bigram.HALF if corpus is bigram else corpus.LENGTH
    assert len(words) == corpus.SPLITS[split] * length - 1
    numbers = {word: number for number, word in enumerate(corpus.WORDS)}
    return np.array([numbers[word] for word in words[: 1 - length]]).reshape(-1, length)


@pytest.mark.parametrize("corpus", [bigram, repeat, backcopy])
def test_splits_are_the_same_each_time_and_share_no_piece(corpus, monkeypatch):
    monkeypatch.setattr(corpus, "SPLITS", dict.fromkeys(corpus.SPLITS, 1_000))
    assert corpus.text("test") == corpus.text("test")
    rows = [tuple(row) for split in corpus.SPLITS for row in pieces(corpus, split)]
    assert len(set(rows)) >= 0.999 * len(rows)  # two may be equal by chance


def test_a_row_repeats_itself_at_its_period_and_draws_words_alike():
    words = pieces(repeat, "validation")
    periods = [least_period(row) for row in words]
    assert len(set(repeat.WORDS)) == 64
    assert set(periods) == set(repeat.PERIODS)
    for row, period in zip(words, periods, strict=True):
        assert all(row[place] == row[place - period] for place in range(period, 64))
        assert len(set(row[:period])) > period // 2
    counts = np.bincount(words[:, :8].ravel(), minlength=64)
    chi_squared = np.sum((counts - counts.mean()) ** 2) / counts.mean()
    assert chi_squared < 64 + 5 * math.sqrt(2 * 64)  # which has 63 degrees of freedom
    # The floor: as many drawn words as a period, of which each costs ln 64.
    error = float(np.std(repeat.PERIODS)) * math.log(64) / 64 / math.sqrt(len(words))
    assert np.mean(periods) * math.log(64) / 64 == pytest.approx(math.log(64) / 4, abs=4 * error)


def least_period(row: np.ndarray) -> int:
    return next(p for p in range(1, len(row) + 1) if np.array_equal(row[p:], row[:-p]))


def test_after_a_trigger_comes_the_word_before_it_and_no_trigger_follows_another():
    words, triggers = pieces(backcopy, "validation"), backcopy.triggers()
    stationary = bigram.chain().stationary
    assert set(triggers) == set(np.argsort(stationary)[-3:])
    is_trigger = np.isin(words, triggers)
    assert is_trigger[:, 1:].any() and not is_trigger[:, 0].any()
    assert not np.any(is_trigger[:, 1:] & is_trigger[:, :-1])
    np.testing.assert_array_equal(
        words[:, 2:][is_trigger[:, 1:-1]], words[:, :-2][is_trigger[:, 1:-1]]
    )
    # The mean loss of who knows the rule and the chain is the entropy.
    transitions = bigram.chain().transitions
    first = stationary * ~np.isin(np.arange(32), triggers)
    first /= first.sum()
    nats = -np.log(first[words[:, 0]])
    costs = -np.log(transitions[words[:, :-1], words[:, 1:]])
    nats += np.sum(np.where(is_trigger[:, :-1], 0.0, costs), axis=1)
    error = nats.std() / len(nats) ** 0.5 / 64
    assert nats.mean() / 64 == pytest.approx(backcopy_entropy(first) / 64, abs=4 * error)
    assert error < 0.02


def backcopy_entropy(first: np.ndarray) -> float:
    """Nats per piece, which begins by this distribution.

    Words after a trigger cost nothing, others what the chain's do, given the word before.
    """
    transitions, triggers = bigram.chain().transitions, backcopy.triggers()
    to_trigger = np.sum(transitions[:, triggers], axis=1)
    plain = np.delete(np.arange(32), triggers)
    costs = -np.sum(transitions * np.log(transitions), axis=1)
    # Probabilities: of this word; of a trigger after it
    at, before = first, np.zeros(32)
    nats = -np.sum(at[plain] * np.log(at[plain]))
    for _ in range(64 - 1):
        nats += at @ costs
        next_at = before.copy()
        next_at[plain] += (at @ transitions)[plain]
        at, before = next_at, at * to_trigger
    return nats
