"""Tables as people read them."""

from transformer_jax.process import tables


def test_numbers_are_flush_right_and_a_short_row_ends_early():
    rows = [["", "a", "long name"], ["key", "12", "3"], [], ["a longer key"]]
    assert tables.aligned(rows) == [
        "               a  long name",
        "key           12          3",
        "",
        "a longer key",
    ]
