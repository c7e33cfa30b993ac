"""One data set as a run uses it: tokenizer, labels, training streams, splits to score, prompts.

Each split is read and tokenised when it is first asked for.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from absl import logging

from transformer_jax.data import pipeline, sources, transforms
from transformer_jax.data.sources import Examples, SourceSettings
from transformer_jax.data.tokenizer import (
    BOS_ID,
    EOS_ID,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
)

SPLITS = ("train", "validation", "test")
NumberedBatches = list[tuple[pipeline.Batch, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """`config.data`, and what else of the config decides the data.

    Attributes:
      objective: which columns are read and what they become ("translation", "causal_lm", ...).
      splits: of what each split is made; an empty "validation" is held out of "train".
      mask_rate: fraction of the tokens that "masked_lm" predicts.
      model_vocab_size: tokens that the model has (None: the tokenizer's).
      seed: decides the order of training.
      evaluation_batch_size: rows of the batches of `split` and `prompts`.
      tokenizer_file, labels_file: used where they exist, instead of the training data.
    """

    source: SourceSettings
    objective: str
    splits: dict[str, tuple[str, ...]]
    validation_size: int
    tokenizer_kind: str
    tokenizer_vocab_size: int
    model_vocab_size: int | None
    mask_rate: float
    max_source_length: int
    max_target_length: int
    packing: bool
    row_source_length: int
    row_target_length: int
    batch_size: int
    streams: int
    seed: int
    evaluation_batch_size: int
    tokenizer_file: Path | None
    labels_file: Path | None


@dataclasses.dataclass(frozen=True)
class Split:
    """One split, ready to be scored.

    Attributes:
      batches: token ids sorted into a few fixed shapes, each with the examples' numbers (-1: none).
      examples: the columns that they were made of, as `sources.load` returns them.
    """

    batches: NumberedBatches
    examples: Examples


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The data of a run."""

    settings: DataSettings
    _loaded: dict[str, Examples] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """That of `settings.tokenizer_file`, otherwise trained on the training split.

        Raises ValueError where the model has too few tokens for it, or it lacks a mask.
        """
        tokenizer, most = self._tokenizer(), self.settings.model_vocab_size
        if most is not None and tokenizer.vocab_size > most:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, more than model.vocab_size="
                f"{most}: raise it, lower data.tokenizer.vocab_size, or set it to None"
            )
        if self.settings.objective == "masked_lm" and tokenizer.mask_id is None:
            raise ValueError(
                "objective.name='masked_lm' needs a tokenizer with a mask, and that of the run "
                "which checkpoint.init_from names has none"
            )
        return tokenizer

    def _tokenizer(self) -> Tokenizer:
        settings = self.settings
        if settings.tokenizer_file is not None and settings.tokenizer_file.exists():
            return load_tokenizer(settings.tokenizer_file)
        kind, vocab_size = settings.tokenizer_kind, settings.tokenizer_vocab_size
        mask = settings.objective == "masked_lm"
        if kind == "bytes":
            return train_tokenizer(kind, (), vocab_size, mask)
        for split in SPLITS:  # before minutes are spent on reading the first of them
            if settings.splits[split]:
                sources.find_files(settings.source, settings.objective, settings.splits[split])
        texts = _texts(self._examples("train"))
        return pipeline.cached_tokenizer(
            kind, texts, vocab_size, mask, cache_dir=settings.source.cache_dir
        )

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes or tags: those of `settings.labels_file`, or of all splits, sorted."""
        column = {"classification": "label", "tagging": "tags"}.get(self.settings.objective)
        if column is None:
            return ()
        file = self.settings.labels_file
        if file is not None and file.exists():
            return tuple(json.loads(file.read_text("utf-8")))
        found = set()
        for split in SPLITS:
            if self.has(split):
                values = self._examples(split)[column]
                found.update(*values) if column == "tags" else found.update(values)
        if len(found) < 2:
            raise ValueError(
                f"all labels of the data are {found.pop()!r}, so there is nothing to learn: is "
                f"data.label_feature={self.settings.source.label_feature!r} right?"
            )
        return tuple(sorted(found))

    def has(self, split: str) -> bool:
        """Whether there is such a split."""
        held_out = split == "validation" and self.settings.validation_size
        return bool(self.settings.splits[split] or held_out)

    def train_streams(self, rows: Sequence[int] | None = None) -> pipeline.TrainStreams:
        """Endless training batches, of which these rows (None: all), from the first epoch on."""
        settings, arrays = self.settings, self._train_tokens
        return pipeline.TrainStreams(
            arrays,
            batch_size=settings.batch_size,
            streams=settings.streams,
            packing=settings.packing,
            lengths=self._row_lengths(arrays.columns),
            seed=settings.seed,
            masking=self._masking(),
            rows=rows,
        )

    @functools.cached_property
    def unigram_entropy(self) -> float:
        """Nats a token of the training targets: the least loss of a model that reads nothing.

        Of masked_lm those of the tokens that can be masked.

        Raises ValueError where the targets are labels.
        """
        objective = self.settings.objective
        column = {"translation": "targets", "causal_lm": "targets", "masked_lm": "inputs"}
        if objective not in column:
            raise ValueError(
                f"objective.name={objective!r} predicts labels: only the targets of "
                f"{', '.join(column)} are tokens, which have a unigram entropy"
            )
        tokens = self._train_tokens.columns[column[objective]]
        parts = np.array_split(tokens, 1 + len(tokens) // 2**20)  # bincount copies what it counts
        size = self.tokenizer.vocab_size
        counts = np.sum([np.bincount(part, minlength=size) for part in parts], axis=0)
        if objective == "masked_lm":
            counts[list(transforms.NEVER_MASKED)] = 0
        shares = counts[counts > 0] / counts.sum()
        return float(-np.sum(shares * np.log(shares)))

    def batch_shapes(self) -> dict[str, tuple[int, int]]:
        """The shapes (B, length) of a training batch, without the data."""
        lengths = self._row_lengths(pipeline.batch_keys(self.settings.objective))
        return {name: (self.settings.batch_size, length) for name, length in lengths.items()}

    def split(self, name: str) -> Split:
        """A split to score: "validation" or "test". Raises ValueError where there is none."""
        if not self.has(name):
            raise ValueError(f"data.{name} is empty: name a split, or choose another --split")
        arrays = self._tokens(name, too_long="truncate")
        batches = pipeline.eval_batches(
            arrays,
            batch_size=self.settings.evaluation_batch_size,
            masking=self._masking(),
        )
        return Split(batches, self._loaded.pop(name))

    def prompts(self, lines: Sequence[str]) -> NumberedBatches:
        """Batches of lines to translate, go on with, classify, tag or embed; with their numbers.

        Too long lines are cut off: at their end, or where they are to be gone on with at their
        beginning. Words to tag are separated by blanks.
        """
        encode = self._encode_words if self.settings.objective == "tagging" else self._encode_text
        examples, too_long = encode(lines)
        if too_long:
            logging.warning("%d lines are too long and were cut off", too_long)
        settings = self.settings
        side = "target" if settings.objective == "causal_lm" else "source"
        return pipeline.prompt_batches(
            examples,
            batch_size=settings.evaluation_batch_size,
            max_length=getattr(settings, f"max_{side}_length"),
        )

    def _encode_text(self, lines: Sequence[str]) -> tuple[list[dict[str, list[int]]], int]:
        """Lines as the model reads them, and how many of them were cut off."""
        rows = self.tokenizer.encode(lines)
        most = self.settings.max_source_length
        if self.settings.objective == "translation":
            inputs = [[*ids[: most - 1], EOS_ID] for ids in rows]
            return [{"inputs": ids} for ids in inputs], sum(len(ids) > most - 1 for ids in rows)
        if self.settings.objective == "causal_lm":
            most = self.settings.max_target_length - 1
            inputs = [[BOS_ID, *ids[-most:]] for ids in rows]
            return [{"inputs": ids} for ids in inputs], sum(len(ids) > most for ids in rows)
        inputs = [[BOS_ID, *ids[: most - 2], EOS_ID] for ids in rows]
        # The one place where a class is to be predicted.
        examples = [{"inputs": ids, "labels": [1] + [0] * (len(ids) - 1)} for ids in inputs]
        return examples, sum(len(ids) > most - 2 for ids in rows)

    def _encode_words(self, lines: Sequence[str]) -> tuple[list[dict[str, list[int]]], int]:
        """Lines of words as the model reads them, each word with any tag, to be predicted."""
        words = [re.findall(r"[^ \t]+", line) for line in lines]  # as in CoNLL files
        columns, too_long = transforms.encode(
            {"words": words, "tags": [[self.labels[0]] * len(row) for row in words]},
            self.tokenizer,
            self.settings.objective,
            self.labels,
            max_source_length=self.settings.max_source_length,
            max_target_length=self.settings.max_target_length,
            too_long="truncate",
        )
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows], too_long

    def _examples(self, split: str) -> Examples:
        if split not in self._loaded:
            settings, size = self.settings, self.settings.validation_size
            source = "train" if size and split == "validation" else split
            examples = sources.load(settings.source, settings.objective, settings.splits[source])
            if size and source == "train":
                train, held_out = sources.hold_out(examples, size, settings.objective)
                self._loaded.update(train=train, validation=held_out)
            else:
                self._loaded[split] = examples
        return self._loaded[split]

    def _tokens(self, split: str, *, too_long: pipeline.TooLong) -> pipeline.TokenArrays:
        settings, examples = self.settings, self._examples(split)
        arrays = pipeline.cached_tokens(
            examples,
            self.tokenizer,
            settings.objective,
            self.labels,
            max_source_length=settings.max_source_length,
            max_target_length=settings.max_target_length,
            too_long=too_long,
            cache_dir=settings.source.cache_dir,
        )
        if arrays.too_long:
            limits = {"inputs": "source", "targets": "target"}
            names = [f"data.max_{limits[c]}_length" for c in arrays.columns if c in limits]
            logging.warning(
                "%s: %d of %d examples have more tokens than %s allows and are %s",
                *(split, arrays.too_long, len(next(iter(examples.values())))),
                *(" or ".join(names), "left out" if too_long == "drop" else "cut off"),
            )
        return arrays

    @functools.cached_property
    def _train_tokens(self) -> pipeline.TokenArrays:
        arrays = self._tokens("train", too_long="drop")
        self._loaded.pop("train")  # the texts may be gigabytes; the arrays are on disk
        return arrays

    def _row_lengths(self, names: Iterable[str]) -> dict[str, int]:
        """Tokens of a training row for each of the columns or batch keys `names`."""
        settings = self.settings
        kind = "row" if settings.packing else "max"
        source: int = getattr(settings, f"{kind}_source_length")
        target: int = getattr(settings, f"{kind}_target_length")
        has_target = settings.objective in ("translation", "causal_lm")
        return {
            name: target if has_target and name.startswith("targets") else source for name in names
        }

    def _masking(self) -> pipeline.Masking | None:
        if self.settings.objective != "masked_lm":
            return None
        assert self.tokenizer.mask_id is not None  # checked by `tokenizer`
        return pipeline.Masking(self.settings.mask_rate, self.tokenizer.mask_id)


def _texts(examples: Examples) -> list[str]:
    """All that a tokenizer is trained on."""
    if "words" in examples:
        return [" ".join(words) for words in examples["words"]]
    names = [name for name in ("source", "target", "text") if name in examples]
    return [text for name in names for text in examples[name]]
