"""The languages of repeats and of backcopies: their rules, floors and splits."""

import math

import numpy as np
import pytest

from transformer_jax.data.corpora import backcopy, bigram, repeat


def pieces(corpus, split: str, *of: str, length: int = 0) -> np.ndarray:
    """The whole pieces (n, T) of a split, by the numbers of their words: all but the last."""
    words, length = corpus.text(split, *of).split(" "), length or corpus.LENGTH
    assert len(words) == corpus.SPLITS[split] * length - 1
    numbers = {word: number for number, word in enumerate(corpus.WORDS)}
    return np.array([numbers[word] for word in words[: 1 - length]]).reshape(-1, length)


@pytest.mark.parametrize("corpus", [repeat, backcopy])
def test_splits_are_the_same_each_time_and_share_no_piece(corpus):
    splits = {split: pieces(corpus, split) for split in ("validation", "test")}
    np.testing.assert_array_equal(pieces(corpus, "test"), splits["test"])
    rows = [tuple(row) for split in splits.values() for row in split]
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
    assert stat(counts) < 64 + 5 * math.sqrt(2 * 64)  # chi-squared with 63 degrees of freedom
    # A row that never repeats itself has no period but its length.
    assert repeat.periods(np.arange(10)[None]) == [10]
    expected = np.mean([sum(math.log(64) for _ in range(p)) / 64 for p in repeat.PERIODS])
    assert repeat.entropy() == pytest.approx(expected)


def stat(counts: np.ndarray) -> float:
    """Pearson's statistic of equal shares."""
    return float(np.sum((counts - counts.mean()) ** 2) / counts.mean())


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
