"""Causal language modelling: every token of a text from those before it, by a decoder alone."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Column, Encoding, Labels, Limits, Recipe
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.prepare.transforms import pieces
from transformer_jax.data.read.examples import Examples
from transformer_jax.evaluation.decoder import DecodeSettings, Lengths
from transformer_jax.evaluation.scores import word_perplexity
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks.task import Sample, Scores, Task, spread
from transformer_jax.training.losses import next_token_loss

_SAMPLE_TOKENS = 64  # of a sample at most, a quarter of them its prompt

# <unk> as a word of a text.
_SPELLED_UNKNOWN = re.compile(r"(?<!\S)<unk>(?!\S)")


def _encode(examples: Examples, tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Documents with eos, cut into consecutive pieces; so nothing is too long."""
    documents = ([*ids, tokenizer.special.eos] for ids in tokenizer.encode(examples["text"]))
    return {"targets": pieces(documents, limits.target)}, ()


def _prompt(lines: Sequence[str], tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Prompts behind bos, cut at their beginning: what is near counts most."""
    rows, most = tokenizer.encode(lines), limits.target - 1
    inputs = [[tokenizer.special.bos, *ids[-most:]] for ids in rows]
    return {"inputs": inputs}, [number for number, ids in enumerate(rows) if len(ids) > most]


def _limit(prompt_tokens: Lengths, extra_length: int, most_positions: int | None) -> Lengths:
    """`extra_length`, or as many as there are positions for."""
    if most_positions is None:
        return np.full_like(prompt_tokens, extra_length)
    # The last token is written and not read, so it needs no position.
    return np.minimum(extra_length, most_positions + 1 - prompt_tokens)


def _losses(trained: Trained, split: Split) -> dict[str, float]:
    """The means, and the perplexity a word where the tokenizer knows every word."""
    means, texts = trained.losses(split), split.examples["text"]
    if not _has_unknown(split, trained.data.tokenizer):
        tokens = sum(np.sum(batch["targets_segment_ids"] > 0) for batch, _ in split.batches)
        nats = means["token_loss"] * float(tokens)
        means["word_perplexity"] = word_perplexity(nats, texts)
    return means


def _has_unknown(split: Split, tokenizer: Tokenizer) -> bool:
    """Whether <unk> stands for words or characters, which would make a perplexity a word too low.

    An <unk> in the text itself, as WikiText-2 has them, is a word like any other.
    """
    unk = tokenizer.special.unk
    if unk is None or not any(np.any(batch["targets"] == unk) for batch, _ in split.batches):
        return False
    others = [_SPELLED_UNKNOWN.sub("", text) for text in split.examples["text"]]
    return any(unk in ids for ids in tokenizer.encode(others))


def _scored(decode: DecodeSettings, longest_prompt: int) -> tuple[DecodeSettings, int]:
    """One continuation as long as a sample allows, of prompts of a quarter of it, behind bos."""
    most = min(_SAMPLE_TOKENS, longest_prompt)
    extra_length = most - most // 4
    decode = dataclasses.replace(decode, num_samples=1, extra_length=extra_length, stop=())
    return decode, 1 + most // 4


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """No scores but the losses; as samples, how the model continues the beginnings of texts."""
    tokenizer = trained.data.tokenizer
    texts = spread(split.examples["text"])
    # No longer than in training, since there may be no more positions.
    most = min(_SAMPLE_TOKENS, trained.data.settings.longest["target"])
    # Characters bound tokens, so that of a whole book only the beginning is read.
    ids = [row[:most] for row in tokenizer.encode([text[: 32 * most] for text in texts])]
    cuts = [min(most // 4, len(row) // 2) for row in ids]
    beginnings = [tokenizer.decode(row[:cut]) for row, cut in zip(ids, cuts, strict=True)]
    prompts = [text.rstrip("\ufffd") for text in beginnings]  # half a character
    references = [
        tokenizer.decode(row)[len(prompt) :] for row, prompt in zip(ids, prompts, strict=True)
    ]
    settings, _ = _scored(trained.writer.settings, trained.data.settings.longest["target"])
    outputs = _continuations(trained.writing(settings), prompts)
    return {}, [
        (prompt, reference, text)
        for prompt, reference, (text,) in zip(prompts, references, outputs, strict=True)
    ]


def _results(trained: Trained, lines: Sequence[str]) -> list[list[str]]:
    """Each line with its continuations. On an empty line a text begins."""
    written = zip(lines, _continuations(trained, lines), strict=True)
    return [[line + text for text in texts] for line, texts in written]


def _continuations(trained: Trained, prompts: Sequence[str]) -> list[list[str]]:
    decoders = [_decoder(trained, prompt) for prompt in prompts]
    return trained.texts(trained.data.prompts(prompts), decoders)


def _decoder(trained: Trained, prompt: str) -> Callable[[list[int]], str]:
    """ids -> the text that follows the prompt.

    Blanks and halves of characters hang on what stands before. A prompt of a dialogue has ends of
    turns in it, and what is decoded ends there: so it goes by what the prompt has after the last.
    """
    tokenizer = trained.data.tokenizer
    (ids,) = tokenizer.encode([prompt])
    ends = [place for place, one in enumerate(ids, 1) if one in tokenizer.special.ends]
    ids = ids[max(ends, default=0) :]
    start = len(tokenizer.decode(ids))
    return lambda following: tokenizer.decode([*ids, *following])[start:]


def _stream(trained: Trained, line: str, number: int) -> Iterator[str]:
    """Continuations of one prompt, each behind the prompt.

    The first of several samples comes piece by piece, the others whole. The number of the line
    decides what is drawn: so they are what `_results` finds for this one of many lines.
    """
    yield line
    others: dict[int, str] = {}
    for row, text in trained.stream(line, number, _decoder(trained, line)):
        if row == 0:
            yield text
        others[row] = others.get(row, "") + text
    for row in range(1, trained.writer.settings.num_samples):
        yield f"\n{line}{others.get(row, '')}"
    yield "\n"


TASK = Task(
    recipe=Recipe(
        name="causal_lm",
        reads=("text",),
        columns={"targets": Column("target")},
        encode=_encode,
        prompt=_prompt,
        documents=True,
        predicted="targets",
    ),
    heads={"decoder_only": "tokens"},
    loss=next_token_loss,
    losses=_losses,
    score=_score,
    results=_results,
    stream=_stream,
    limit=_limit,
    scored=_scored,
)
