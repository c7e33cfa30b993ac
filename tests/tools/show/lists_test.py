"""`configs` and `keys` list what there is, all of it or what words choose."""

from pathlib import Path

import pytest

from configs import default
from tests.whole.command_line import call
from transformer_jax.config.load import flatten


def shown(capsys, *arguments):
    assert call(*arguments) == 0
    return capsys.readouterr().out


def test_every_config_has_a_line(capsys):
    lines = shown(capsys, "--mode=configs").splitlines()
    files = {f"configs/{path.name}" for path in Path(default.__file__).parent.glob("[!_]*.py")}
    assert {line.split()[0] for line in lines} == files
    assert all(len(line.split()) > 3 for line in lines)


def test_every_key_is_shown_with_its_default(capsys):
    text = shown(capsys, "--mode=keys")
    for key, value in flatten(default.get_config()).items():
        assert f"{key} = {value!r}\n    " in text
    assert "One of post_ln, pre_ln" in text


@pytest.mark.parametrize(("mode", "word"), [("configs", "corpus"), ("keys", "features")])
def test_words_choose_the_lines_that_have_them_all(capsys, mode, word):
    everything = shown(capsys, f"--mode={mode}")
    some = shown(capsys, f"--mode={mode}", "EMBEDDED", word)
    assert some != everything
    assert set(some.splitlines()) < set(everything.splitlines())
    assert call(f"--mode={mode}", "embedded", "warmupsteps") == 1
    assert "error: no " in capsys.readouterr().err


def test_a_mistyped_key_is_offered_its_neighbours(capsys):
    assert call("--mode=keys", "warmupsteps") == 1
    assert "optimizer.warmup_steps" in capsys.readouterr().err
