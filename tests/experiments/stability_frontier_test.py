"""What counts as copying, in `stability_frontier`."""

from experiments.stability_frontier import report


def test_the_frontier_of_copying_is_that_of_training_or_below_and_asks_all_seeds():
    grid = {
        0.001: [("finished", 0.85), ("finished", 1.50)],
        0.01: [("finished", 0.86), ("finished", 1.53)],  # one copies
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
