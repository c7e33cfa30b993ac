"""What small untrained models make of splits and lines: losses, scores, samples, results."""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from configs import default
from transformer_jax import inference, overrides
from transformer_jax.build import build
from transformer_jax.data.tokenizer import EOS_ID

TINY = {
    "data.source": "text",
    "data.train": ("train",),
    "data.validation": ("test",),
    "data.test": ("test",),
    "data.tokenizer.kind": "words",
    # Evaluation rounds lengths up to 8, so this leaves one shape to compile.
    "data.max_source_length": 8,
    "data.max_target_length": 8,
    "data.row_source_length": 16,
    "data.row_target_length": 16,
    "data.batch_size": 8,
    "model.num_layers": 1,
    "model.d_model": 8,
    "model.num_heads": 2,
    "model.d_ff": 16,
    "evaluate.batch_size": 3,
    "decode.method": "sample",
    "decode.extra_length": 6,
}
LANGUAGE_MODEL = {
    "model.architecture": "decoder_only",
    "data.document_separator": "\n\n",
    "data.tokenizer.kind": "bytes",
    # Just as many as training needs.
    "model.positions": "learned",
    "model.max_length": 16,
}
ENCODER = {"model.architecture": "encoder_only"}
CHANGES = {
    "translation": {},
    "causal_lm": LANGUAGE_MODEL,
    "masked_lm": ENCODER,
    "classification": ENCODER
    | {"task.name": "classification", "data.source": "labelled"}
    | {"data.train": ("train.en",), "data.validation": ("test.en",), "data.test": ("test.en",)},
    "tagging": ENCODER
    | {"task.name": "tagging", "data.source": "conll"}
    | {f"data.{split}": ("words",) for split in ("train", "validation", "test")},
}
LINES = ["a b c", "", "h d d", "c d e f g a", "b b b", "f a e", "d"]
ALONE = (0, 2, 5)  # as long as each other


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """objective -> (run, parameters) of an untrained model."""
    folder = tmp_path_factory.mktemp("inference")
    rng = np.random.default_rng(0)
    for split, size in (("train", 40), ("test", 7)):
        lines = [" ".join(rng.choice(list("abcdefgh"), 1 + n % 5)) + " ." for n in range(size)]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
        # Documents of one line, two, three ...
        ends = ["\n" * (1 + (n % 3 == 2)) for n in range(size)]
        text = "".join(line + end for line, end in zip(lines, ends, strict=True))
        (folder / split).write_text(text)
    sentences = [zip(line.split(), "XYZ" * 3, strict=False) for line in LINES if line]
    tagged = ["".join(f"{word} {tag}\n" for word, tag in sentence) for sentence in sentences]
    (folder / "words").write_text("\n".join(tagged))
    folders = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}

    @functools.cache
    def make(objective):
        config = overrides.load(default.__file__, TINY | CHANGES[objective] | folders)
        run = build(config)
        batch = next(run.data.train_streams())
        return run, nn.meta.unbox(jax.jit(run.init)(jax.random.key(1), batch))

    return make


def _decoding(run, **changes):
    return dataclasses.replace(run, decode=dataclasses.replace(run.decode, **changes))


