"""`configs` and `keys` list what there is, all of it or what words choose."""

import pytest

from tests.tracked import CONFIGS
from tests.whole.command_line import call
from transformer_jax.tools.show import lists


def text(capsys, *arguments):
    assert call(*arguments) == 0
    return capsys.readouterr().out


def test_every_config_has_a_line(capsys):
    lines = {line.split()[0]: line.split() for line in text(capsys, "--mode=configs").splitlines()}
    assert all(len(lines[f"configs/{path.name}"]) > 3 for path in CONFIGS)


@pytest.mark.parametrize(("mode", "word"), [("configs", "corpus"), ("keys", "features")])
def test_words_choose_the_lines_that_have_them_all(capsys, mode, word):
    everything = text(capsys, f"--mode={mode}")
    some = text(capsys, f"--mode={mode}", "EMBEDDED", word)
    assert some != everything
    assert set(some.splitlines()) < set(everything.splitlines())
    assert call(f"--mode={mode}", "embedded", "warmupsteps") == 1
    assert "error: no " in capsys.readouterr().err


@pytest.mark.parametrize("word", lists.SYNONYMS)
def test_what_the_field_says_finds_names(capsys, word):
    named = lists.SYNONYMS[word].replace(" ", "_").removeprefix("train_")
    assert named in text(capsys, "--mode=keys", word)


def test_names_come_first_and_words_are_whole():
    texts = {"a.warm_up": "Already a rate.", "rate": "Of steps.", "steps": "How many."}
    assert lists.search("key", texts, ["step"]) == ["steps", "rate"]
    assert lists.search("key", texts, ["RATE"]) == ["rate", "a.warm_up"]
    assert lists.search("key", texts, ["warm_up", "rates"]) == ["a.warm_up"]
    for part in "read", "lr":
        with pytest.raises(ValueError, match=f"no key has '{part}'; the nearest"):
            lists.search("key", texts, [part])


def test_a_task_finds_the_configs_that_are_trained_on_it(capsys):
    listing = text(capsys, "--mode=configs", "translation")
    assert "configs/multi30k.py" in listing and "configs/gpt2.py" not in listing
