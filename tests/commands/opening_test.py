"""What a work directory says of its run."""

import pytest

from transformer_jax.commands.opening import is_scored

SCORES = {"first_bad_step": None, "test/loss": 2.5}


@pytest.mark.parametrize("status", ["finished", "plateaued", "diverged"])
def test_a_run_is_scored_once_there_are_scores(status):
    assert is_scored({"status": status} | SCORES)
    assert not is_scored({"status": status, "first_bad_step": None})


def test_a_run_that_has_not_made_all_its_steps_is_not_scored():
    assert not is_scored({})
    for status in ("running", "preempted", "failed"):
        assert not is_scored({"status": status} | SCORES)
    assert not is_scored({"status": "diverged"} | SCORES | {"first_bad_step": 3})
