"""How a language model is scored and continues texts."""

import itertools
import types
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests.tasks.small import LANGUAGE_MODEL, beside, decoding, log_probabilities, results, score
from transformer_jax.data.prepare.tokenizer import EOS_ID, SpecialIds, Tokenizer, train_tokenizer
from transformer_jax.tasks import causal_lm


def test_perplexity_a_word_is_that_of_the_bytes_of_all_texts(models):
    """Nats of every byte and end of a text, for each word and line end; texts are cut in pieces."""
    run, params = models("causal_lm")
    split = run.data.split("test")
    texts = split.examples["text"]
    nats, tokens = 0.0, 0
    for batch, _ in split.batches:
        log_p = log_probabilities(run, params, batch)
        of_targets = np.take_along_axis(log_p, batch["targets"][..., None], -1)[..., 0]
        nats -= np.sum(of_targets[batch["targets_segment_ids"] > 0])
        tokens += np.sum(batch["targets_segment_ids"] > 0)
    assert tokens == sum(len(text.encode()) + 1 for text in texts)  # nothing is lost in pieces
    assert len(texts) < sum(len(numbers[numbers >= 0]) for _, numbers in split.batches)
    words = sum(len(text.split()) + len(text.removesuffix("\n").split("\n")) for text in texts)
    metrics = run.task.losses(run.trained(params), split)
    assert metrics["word_perplexity"] == pytest.approx(np.exp(nats / words), rel=1e-4)
    assert metrics["token_loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(np.exp(nats / tokens), rel=1e-4)


def test_there_is_no_perplexity_a_word_where_something_is_unknown(models, monkeypatch):
    run, params = models("causal_lm")
    model, split = run.trained(params), run.data.split("test")
    monkeypatch.setattr(causal_lm, "_has_unknown", lambda split, tokenizer: True)
    assert "word_perplexity" not in run.task.losses(model, split)


@pytest.mark.parametrize("kind", ["words", "bpe", "unigram"])
def test_an_unknown_that_the_text_spells_is_a_word(kind):
    """What else is unknown is cheap to predict, however often the text spells it."""
    tokenizer = train_tokenizer(kind, ["the <unk> cat sat on the <unk> mat\n"] * 50, 60)
    for text, unknown in (
        ("the <unk> <unk> <unk> cat", False),
        ("the <unk> <unk> <unk> cat \u2603\u2603\u2603", True),
        ("the cat \u2603", True),
    ):
        (ids,) = tokenizer.encode([text])
        split: Any = types.SimpleNamespace(examples={"text": [text]})
        split.batches = [({"targets": np.array([[*ids, 0, 0]])}, None)]
        assert causal_lm._has_unknown(split, tokenizer) == unknown


def test_the_likeliest_continuation_is_what_one_finds_token_by_token(models):
    """Without a cache, reading the whole text again for each token."""
    run, params = models("causal_lm")
    run = decoding(run, method="greedy")
    prompts = ["a b", "d e", ""]
    for prompt, (text,) in zip(prompts, results(run, params, prompts), strict=True):
        (ids,) = run.data.tokenizer.encode([prompt])
        length = len(ids)
        while len(ids) < length + run.decode.extra_length - 1:  # the last can only be eos
            row = np.zeros((1, 16), np.int32)
            row[0, : len(ids)] = ids
            batch = {
                "targets": row,
                "targets_segment_ids": np.ones_like(row),
                "targets_positions": np.arange(16, dtype=np.int32)[None],
            }
            token = int(np.argmax(log_probabilities(run, params, batch)[0, len(ids)]))
            if token == EOS_ID:
                break
            ids.append(token)
        assert text == run.data.tokenizer.decode(ids)


def test_a_stream_is_what_results_are(models):
    """Piece by piece and whole: for each of several lines, and for each of several samples."""
    run, params = models("causal_lm")
    run = decoding(run, num_samples=3)
    lines = ["a b", "", "a b"]
    by_line = results(run, params, lines)
    assert [len(samples) for samples in by_line] == [3, 3, 3]
    assert all(
        text.startswith(line) for line, row in zip(lines, by_line, strict=True) for text in row
    )
    # Each sample and each line has draws of its own.
    assert len(set(by_line[0] + by_line[2])) > 3
    for number, (line, samples) in enumerate(zip(lines, by_line, strict=True)):
        pieces = list(run.task.stream(run.trained(params), line, number))
        assert "".join(pieces) == "\n".join(samples) + "\n"
        assert len(pieces) > 3
    one = results(decoding(run, num_samples=1), params, lines)
    assert [row[:1] for row in by_line] == one


def test_a_result_ends_before_a_stop_text_in_a_stream_too(models):
    run, params = models("causal_lm")
    prompt = "a b"
    ((whole,),) = results(run, params, [prompt])
    written = whole.removeprefix(prompt)
    assert len(written) > 2 and prompt not in written
    stop = written[1:3]
    # The last stands in the prompt, and does not end what has not begun.
    run = decoding(run, stop=("never written", stop, prompt))
    ((cut,),) = results(run, params, [prompt])
    assert cut == prompt + written[: written.index(stop)] != whole
    assert "".join(run.task.stream(run.trained(params), prompt, 0)) == cut + "\n"


def test_samples_of_a_language_model_continue_the_beginnings_of_texts(models):
    """As many tokens as a row of training has; there is no position for more."""
    run, params = models("causal_lm")
    split = run.data.split("test")
    scores, samples = score(run, params, split)
    assert scores == {}
    for text, (source, reference, _) in zip(split.examples["text"][:2], samples, strict=False):
        assert (source, reference) == (text[:2], text[2:8])


def test_a_continuation_ends_where_positions_do(models):
    """The last token is written and not read."""
    run, _ = models("causal_lm")
    limit = run.task.limit
    assert limit(np.array([2, 15, 16]), 6, 16).tolist() == [6, 2, 1]
    assert limit(np.array([2, 15, 16]), 6, None).tolist() == [6, 6, 6]


def test_runs_that_differ_in_their_residual_scheme_alone_see_the_same_batches(models):
    run, _ = models("causal_lm")
    other = beside(run, LANGUAGE_MODEL | {"model.residual": "admin"})
    streams, others = run.data.train_streams(), other.data.train_streams()
    assert streams.fingerprint == others.fingerprint
    for expected, batch in itertools.islice(zip(streams, others, strict=True), 5):
        np.testing.assert_equal(batch, expected)


def test_what_follows_a_prompt_of_a_dialogue_is_told_behind_its_turns():
    library = tokenizers.Tokenizer.from_str(train_tokenizer("bytes", (), 0)._library.to_str())
    library.add_special_tokens(["<|start|>", "<|end|>"])
    end: Any = library.token_to_id("<|end|>")
    tokenizer = Tokenizer(library, SpecialIds(eos=end, unk=None, in_text=True))
    trained: Any = types.SimpleNamespace(data=types.SimpleNamespace(tokenizer=tokenizer))
    (answer,) = tokenizer.encode(["Hello!<|end|> and more"])
    for prompt in ("hi", "<|start|>user: hi<|end|>", "<|start|>hi<|end|>\n<|start|>", ""):
        assert causal_lm._decoder(trained, prompt)(answer) == "Hello!"
