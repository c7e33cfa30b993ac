"""The command line with the other shapes: a language model, a masked one, and a classifier."""

import json

import pytest

from tests.whole.command_line import call, message_of, piped, results

pytestmark = pytest.mark.long


def test_a_language_model_without_a_test_split_is_scored_on_validation(trained, capsys):
    workdir = trained("language_model")
    before = results(workdir)
    assert before["status"] in ("finished", "plateaued")
    assert before["validation/word_perplexity"] > 1
    assert not [name for name in before if name.startswith("test/")]
    assert "a" in (workdir / "samples.txt").read_text()
    (workdir / "results.json").write_text(json.dumps({"status": "finished"}))
    assert call(f"--workdir={workdir}", "--mode=evaluate", "--split=validation") == 0
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
    # A stop text, which is not shown.
    words = [(line.split()[2:3], sample) for sample, line in enumerate(lines[:32])]
    (word,), sample = next(pair for pair in words if pair[0] and f" {pair[0][0]}" not in prompts[0])
    line = lines[sample]
    stopped = piped(monkeypatch, "a e\n", *arguments, f"--config.decode.stop=(' {word}',)")
    assert "".join(stopped).splitlines()[sample] == line.partition(f" {word}")[0]


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


@pytest.mark.parametrize(
    ("name", "arguments", "parts"),
    [
        ("masked", "--mode=generate --input=@/t", ["masked_lm", "--mode=embed"]),
        ("language_model", "--mode=embed --input=@/t", ["encoder_only", "embeds"]),
        ("language_model", "--mode=evaluate", ["data.test is empty", "--split"]),
        (
            "classes",
            "--config=@/classes.json --workdir=@/new --config.model.d_model=6 "
            "--config.model.d_ff=4",
            ["@/masked", "embedding/table", "8", "6"],
        ),
    ],
)
def test_a_mistake_with_another_shape_ends_in_one_message(
    folder, trained, capsys, name, arguments, parts
):
    (folder / "t").write_text("a\n")
    message = message_of(folder, capsys, f"--workdir={trained(name)} {arguments}")
    assert all(part.replace("@", str(folder)) in message for part in parts), message
