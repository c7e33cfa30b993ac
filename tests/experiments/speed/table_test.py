"""Ratios are taken within rounds, and the table names who was faster."""

from experiments.speed import table

# The machine is ten times as slow in round 1; the peer takes twice our time in every round.
ROWS = [
    {"work": "step", "program": name, "round": number, "seconds": seconds, "peak_bytes": 2e9}
    for number, load in enumerate((1.0, 10.0, 1.0))
    for name, seconds in (("ours", load), ("torch", 2 * load))
]


def test_a_ratio_is_that_of_one_round():
    assert table.ratios(ROWS, "torch", "ours") == [2, 2, 2]


def test_the_table_has_a_line_for_each_program():
    header, _, ours, peer = table.of_rows(ROWS).splitlines()
    assert "seconds" in header and "this project" in ours
    assert "| 2.00 (2.00 to 2.00) |" in peer and "PyTorch" in peer
