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
    # All other words are drawn as the chain's, and the first as its words that are no triggers.
    first = stationary * ~np.isin(np.arange(32), triggers)
    probabilities = np.vstack([bigram.chain().transitions, first / first.sum()])
    before = np.insert(words[:, :-1], 0, 32, axis=1)
    counts = np.zeros_like(probabilities)
    np.add.at(counts, (before, words), ~np.insert(is_trigger[:, :-1], 0, False, axis=1))
    expected = counts.sum(axis=1, keepdims=True) * probabilities
    often = expected >= 5
    errors = (counts[often] - expected[often]) / np.sqrt(expected[often])
    assert np.abs(errors).max() < 4 and not np.any(counts[expected == 0])
