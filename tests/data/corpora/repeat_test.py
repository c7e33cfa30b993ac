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
    periods = repeat.periods(words)
    assert len(set(repeat.WORDS)) == 64
    assert set(periods) == set(repeat.PERIODS)
    for row, period in zip(words, periods, strict=True):
        assert all(row[place] == row[place - period] for place in range(period, 64))
        assert len(set(row[:period])) > period // 2
    counts = np.bincount(words[:, :8].ravel(), minlength=64)
    chi_squared = np.sum((counts - counts.mean()) ** 2) / counts.mean()
    assert chi_squared < 64 + 5 * math.sqrt(2 * 64)  # which has 63 degrees of freedom
    # A row that never repeats itself has no period but its length.
    assert repeat.periods(np.arange(10)[None]) == [10]
    assert repeat.entropy() == pytest.approx(np.mean(repeat.PERIODS) * math.log(64) / 64)


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
    # The floor is the mean loss of who knows the rule and the chain.
    transitions = bigram.chain().transitions
    plain = stationary * ~np.isin(np.arange(32), triggers)
    nats = -np.log(plain[words[:, 0]] / plain.sum())
    costs = -np.log(transitions[words[:, :-1], words[:, 1:]])
    nats += np.sum(np.where(is_trigger[:, :-1], 0.0, costs), axis=1)
    error = nats.std() / len(nats) ** 0.5 / 64
    assert nats.mean() / 64 == pytest.approx(backcopy.entropy(), abs=4 * error)
    assert error < 0.02
