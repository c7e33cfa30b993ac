"""What counts as copying, in `stability_frontier`."""

import numpy as np
import pytest

from experiments.stability_frontier import report
from transformer_jax.data.corpora import bigram


def test_chain_is_the_mean_loss_of_a_model_of_the_chain_that_does_not_see_the_copy():
    transitions, stationary = bigram.chain()
    words = [bigram.WORDS.index(word) for word in bigram.text("validation").split(" ")]
    losses = [
        -np.log(
            stationary[word] if place % bigram.HALF == 0 else transitions[words[place - 1], word]
        )
        for place, word in enumerate(words)
    ]
    assert np.mean(losses) == pytest.approx(report.CHAIN, abs=0.02)


def test_the_frontier_of_copying_is_that_of_training_or_below_and_asks_all_seeds():
    grid = {
        0.001: [("finished", 0.85), ("finished", 0.86)],
        0.01: [("finished", 0.86), ("finished", 1.62)],  # one copies
        0.1: [("finished", 1.63), ("plateaued", 3.28)],  # one trains
    }
    rows = [
        {"learning_rate": rate, "status": status, "loss": loss}
        for rate, cell in grid.items()
        for status, loss in cell
    ]
    assert report._frontier(rows, report._trains) == 0.01
    assert report._frontier(rows, report._copies) == 0.001
    assert report._frontier(rows[-2:], report._trains) is None
