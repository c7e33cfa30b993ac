"""`configs` and `keys` list what there is, all of it or what words choose."""

from pathlib import Path

import pytest

from tests.whole.command_line import call
from transformer_jax.configs import default


def shown(capsys, *arguments):
    assert call(*arguments) == 0
    return capsys.readouterr().out


def test_every_config_has_a_line(capsys):
    lines = shown(capsys, "--mode=configs").splitlines()
    files = {f"configs/{path.name}" for path in Path(default.__file__).parent.glob("[!_]*.py")}
    assert {line.split()[0] for line in lines} == files
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize(("mode", "word"), [("configs", "corpus"), ("keys", "features")])
def test_words_choose_the_lines_that_have_them_all(capsys, mode, word):
    everything = shown(capsys, f"--mode={mode}")
    some = shown(capsys, f"--mode={mode}", "EMBEDDED", word)
    assert some != everything
    assert set(some.splitlines()) < set(everything.splitlines())
    assert call(f"--mode={mode}", "embedded", "warmupsteps") == 1
    assert "error: no " in capsys.readouterr().err
