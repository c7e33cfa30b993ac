"""The whole way: a config, a process that builds and does the work, rows."""

import pytest

from experiments.speed import measure
from tests.experiments.speed import tiny


@pytest.mark.long
@pytest.mark.parametrize("work, arguments", [("step", {}), ("decode", {"tokens": 4})])
def test_this_project_alone_is_measured(work, arguments, tmp_path):
    rows = measure.measure(
        tiny.config(tiny.SOURCE),
        tmp_path,
        what="turns",
        changes={"decode.method": "greedy"},
        work=work,
        programs=["ours"],
        rounds=2,
        calls=3,
        arguments=arguments,
    )
    assert [row["round"] for row in rows] == [0, 1]
    assert all(row["seconds"] > 0 and row["calls"] == 3 for row in rows)


def test_settings_of_decoding_are_changed_in_what_programs_read(tmp_path, monkeypatch):
    """They are no part of a run's name, so that they come as arguments."""
    texts = []
    monkeypatch.setattr(measure, "starts", lambda file: texts.append(file.read_text()) or [])
    changes = {"decode.method": "sample"}
    measure.measure(tiny.config({}), tmp_path, what="starts", changes=changes)
    assert '"method": "sample"' in texts[0]
