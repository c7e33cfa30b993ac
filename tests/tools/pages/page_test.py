import html.parser
import json

import numpy as np
import pytest

from transformer_jax.tools.pages.page import array, embedded, numbers, page

NASTY = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "\"quotes\" 'and' \\ backslashes \\u003c",
    "line\u2028 and paragraph\u2029 separators",
    "{title} {data} %s",
    "مرحبا & שלום",
    "half a pair: \ud83d",
]


class _Elements(html.parser.HTMLParser):
    """The elements of a file, as (tag, attributes, text)."""

    def __init__(self, text: str):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append([tag, dict(attrs), ""])

    def handle_data(self, data):
        if self.found:
            self.found[-1][2] += data


def test_texts_leave_the_element_that_holds_them_in_one_piece():
    text = page(NASTY[0], {"texts": NASTY})
    found = _Elements(text).found
    scripts = [element for element in found if element[0] == "script"]
    assert len(scripts) == 2  # the data and page.js
    assert json.loads(scripts[0][2]) == {"texts": NASTY}
    assert text.encode()  # no half of a pair is left, which UTF-8 lacks
    assert not set(embedded(NASTY)) & set("<>&\u2028\u2029")


def test_a_page_asks_nobody_for_anything():
    found = _Elements(page("t", {})).found
    (policy,) = (each for _, each, _ in found if "content-security-policy" in str(each).lower())
    assert policy["content"].startswith("default-src 'none'")
    assert not [each for _, each, _ in found if {"src", "href"} & set(each)]


def test_arrays_come_back_bit_by_bit():
    values = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(array(json.loads(embedded(numbers(values)))), values)


def test_numbers_that_json_lacks_are_refused():
    with pytest.raises(ValueError):
        page("t", {"x": float("nan")})
