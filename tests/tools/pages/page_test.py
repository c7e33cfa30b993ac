import json
import re

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


# As a browser reads it: a script ends where the next end of one stands.
SCRIPT = re.compile("(<script[^>]*>)(.*?)(</script)", re.DOTALL)


def test_texts_leave_the_element_that_holds_them_in_one_piece():
    text = page(NASTY[0], {"texts": NASTY})
    (_, data, _), _ = SCRIPT.findall(text)  # the data and page.js
    assert json.loads(data) == {"texts": NASTY}
    assert text.encode()  # no half of a pair is left, which UTF-8 lacks
    assert not set(embedded(NASTY)) & set("<>&\u2028\u2029")


def test_a_page_asks_nobody_for_anything():
    without_code = SCRIPT.sub(r"\1\3", page("t", {}))
    assert "Content-Security-Policy\" content=\"default-src 'none'" in without_code
    assert not re.search(r"<[^>]*\s(src|href)=", without_code)


def test_arrays_come_back_bit_by_bit():
    values = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(array(json.loads(embedded(numbers(values)))), values)


def test_numbers_that_json_lacks_are_refused():
    with pytest.raises(ValueError):
        page("t", {"x": float("nan")})
