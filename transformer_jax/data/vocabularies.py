"""The tokenizer and the labels of a data set, made once of its texts or taken from a run."""

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from absl import logging

from transformer_jax.data.cache import build_once, fingerprint
from transformer_jax.data.prepare.tokenizer import (
    TOKENIZERS,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
)
from transformer_jax.data.read.examples import as_text, listed, sample
from transformer_jax.data.settings import SPLITS, DataSettings
from transformer_jax.process import progress
from transformer_jax.runs.workdir import LABELS, TOKENIZER, read_labels

_FORMAT = 3  # counts the ways in which tokenizers have been trained on texts


def tokenizer_of(settings: DataSettings) -> Tokenizer:
    """`settings.tokenizer_file`, otherwise trained on the training split.

    Raises:
        ValueError: the task has none, the model has too few tokens for it, or it lacks a special
            token.
    """
    recipe, most = settings.recipe, settings.model_vocab_size
    if not recipe.tokenized:
        raise ValueError(f"task.name={recipe.name!r} reads numbers, and has no tokenizer")
    tokenizer = _tokenizer_of(settings)
    if most is not None and tokenizer.vocab_size > most:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, more than model.vocab_size="
            f"{most}: raise it, lower data.tokenizer.vocab_size, or set it to None"
        )
    missing = [token for token in recipe.extra_tokens if tokenizer.token_id(token) is None]
    if missing:
        raise ValueError(
            f"task.name={recipe.name!r} needs a tokenizer with {len(missing)} special tokens, such "
            f"as {missing[0]!r}, and that of the run which checkpoint.init_from names lacks them"
        )
    return tokenizer


def _tokenizer_of(settings: DataSettings) -> Tokenizer:
    if settings.tokenizer_file is not None and settings.tokenizer_file.exists():
        return load_tokenizer(settings.tokenizer_file)
    kind, vocab_size = settings.tokenizer_kind, settings.tokenizer_vocab_size
    extra_tokens = settings.recipe.extra_tokens
    if TOKENIZERS[kind].least is None:  # so the texts do not matter
        return train_tokenizer(kind, (), vocab_size, extra_tokens)
    settings.find_files()  # before minutes are spent on reading the first of them
    made_by = _FORMAT, kind, vocab_size, list(extra_tokens), tokenizers.__version__
    versions = [one.version() for one in settings.sets("train")]
    key = fingerprint(*made_by, *versions, settings.tokenizer_train_bytes)
    folder = settings.cache / "tokenizers" / key

    def train(temporary: Path) -> None:
        texts = _texts(settings)
        with progress.phase("Training the tokenizer"):
            tokenizer = train_tokenizer(kind, texts, vocab_size, extra_tokens)
        tokenizer.save(temporary / TOKENIZER)

    build_once(folder, train)
    return load_tokenizer(folder / TOKENIZER)


def _texts(settings: DataSettings) -> list[str]:
    """What a tokenizer is trained on: all columns of the training split but labels."""
    recipe = settings.recipe
    with progress.phase("Reading the train split"):
        pieces = settings.pieces("train")
        examples = sample(pieces, settings.tokenizer_train_bytes)
    columns = [examples[name] for name in recipe.reads if name != recipe.labels]
    return [as_text(value) for column in columns for value in column]


def warn_of_unknown_words(tokenizer: Tokenizer, lines: Sequence[str]) -> None:
    """Warns where a tokenizer lacks words of lines that came in by hand."""
    # An "<unk>" in the text itself, as WikiText-2 has them, is a word like any other.
    words = [word for line in lines for word in line.split(" ") if word not in ("", "<unk>")]
    (ids,) = tokenizer.encode_words([words])
    unk = tokenizer.special.unk
    unknown = [word for word, row in zip(words, ids, strict=True) if unk in row]
    if unknown:
        logging.warning(
            "%d of %d words, such as %r, are unknown to this run's tokenizer: the model reads "
            "<unk> instead",
            len(unknown),
            len(words),
            unknown[0][:40],
        )


def labels_of(settings: DataSettings) -> tuple[str, ...]:
    """The labels: of `settings.labels_file`, or of all splits, sorted; () where there are none.

    Raises:
        ValueError: there is but one.
    """
    column, file = settings.recipe.labels, settings.labels_file
    if column is None:
        return ()
    if file is not None and file.exists():
        return read_labels(file)
    versions = [one.version() for split in SPLITS for one in settings.sets(split)]
    key = fingerprint("labels", column, *versions)
    folder = settings.cache / "labels" / key

    def collect(temporary: Path) -> None:
        labels = set()
        for split in SPLITS:
            with progress.phase(f"Reading the labels of the {split} split"):
                for piece in settings.pieces(split):
                    labels.update(label for value in piece[column] for label in listed(value))
        if len(labels) < 2:
            raise ValueError(
                f"all labels of the data are {labels.pop()!r}, so there is nothing to learn: is "
                f"data.label_feature={settings.source.label_feature!r} right?"
            )
        (temporary / LABELS).write_text(json.dumps(sorted(labels), ensure_ascii=False), "utf-8")

    build_once(folder, collect)
    return read_labels(folder / LABELS)
