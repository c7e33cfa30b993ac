"""A run does not start anew over what an earlier one has left, nor go on without a word."""

import json

import pytest

from transformer_jax.checkpoint.checkpoints import Restored
from transformer_jax.commands import start
from transformer_jax.config.load import load, to_json
from transformer_jax.configs import default

EVERY = 10


def leave(workdir, *steps, results=None):
    """The files of a run that has logged these steps."""
    config = load(default.__file__, {"checkpoint.every": EVERY})
    (workdir / "config.json").write_text(to_json(config))
    records = "".join(json.dumps({"step": step}) + "\n" for step in steps)
    (workdir / "metrics.jsonl").write_text(records)
    if results is not None:
        (workdir / "results.json").write_text(json.dumps(results))


@pytest.mark.parametrize(
    ("steps", "results", "samples"),
    [
        ([], {"status": "preempted", "steps": 7, "first_bad_step": None}, False),
        ([], {"status": "running", "steps": 10}, False),
        ([5, 10, 15, 20, 21], None, False),  # the second save has waited for the first one
        ([5, 10], None, True),  # it has been scored
    ],
)
def test_a_run_that_has_lost_its_checkpoints_is_refused(tmp_path, steps, results, samples):
    leave(tmp_path, *steps, results=results)
    if samples:
        (tmp_path / "samples.txt").write_text("1  source  a b")
    with pytest.raises(FileNotFoundError, match=f"there are none in {tmp_path}/checkpoints"):
        start._check_nothing_was_saved(tmp_path)


@pytest.mark.parametrize(
    "results",
    [
        None,
        {"status": "running", "steps": 0},
        {"status": "diverged", "steps": 12, "first_bad_step": 12},
    ],
)
def test_a_run_that_ended_before_its_first_checkpoint_starts_anew_and_says_so(
    tmp_path, caplog, results
):
    start._check_nothing_was_saved(tmp_path)  # a new work directory
    assert not caplog.messages
    leave(tmp_path, 5, 10, 15, 20, results=results)
    start._check_nothing_was_saved(tmp_path)
    (warning,) = caplog.messages
    assert str(tmp_path) in warning and "step 0" in warning and "step 20" in warning


def test_lost_records_are_told(tmp_path, caplog):
    restored = Restored(step=20, state=None, streams={}, records=4)
    leave(tmp_path, 5, 10, 15, 20, 25)
    start._tell_of_lost_records(tmp_path, restored)
    assert not caplog.messages
    leave(tmp_path, 5, 10, 15)
    start._tell_of_lost_records(tmp_path, restored)
    (tmp_path / "metrics.jsonl").unlink()
    start._tell_of_lost_records(tmp_path, restored)
    three, none = caplog.messages
    assert f"{tmp_path}/metrics.jsonl has 3 of the 4 records up to step 20" in three
    assert "has 0 of the 4" in none


@pytest.mark.parametrize(
    ("bad", "batches"), [(None, 54), (1234, 0), (1220, 34), (1210, 54), (1300, 54)]
)
def test_batches_up_to_bad_steps_are_left_out_but_for_who_asks_after_one(tmp_path, bad, batches):
    """Step 1234 was bad, and after going back to 1200 the twentieth of the next batches."""
    numbers = {1200: [None, 1234, 1220], 1234: [1234]}
    (tmp_path / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"step": step} | ({} if number is None else {"bad_step/number": number}))
            + "\n"
            for step, noted in numbers.items()
            for number in noted
        )
    )
    assert start._left_out(tmp_path, 1200, bad) == batches