def _log_probabilities(run, params, batch):
    logits = np.asarray(jax.jit(run.apply)(params, batch, None), np.float64)
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def test_perplexity_a_word_is_that_of_the_bytes_of_all_texts(made):
    """Nats of every byte and end of a text, for each word and line end; texts are cut in pieces."""
    run, params = made("causal_lm")
    split = run.data.split("test")
    texts = split.examples["text"]
    nats, tokens = 0.0, 0
    for batch, _ in split.batches:
        log_p = _log_probabilities(run, params, batch)
        of_targets = np.take_along_axis(log_p, batch["targets"][..., None], -1)[..., 0]
        nats -= np.sum(of_targets[batch["targets_segment_ids"] > 0])
        tokens += np.sum(batch["targets_segment_ids"] > 0)
    assert tokens == sum(len(text.encode()) + 1 for text in texts)  # nothing is lost in pieces
    assert len(texts) < sum(len(numbers[numbers >= 0]) for _, numbers in split.batches)
    words = sum(len(text.split()) + len(text.removesuffix("\n").split("\n")) for text in texts)
    found = inference.losses(run, params, split)
    assert found["word_perplexity"] == pytest.approx(np.exp(nats / words), rel=1e-4)
    assert found["token_loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(nats / tokens), rel=1e-4)


def test_words_that_the_tokenizer_does_not_know_leave_no_perplexity_a_word(made):
    """Whatever is unknown is cheap to predict; an <unk> that the text holds is a word."""
    run, params = made("causal_lm")
    split = run.data.split("test")
    (batch, numbers), *others = split.batches
    unknown = batch | {"targets": np.where(batch["targets"] > 3, 3, batch["targets"])}
    changed = dataclasses.replace(split, batches=[(unknown, numbers), *others])
    assert "word_perplexity" not in inference.losses(run, params, changed)
    written = {"text": [f"{'<unk> ' * 99}{text}" for text in split.examples["text"]]}
    changed = dataclasses.replace(changed, examples=written)
    assert "word_perplexity" in inference.losses(run, params, changed)


def test_only_a_language_model_has_a_perplexity_a_word(made):
    run, params = made("masked_lm")
    found = inference.losses(run, params, run.data.split("test"))
    assert "word_perplexity" not in found and found["perplexity"] > 1


def test_the_likeliest_continuation_is_what_one_finds_token_by_token(made):
    """With `apply` alone, which has no cache, reading the whole text again for each token."""
    run, params = made("causal_lm")
    run = _decoding(run, method="greedy")
    prompts = ["a b", "d e", ""]
    apply = jax.jit(run.apply)
    for prompt, (found,) in zip(prompts, inference.results(run, params, prompts), strict=True):
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
            token = int(np.argmax(apply(params, batch, None)[0, len(ids)]))
            if token == EOS_ID:
                break
            ids.append(token)
        assert found == run.data.tokenizer.decode(ids)


def test_a_stream_is_what_results_are(made):
    """Piece by piece and whole: for each of several lines, and for each of several samples."""
    run, params = made("causal_lm")
    run = _decoding(run, num_samples=3)
    lines = ["a b", "", "a b"]
    found = inference.results(run, params, lines)
    assert [len(samples) for samples in found] == [3, 3, 3]
    assert all(
        text.startswith(line) for line, row in zip(lines, found, strict=True) for text in row
    )
    # Each sample and each line has draws of its own.
    assert len(set(found[0] + found[2])) > 3
    for number, (line, samples) in enumerate(zip(lines, found, strict=True)):
        pieces = list(inference.stream(run, params, line, number))
        assert "".join(pieces) == "\n".join(samples) + "\n"
        assert len(pieces) > 3
    one = inference.results(_decoding(run, num_samples=1), params, lines)
    assert [row[:1] for row in found] == one


def test_another_seed_draws_anew(made):
    run, params = made("causal_lm")
    again = dataclasses.replace(run, seed=run.seed + 1)
    lines = ["a b", "c"]
    found = inference.results(run, params, lines)
    assert found == inference.results(run, params, lines)
    assert found != inference.results(again, params, lines)


def test_a_result_ends_before_a_stop_text_in_a_stream_too(made):
    run, params = made("causal_lm")
    prompt = "a b"
    ((whole,),) = inference.results(run, params, [prompt])
    written = whole.removeprefix(prompt)
    assert len(written) > 2 and prompt not in written
    stop = written[1:3]
    run = _decoding(run, stop=("never written", stop))
    ((cut,),) = inference.results(run, params, [prompt])
    assert cut == prompt + written[: written.index(stop)] != whole
    assert "".join(inference.stream(run, params, prompt)) == cut + "\n"
    # One that stands in the prompt does not end what has not begun.
    run = _decoding(run, stop=(prompt,))
    assert inference.results(run, params, [prompt]) == [[whole]]


def test_a_translation_does_not_depend_on_the_lines_beside_it(made):
    run, params = made("translation")
    run = _decoding(run, method="beam")
    together = inference.results(run, params, LINES)
    assert together[1] == [""]  # an empty line is not translated
    for number in ALONE:
        assert inference.results(run, params, [LINES[number]]) == [together[number]]
    assert inference.results(run, params, []) == []


def test_samples_of_a_translation_are_as_many_as_asked_for(made):
    run, params = made("translation")
    found = inference.results(_decoding(run, num_samples=4), params, LINES)
    assert [len(samples) for samples in found] == [4] * len(LINES)
    assert found[1] == [""] * 4 and len(set(found[3])) > 1


def test_a_class_is_the_likeliest_one_of_the_text(made):
    run, params = made("classification")
    # A label is not drawn, so there is one of it.
    found = inference.results(_decoding(run, method="sample", num_samples=3), params, LINES)
    assert found[1] == [""]
    for number in ALONE:
        ((batch, _),) = run.data.prompts([LINES[number]])
        log_p = _log_probabilities(run, params, batch)[0, 0]
        assert found[number] == [run.data.labels[np.argmax(log_p)]]


def test_each_word_gets_a_tag(made):
    run, params = made("tagging")
    for line, (tags,) in zip(LINES, inference.results(run, params, LINES), strict=True):
        assert len(tags.split()) == len(line.split())
        assert set(tags.split()) <= {"X", "Y", "Z"}


def test_scores_of_classes_are_of_what_the_model_says_of_the_texts(made):
    run, params = made("classification")
    split = run.data.split("test")
    scores, samples = inference.score(run, params, split)
    found = [label for (label,) in inference.results(run, params, split.examples["text"])]
    right = [a == b for a, b in zip(found, split.examples["label"], strict=True)]
    assert scores["accuracy"] == pytest.approx(np.mean(right))
    assert {"accuracy", "f1", "matthews"} == scores.keys()
    first = zip(("source", "reference", "output"), ("text", "label"), strict=False)
    for name, column in first:
        assert f"{name:11}{split.examples[column][0]}" in samples
    assert f"output     {found[0]}" in samples


def test_scores_of_tags_are_of_what_the_model_says_of_the_words(made):
    run, params = made("tagging")
    split = run.data.split("test")
    scores, samples = inference.score(run, params, split)
    lines = [" ".join(words) for words in split.examples["words"]]
    found = [tags.split() for (tags,) in inference.results(run, params, lines)]
    pairs = list(zip(found, split.examples["tags"], strict=True))
    right = [a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)]
    assert scores["accuracy"] == pytest.approx(np.mean(right))
    assert scores["exact_match"] == pytest.approx(np.mean([a == b for a, b in pairs]))
    assert f"source     {lines[0]}" in samples and f"output     {' '.join(found[0])}" in samples


