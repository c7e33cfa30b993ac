import re

import pytest

from transformer_jax.tools.pages.page import check_name, page

# As a browser reads it: a script ends where the next end of one stands.
SCRIPT = re.compile("(<script[^>]*>)(.*?)(</script)", re.DOTALL)


def test_a_page_asks_nobody_for_anything():
    without_code = SCRIPT.sub(r"\1\3", page("t", {}))
    assert "Content-Security-Policy\" content=\"default-src 'none'" in without_code
    assert not re.search(r"<[^>]*\s(src|href)=", without_code)


def test_a_page_says_by_which_command_it_was_made(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/x/main.py", "--mode=look", "--workdir=a b"])
    assert "by ./launch.sh look &#x27;--workdir=a b&#x27;" in page("t", {})


@pytest.mark.parametrize("name", ["a.html", "a.htm", "a", "-", "/dev/null"])
def test_a_page_is_called_as_one(name):
    check_name(name)
    with pytest.raises(ValueError, match=r"--output=b/a.txt: .* HTML; name it b/a.html"):
        check_name("b/a.txt")


def test_numbers_that_json_lacks_are_refused():
    with pytest.raises(ValueError):
        page("t", {"x": float("nan")})
