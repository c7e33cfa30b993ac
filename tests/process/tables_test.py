"""Tables and names as people read them."""

from transformer_jax.process import tables


def test_numbers_are_flush_right_and_a_short_row_ends_early():
    rows = [["", "a", "long name"], ["key", "12", "3"], [], ["a longer key"]]
    assert tables.aligned(rows) == [
        "               a  long name",
        "key           12          3",
        "",
        "a longer key",
    ]


def test_names_are_what_differs():
    rows = [{"scheme": scheme, "layers": 6} for scheme in ("admin", "post_ln")]
    assert tables.differing(rows) == ["scheme"]
    assert tables.short_names(rows) == ["admin", "post_ln"]
    rows.append({"scheme": "admin", "layers": 18})
    assert tables.short_names(rows)[1:] == ["scheme=post_ln layers=6", "scheme=admin layers=18"]
    assert tables.differing([{"a": 1}, {}]) == ["a"]
    assert tables.short_names([{"a": 1}]) == [""]
