"""One data set as a run uses it: tokenizer, labels, training streams, splits to score, prompts.

Each split is read and tokenised when it is first asked for.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import logging

from transformer_jax import progress
from transformer_jax.data import sources
from transformer_jax.data.arrays import TokenArrays, cached_tokens
from transformer_jax.data.batches import NumberedBatch, eval_batches, prompt_batches
from transformer_jax.data.examples import Examples, SourceSettings, hold_out
from transformer_jax.data.recipe import Draw, Limits, Recipe, TooLong
from transformer_jax.data.streams import TrainStreams
from transformer_jax.data.summary import Summary, check_train, summarise
from transformer_jax.data.tokenizer import (
    TOKENIZERS,
    UNK_ID,
    Tokenizer,
    cached_tokenizer,
    load_tokenizer,
    train_tokenizer,
)
from transformer_jax.workdir import read_labels

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """`config.data`, and what else of the config decides the data.

    Attributes:
      recipe: which columns are read and what becomes of them.
      splits: what each split is made of; an empty "validation" is held out of "train".
      mask_rate: fraction of the tokens that are masked, where the recipe draws masks.
      model_vocab_size: tokens that the model has (None: the tokenizer's).
      seed: decides the order of training.
      evaluation_batch_size: rows of the batches of `split` and `prompts`.
      tokenizer_file, labels_file: used where they exist, instead of the training data.
    """

    source: SourceSettings
    recipe: Recipe
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

    def limits(self, too_long: TooLong) -> Limits:
        """Most tokens of an example."""
        return Limits(self.max_source_length, self.max_target_length, too_long)

    @property
    def max_prompt_length(self) -> int:
        """Most tokens of a prompt."""
        return getattr(self, f"max_{self.recipe.prompt_side}_length")


@dataclasses.dataclass(frozen=True)
class Split:
    """One split, ready to be scored.

    Attributes:
      batches: token ids sorted into a few fixed shapes, each with the examples' numbers (-1: none).
      examples: the columns that they were made of, as `sources.load` returns them.
    """

    batches: list[NumberedBatch]
    examples: Examples


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The data of a run."""

    settings: DataSettings
    _loaded: dict[str, Examples] = dataclasses.field(default_factory=dict)
    _summaries: dict[str, Summary] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """`settings.tokenizer_file`, otherwise trained on the training split.

        Raises ValueError where the model has too few tokens for it, or it lacks a special token.
        """
        tokenizer, most = self._tokenizer(), self.settings.model_vocab_size
        if most is not None and tokenizer.vocab_size > most:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, more than model.vocab_size="
                f"{most}: raise it, lower data.tokenizer.vocab_size, or set it to None"
            )
        recipe = self.settings.recipe
        missing = [token for token in recipe.extra_tokens if tokenizer.token_id(token) is None]
        if missing:
            raise ValueError(
                f"task.name={recipe.name!r} needs a tokenizer with {', '.join(missing)}, and that "
                "of the run which checkpoint.init_from names has none"
            )
        return tokenizer

    def _tokenizer(self) -> Tokenizer:
        settings = self.settings
        if settings.tokenizer_file is not None and settings.tokenizer_file.exists():
            return load_tokenizer(settings.tokenizer_file)
        kind, vocab_size = settings.tokenizer_kind, settings.tokenizer_vocab_size
        extra_tokens = settings.recipe.extra_tokens
        if TOKENIZERS[kind].least is None:  # so the texts do not matter
            return train_tokenizer(kind, (), vocab_size, extra_tokens)
        self.find_files()  # before minutes are spent on reading the first of them
        return cached_tokenizer(
            kind, self._texts(), vocab_size, extra_tokens, cache_dir=settings.source.cache_dir
        )

    def _texts(self) -> list[str]:
        """What a tokenizer is trained on: all columns of the training split but labels."""
        recipe, examples = self.settings.recipe, self._examples("train")
        columns = [examples[name] for name in recipe.reads if name != recipe.labels]
        return [
            value if isinstance(value, str) else " ".join(value)
            for column in columns
            for value in column
        ]

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels: of `settings.labels_file`, or of all splits, sorted; () where there are none.

        Raises ValueError where there is but one.
        """
        column = self.settings.recipe.labels
        if column is None:
            return ()
        file = self.settings.labels_file
        if file is not None and file.exists():
            return read_labels(file)
        found = set()
        for split in filter(self.has, SPLITS):
            for value in self._examples(split)[column]:
                found.update([value] if isinstance(value, str) else value)
        if len(found) < 2:
            raise ValueError(
                f"all labels of the data are {found.pop()!r}, so there is nothing to learn: is "
                f"data.label_feature={self.settings.source.label_feature!r} right?"
            )
        return tuple(sorted(found))

    def find_files(self) -> None:
        """Raises as `sources.find_files` where a file of any split is missing."""
        settings = self.settings
        for split in filter(None, settings.splits.values()):
            sources.find_files(settings.source, settings.recipe.reads, split)

    def has(self, split: str) -> bool:
        """Whether there is such a split."""
        held_out = split == "validation" and self.settings.validation_size
        return bool(self.settings.splits[split] or held_out)

    def train_streams(self, rows: Sequence[int] | None = None) -> TrainStreams:
        """Endless training batches, of which these rows (None: all), from the first epoch on."""
        settings = self.settings
        lengths = {
            name: self._row_length(column.side) for name, column in settings.recipe.columns.items()
        }
        return TrainStreams(
            self._train_tokens,
            settings.recipe.columns,
            lengths,
            batch_size=settings.batch_size,
            streams=settings.streams,
            packing=settings.packing,
            seed=settings.seed,
            draw=self._draw(),
            rows=rows,
        )

    @functools.cached_property
    def unigram_entropy(self) -> float | None:
        """Nats a token of what the model learns to predict: the least loss without reading.

        None where it predicts labels. Tokens that are never asked for do not count.
        """
        recipe = self.settings.recipe
        if recipe.predicted is None:
            return None
        tokens = self._train_tokens.columns[recipe.predicted]
        parts = np.array_split(tokens, 1 + len(tokens) // 2**20)  # bincount copies what it counts
        size = self.tokenizer.vocab_size
        counts = np.sum([np.bincount(part, minlength=size) for part in parts], axis=0)
        counts[list(recipe.never_predicted)] = 0
        shares = counts[counts > 0] / counts.sum()
        return float(-np.sum(shares * np.log(shares)))

    def batch_shapes(self) -> dict[str, tuple[int, int]]:
        """The shapes (B, length) of a training batch, without the data."""
        rows = self.settings.batch_size
        sides = self.settings.recipe.batch_sides()
        return {name: (rows, self._row_length(side)) for name, side in sides.items()}

    def split(self, name: str) -> Split:
        """A split to score: "validation" or "test". Raises ValueError where there is none."""
        if not self.has(name):
            raise ValueError(f"data.{name} is empty: name a split, or choose another --split")
        arrays, settings = self._tokens(name, "truncate"), self.settings
        batches = eval_batches(
            arrays,
            settings.recipe.columns,
            batch_size=settings.evaluation_batch_size,
            draw=self._draw(),
        )
        return Split(batches, self._loaded.pop(name))

    def summaries(self) -> dict[str, Summary]:
        """Counts of every split. Those that nobody has asked for are read."""
        splits = list(filter(self.has, SPLITS))
        for split in splits:
            if split not in self._summaries:
                _ = self._train_tokens if split == "train" else self.split(split)
        return {split: self._summaries[split] for split in splits}

    def warn_of_unknown_words(self, lines: Sequence[str]) -> None:
        """Warns where the tokenizer lacks words of lines that came in by hand."""
        # An "<unk>" in the text itself, as WikiText-2 has them, is a word like any other.
        words = [word for line in lines for word in line.split(" ") if word not in ("", "<unk>")]
        (ids,) = self.tokenizer.encode_words([words])
        unknown = [word for word, row in zip(words, ids, strict=True) if UNK_ID in row]
        if unknown:
            logging.warning(
                "%d of %d words, such as %r, are unknown to this run's tokenizer: the model reads "
                "<unk> instead",
                len(unknown),
                len(words),
                unknown[0][:40],
            )

    def prompts(self, lines: Sequence[str]) -> list[NumberedBatch]:
        """Batches of lines as the model reads them, with their numbers. Too long lines are cut."""
        settings = self.settings
        limits = settings.limits("truncate")
        rows, too_long = settings.recipe.prompt(lines, self.tokenizer, self.labels, limits)
        if too_long:
            logging.warning("%d lines are too long and were cut off", too_long)
        return prompt_batches(
            rows,
            settings.recipe.columns,
            batch_size=settings.evaluation_batch_size,
            max_length=settings.max_prompt_length,
        )

    def _examples(self, split: str) -> Examples:
        if split not in self._loaded:
            settings, size = self.settings, self.settings.validation_size
            recipe = settings.recipe
            source = "train" if size and split == "validation" else split
            with progress.phase(f"Reading the {source} split"):
                examples = sources.load(settings.source, recipe.reads, settings.splits[source])
            if size and source == "train":
                train, held_out = hold_out(examples, size, documents=recipe.documents)
                self._loaded.update(train=train, validation=held_out)
            else:
                self._loaded[split] = examples
        return self._loaded[split]

    def _tokens(self, split: str, too_long: TooLong) -> TokenArrays:
        settings, examples = self.settings, self._examples(split)
        tokenizer, labels = self.tokenizer, self.labels
        with progress.phase(f"Tokenising the {split} split"):
            arrays = cached_tokens(
                examples,
                tokenizer,
                settings.recipe,
                labels,
                settings.limits(too_long),
                cache_dir=settings.source.cache_dir,
            )
        self._summaries[split] = summarise(examples, arrays, settings.recipe)
        if arrays.too_long:
            logging.warning(
                "%s: %d of %d examples have more tokens than %s allows and are %s",
                split,
                arrays.too_long,
                len(next(iter(examples.values()))),
                " or ".join(f"data.max_{side}_length" for side in settings.recipe.sides),
                "left out" if too_long == "drop" else "cut off",
            )
        return arrays

    @functools.cached_property
    def _train_tokens(self) -> TokenArrays:
        arrays = self._tokens("train", "drop")
        check_train(self._summaries["train"])
        self._loaded.pop("train")  # the texts may be gigabytes; the arrays are on disk
        return arrays

    def _row_length(self, side: str) -> int:
        """Tokens of a training row."""
        kind = "row" if self.settings.packing else "max"
        return getattr(self.settings, f"{kind}_{side}_length")

    def _draw(self) -> Draw | None:
        make = self.settings.recipe.draw
        return make(self.tokenizer, self.settings.mask_rate) if make else None
