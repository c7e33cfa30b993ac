"""What each objective makes of its examples: lists of token ids, and masks drawn over them."""

import itertools
from collections.abc import Iterable
from typing import Literal

import numpy as np
from jaxtyping import Int32

from transformer_jax.data.sources import Examples
from transformer_jax.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer

TooLong = Literal["drop", "truncate"]
Rows = list[list[int]]

# The columns of the examples that each objective reads.
READ_COLUMNS: dict[str, tuple[str, ...]] = {
    "translation": ("source", "target"),
    "causal_lm": ("text",),
    "masked_lm": ("text",),
    "classification": ("text", "label"),
    "tagging": ("words", "tags"),
}
NEVER_MASKED = (PAD_ID, EOS_ID, BOS_ID)


def encode(
    examples: Examples,
    tokenizer: Tokenizer,
    objective: str,
    labels: tuple[str, ...],
    *,
    max_source_length: int,
    max_target_length: int,
    too_long: TooLong,
) -> tuple[dict[str, Rows], int]:
    """The columns of token ids that `objective` trains on, and how many examples were too long.

    translation: inputs and targets, each with eos. causal_lm: targets, documents with eos, cut
    into consecutive pieces. masked_lm: inputs, pieces of documents between bos and eos.
    classification, tagging: inputs, sentences between bos and eos, and labels, as long: the n-th
    of `labels`, counted from 1, at bos or at the first token of every word, and 0 elsewhere.

    Args:
        examples: columns, at least READ_COLUMNS[objective].
        labels: all labels or tags, in the order of their classes; () for other objectives.
        max_source_length: tokens of one row of inputs, bos and eos included.
        max_target_length: tokens of one row of targets, eos included.
        too_long: "drop" leaves longer examples out (training), "truncate" keeps their beginning
            (evaluation), followed by eos in inputs alone: a target that is cut does not end there.
            Both are counted. Documents lose nothing, and are never too long.

    Raises:
        ValueError: an unknown label, or pieces of documents without room for a token.
    """
    if objective == "translation":
        sources = tokenizer.encode(examples["source"])
        targets = tokenizer.encode(examples["target"])
        return _pairs(sources, targets, max_source_length, max_target_length, too_long)
    if objective == "causal_lm":
        documents = ([*ids, EOS_ID] for ids in tokenizer.encode(examples["text"]))
        return {"targets": _pieces(documents, max_target_length)}, 0
    if objective == "masked_lm":
        pieces = _pieces(tokenizer.encode(examples["text"]), max_source_length - 2)
        return {"inputs": [[BOS_ID, *piece, EOS_ID] for piece in pieces]}, 0
    numbers = {label: number for number, label in enumerate(labels, 1)}
    if objective == "classification":
        sentences, places = _classes(examples["text"], examples["label"], tokenizer, numbers)
    else:
        sentences, places = _tags(examples["words"], examples["tags"], tokenizer, numbers)
    return _labelled(sentences, places, max_source_length, too_long)


def _pairs(
    sources: Rows, targets: Rows, max_source: int, max_target: int, too_long: TooLong
) -> tuple[dict[str, Rows], int]:
    fits = [
        len(source) < max_source and len(target) < max_target
        for source, target in zip(sources, targets, strict=True)
    ]
    if too_long == "drop":
        sources, targets = _select(sources, fits), _select(targets, fits)
    columns = {
        "inputs": [[*ids[: max_source - 1], EOS_ID] for ids in sources],
        "targets": [[*ids, EOS_ID][:max_target] for ids in targets],
    }
    return columns, fits.count(False)


def _pieces(documents: Iterable[list[int]], length: int) -> Rows:
    """The documents cut into consecutive pieces of `length` tokens, the last ones shorter."""
    if length < 1:
        raise ValueError(f"pieces of {length} tokens: data.max_*_length leaves no room for one")
    return [
        ids[start : start + length] for ids in documents for start in range(0, len(ids), length)
    ]


