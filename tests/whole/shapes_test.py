"""The command line with the other shapes: a language model, a masked one, and a classifier."""

import functools
import json

import jax
import numpy as np
import pytest

from tests.whole.command_line import call, piped, results
from transformer_jax.commands.start import begin
from transformer_jax.config.build import built
from transformer_jax.config.load import load

pytestmark = pytest.mark.long


def test_a_language_model_without_a_test_split_is_scored_on_validation(trained, capsys):
    workdir = trained("language_model")
    before = results(workdir)
    assert before["status"] in ("finished", "plateaued")
    assert before["validation/word_perplexity"] > 1
    assert not [name for name in before if name.startswith("test/")]
    assert "a" in (workdir / "samples.txt").read_text()
    (workdir / "results.json").write_text(json.dumps({"status": "finished"}))
    assert call(f"--workdir={workdir}", "--mode=evaluate") == 0  # no test split
    assert "word_perplexity" in capsys.readouterr().out
    after = results(workdir)
    assert after.items() <= before.items() and "validation/word_perplexity" in after
    (workdir / "results.json").write_text(json.dumps(before))


def test_a_language_model_continues_lines_as_they_come_and_in_a_file(folder, trained, monkeypatch):
    arguments = [
        f"--workdir={trained('language_model')}",
        "--mode=generate",
        f"--config.data.dir={folder}/nowhere",
        "--config.decode.num_samples=32",  # of which some end at once
        "--config.decode.extra_length=6",
    ]
    pieces = piped(monkeypatch, "a e\n\na e\n", *arguments)
    lines = "".join(pieces).splitlines()
    prompts = ["a e"] * 32 + [""] * 32 + ["a e"] * 32
    assert len(lines) == len(prompts)
    assert all(line.startswith(prompt) for line, prompt in zip(lines, prompts, strict=True))
    assert len(set(lines)) > 2 and len(pieces) > len(lines)
    (folder / "prompts").write_text("a e\n\na e\n")
    call(*arguments, f"--input={folder}/prompts", f"--output={folder}/continued")
    assert (folder / "continued").read_text() == "".join(pieces)


def test_a_classifier_starts_from_the_encoder_of_a_masked_language_model(trained, monkeypatch):
    """It takes the tokenizer, too, and reports what it took. A learning rate of 0 keeps it all."""
    masked, classes = trained("masked"), trained("classes")
    assert (classes / "tokenizer.json").read_text() == (masked / "tokenizer.json").read_text()
    report = json.loads((classes / "init_from.json").read_text())
    assert report["checkpoint"] == str(masked / "checkpoints" / "6")
    assert {"embedding/table", "encoder/self_attention/query"} <= set(report["taken"])
    assert report["new"] and all(path.startswith("label_head/") for path in report["new"])
    assert report["left"]
    assert set(report["left"].values()) == {"no such parameter"}
    assert all(path.startswith("token_head/") for path in report["left"])
    vectors = [
        piped(monkeypatch, "a e\nb f\n", f"--workdir={workdir}", "--mode=embed")
        for workdir in (masked, classes)
    ]
    assert vectors[0] == vectors[1]


def test_an_optimizers_average_begins_with_what_was_taken(trained, tmp_path):
    masked = trained("masked")
    changes = {"checkpoint.init_from": str(masked), "optimizer.name": "schedule_free"}
    with built(load(str(masked / "config.json"), changes), None) as run:
        state = begin(run, run.train_streams(), tmp_path, keep=False)
        assert run.average is not None
        average = run.average(state.params, state.opt_state)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, average, state.params)
    jax.tree.map(np.testing.assert_array_equal, state.evaluated, state.params)