def test_scores_of_translations_are_of_one_translation_each(made):
    """Also where `generate` would write several."""
    run, params = made("translation")
    run = _decoding(run, num_samples=2)
    split = run.data.split("test")
    scores, samples = inference.score(run, params, split)
    assert {"bleu", "chrf", "exact_match", "bleu_signature", "chrf_signature"} == scores.keys()
    once = inference.results(_decoding(run, num_samples=1), params, split.examples["source"])
    right = [text == target for (text,), target in zip(once, split.examples["target"], strict=True)]
    assert scores["exact_match"] == pytest.approx(np.mean(right))
    assert f"output     {once[0][0]}".rstrip() in samples


def test_samples_of_a_language_model_go_on_with_the_beginnings_of_texts(made):
    """As many tokens as a row of training has; there is no position for more."""
    run, params = made("causal_lm")
    split = run.data.split("test")
    scores, samples = inference.score(run, params, split)
    assert scores == {}
    for text in split.examples["text"][:2]:
        text = text.replace("\n", " ")
        assert f"source     {text[:2].rstrip()}\n" in samples
        assert f"reference  {text[2:8].rstrip()}\n" in samples


def test_samples_of_masked_words_show_the_text_hidden_whole_and_filled(made):
    run, params = made("masked_lm")
    split = run.data.split("test")
    scores, samples = inference.score(run, params, split)
    assert scores == {} and "mask" in samples
    lines = samples.splitlines()
    shown = [
        [line[15:] for line in lines if line[4:15].strip() == name]
        for name in ("source", "reference", "output")
    ]
    assert 0 < len(shown[0]) == len(shown[1]) == len(shown[2])
    assert set(shown[1]) <= set(split.examples["text"])
    for source, reference, output in zip(*shown, strict=True):
        assert source != reference
        words = [text.replace("< mask >", "<mask>").split() for text in (source, reference, output)]
        # Where nothing is asked, the output is the text.
        assert len(words[0]) == len(words[1]) == len(words[2])


@pytest.mark.parametrize("objective", ["masked_lm", "classification"])
def test_vectors_of_lines_come_in_their_order_whatever_the_batches(made, objective):
    run, params = made(objective)
    vectors = inference.embed(run, params, LINES)
    assert vectors.shape == (len(LINES), 8) and np.isfinite(vectors).all()
    for number in ALONE:
        (alone,) = inference.embed(run, params, [LINES[number]])
        np.testing.assert_allclose(alone, vectors[number], atol=1e-5)
    assert np.abs(vectors[0] - vectors[3]).max() > 1e-3


def test_what_a_model_cannot_do_is_told(made):
    run, params = made("masked_lm")
    with pytest.raises(ValueError, match="masked tokens.*--mode=embed"):
        inference.results(run, params, LINES)
    for objective in ("causal_lm", "translation"):
        run, params = made(objective)
        with pytest.raises(ValueError, match="encoder_only.*" + run.model.config.architecture):
            inference.embed(run, params, LINES)