def _classes(
    texts: list[str], labels: list[str], tokenizer: Tokenizer, numbers: dict[str, int]
) -> tuple[Rows, Rows]:
    """Ids of each text, and its label at the bos before them."""
    sentences = tokenizer.encode(texts)
    places = [
        [_number(label, numbers), *[0] * len(ids)]
        for ids, label in zip(sentences, labels, strict=True)
    ]
    return sentences, places


def _tags(
    words: list[list[str]], tags: list[list[str]], tokenizer: Tokenizer, numbers: dict[str, int]
) -> tuple[Rows, Rows]:
    """Ids of each sentence, and its tags at the words' first tokens; nothing at bos."""
    sentences, places = [], []
    for word_ids, labels in zip(tokenizer.encode_words(words), tags, strict=True):
        sentences.append(list(itertools.chain.from_iterable(word_ids)))
        place = [0]
        for ids, label in zip(word_ids, labels, strict=True):
            place += [_number(label, numbers), *[0] * (len(ids) - 1)]
        places.append(place)
    return sentences, places


def _number(label: str, numbers: dict[str, int]) -> int:
    if label not in numbers:
        raise ValueError(f"the label {label!r} is none of those known: {', '.join(numbers)}")
    return numbers[label]


def _labelled(
    sentences: Rows, places: Rows, max_length: int, too_long: TooLong
) -> tuple[dict[str, Rows], int]:
    """Sentences between bos and eos, with their labels from bos on."""
    room = max_length - 2
    fits = [len(ids) <= room for ids in sentences]
    if too_long == "drop":
        sentences, places = _select(sentences, fits), _select(places, fits)
    columns = {
        "inputs": [[BOS_ID, *ids[:room], EOS_ID] for ids in sentences],
        "labels": [[*place[: room + 1], 0] for place in places],
    }
    return columns, fits.count(False)


def _select(rows: Rows, kept: list[bool]) -> Rows:
    return list(itertools.compress(rows, kept))


def mask_tokens(
    example: dict[str, np.ndarray],
    rng: np.random.Generator,
    *,
    mask_rate: float,
    mask_id: int,
) -> dict[str, Int32[np.ndarray, "..."]]:
    """Masks inputs, and adds the targets of masked language modelling.

    BERT's procedure (Devlin et al. 2019, section 3.1): each token but bos and eos is to be
    predicted with probability `mask_rate`, and at least one of an example. Of those, 80% become
    `mask_id`, 10% a random ordinary token, and 10% stay.

    Args:
        example: "inputs" and "inputs_positions", (..., length); any number of examples, padded or
            packed or both. Positions start from 0 in each. Other keys are handed on.
        rng: drawn from token by token, so that padding at the end changes nothing before it.

    Returns:
        The example with its inputs masked, and "targets" of their shape: the original token where
        it is to be predicted, else 0.
    """
    tokens = example["inputs"]
    draws, treatment, token_draws = np.moveaxis(rng.random((*tokens.shape, 3)), -1, 0)
    maskable = ~np.isin(tokens, NEVER_MASKED)
    draws = np.where(maskable, draws, 1.0)
    starts = np.flatnonzero(example["inputs_positions"] == 0)
    lowest = np.minimum.reduceat(draws.ravel(), starts)
    lowest = np.repeat(lowest, np.diff(starts, append=tokens.size)).reshape(tokens.shape)
    chosen = maskable & ((draws < mask_rate) | (draws == lowest))

    first = UNK_ID + 1  # of the ordinary tokens
    random_tokens = first + (token_draws * (mask_id - first)).astype(np.int32)
    shown = np.select([treatment < 0.8, treatment < 0.9], [mask_id, random_tokens], tokens)
    return example | {
        "inputs": np.where(chosen, shown, tokens).astype(np.int32),
        "targets": np.where(chosen, tokens, PAD_ID).astype(np.int32),
    }
