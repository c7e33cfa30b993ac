"""What the source says of itself is found."""

from ml_collections import ConfigDict

from transformer_jax.configs import default
from transformer_jax.runs.workdir import flatten
from transformer_jax.tools.show import meanings


def test_every_key_is_found_with_its_default_and_a_meaning():
    values = flatten(default.get_config())
    assert {setting.key: setting.default for setting in meanings.settings()} == values
    unsaid = {setting.key for setting in meanings.settings() if not setting.meaning}
    named = {setting.key for setting in meanings.settings() if setting.choices}
    assert unsaid <= named


def test_a_comment_beside_or_above_a_key_is_its_meaning():
    source = """
def get_config():
    config.a = a = ConfigDict()  # the section

    # Above: more
    # than a line.
    a.b = 1  # beside
    a.c = 2
"""
    config = ConfigDict({"a": {"b": 1, "c": 2}})
    assert meanings.comments(config, source) == {
        "a": "The section.",
        "a.b": "Above: more than a line. Beside.",
        "a.c": "",
    }


def test_a_docstring_is_its_first_sentence(tmp_path):
    (tmp_path / "a.py").write_text('"""What it\nis. And more.\n\nOther.\n"""\n')
    assert meanings.docstring(tmp_path / "a.py") == "What it is"
