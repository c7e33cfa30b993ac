"""What the source says of itself is found."""

from transformer_jax.configs import default
from transformer_jax.runs.workdir import flatten
from transformer_jax.tools.show import meanings


def test_every_key_is_found_with_its_default_and_a_meaning():
    values = flatten(default.get_config())
    assert {setting.key: setting.default for setting in meanings.settings()} == values
    unsaid = {setting.key for setting in meanings.settings() if not setting.meaning}
    named = {setting.key for setting in meanings.settings() if setting.choices}
    assert unsaid <= named
