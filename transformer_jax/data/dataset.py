"""One data set as a run uses it: tokenizer, labels, training streams, splits to score, prompts.

Each split is prepared when it is first asked for, and later found without being read again.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from absl import logging
from jaxtyping import Bool

from transformer_jax.data import by_hand
from transformer_jax.data.cache import build_once, fingerprint
from transformer_jax.data.prepare import pictures, prepare
from transformer_jax.data.prepare.arrays import TokenArrays, chunks, summed
from transformer_jax.data.prepare.recipe import Batch, Drawing, NumberedBatch
from transformer_jax.data.prepare.summary import Summary, check_train, lost, summarise, unknown
from transformer_jax.data.prepare.tokenizer import (
    OWN_IDS,
    TOKENIZERS,
    SpecialIds,
    Tokenizer,
    load_special_ids,
    load_tokenizer,
    train_tokenizer,
)
from transformer_jax.data.read import sources
from transformer_jax.data.read.examples import Examples, as_text, concatenate, listed, sample
from transformer_jax.data.read.images import ImageSettings
from transformer_jax.data.serve.batches import Batches, eval_batches
from transformer_jax.data.serve.continuous_rows import contiguous_batches, contiguous_streams
from transformer_jax.data.serve.streams import TrainStreams, shuffled_streams
from transformer_jax.data.settings import SPLITS, DataSettings, Set
from transformer_jax.process import progress
from transformer_jax.runs.workdir import LABELS, TOKENIZER, read_labels

_FORMAT = 3  # counts the ways in which tokenizers have been trained on texts


@dataclasses.dataclass(frozen=True)
class Split:
    """One split, ready to be scored.

    Attributes:
      batches: its examples in a few fixed shapes, each with the examples' numbers (-1: none), made
        when they are asked for.
      examples: the columns that they were made of, as `sources.read` has them.
      parts: the numbers of the examples of each part, by its name.
      in_train: says of each example whether the training split has it too; it reads that split,
        and raises FileNotFoundError where it is not there.
    """

    batches: Sequence[NumberedBatch]
    examples: Examples
    parts: Mapping[str, range]
    in_train: Callable[[], Bool[np.ndarray, " examples"]]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The data of a run."""

    settings: DataSettings
    _prepared: dict[str, list[TokenArrays]] = dataclasses.field(default_factory=dict)

    # Vocabularies

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """`settings.tokenizer_file`, otherwise trained on the training split.

        Raises:
            ValueError: the task has none, the model has too few tokens for it, or it lacks a
                special token.
        """
        recipe, most = self.settings.recipe, self.settings.model_vocab_size
        if not recipe.tokenized:
            raise ValueError(f"task.name={recipe.name!r} reads numbers, and has no tokenizer")
        tokenizer = self._own_tokenizer()
        if most is not None and tokenizer.vocab_size > most:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, more than model.vocab_size="
                f"{most}: raise it, lower data.tokenizer.vocab_size, or set it to None"
            )
        missing = [token for token in recipe.extra_tokens if tokenizer.token_id(token) is None]
        if missing:
            raise ValueError(
                f"task.name={recipe.name!r} needs a tokenizer with {len(missing)} special tokens, "
                f"such as {missing[0]!r}, and that of the run which checkpoint.init_from names "
                "lacks them"
            )
        return tokenizer

    def _tokenizer_path(self) -> Path | None:
        """Where the tokenizer is, or will be once it is trained; None: the texts do not matter."""
        settings, kind = self.settings, self.settings.tokenizer_kind
        if settings.tokenizer_file is not None and settings.tokenizer_file.exists():
            return settings.tokenizer_file
        if TOKENIZERS[kind].least is None:
            return None
        made_by = _FORMAT, kind, settings.tokenizer_vocab_size, list(settings.recipe.extra_tokens)
        versions = [part.version() for part in settings.sets("train")]
        read = *versions, settings.tokenizer_train_bytes
        key = fingerprint(*made_by, tokenizers.__version__, *read)
        return settings.cache / "tokenizers" / key / TOKENIZER

    @property
    def has_tokenizer(self) -> bool:
        """Whether no text has to be read for the tokenizer."""
        with contextlib.suppress(OSError, ValueError):  # files that are not at hand
            path = self._tokenizer_path()
            return path is None or path.exists()
        return False

    def _own_tokenizer(self) -> Tokenizer:
        settings, path = self.settings, self._tokenizer_path()
        kind, vocab_size = settings.tokenizer_kind, settings.tokenizer_vocab_size
        extra_tokens = settings.recipe.extra_tokens

        def train(temporary: Path) -> None:
            texts = self._texts()
            with progress.phase("Training the tokenizer"):
                tokenizer = train_tokenizer(kind, texts, vocab_size, extra_tokens)
            tokenizer.save(temporary / TOKENIZER)

        if path is None:
            return train_tokenizer(kind, (), vocab_size, extra_tokens)
        if path != settings.tokenizer_file:
            if not path.exists():
                settings.find_files()  # before minutes are spent on reading the first of them
            build_once(path.parent, train)
        return load_tokenizer(path)

    def _texts(self) -> list[str]:
        """What a tokenizer is trained on: all columns of the training split but labels."""
        settings, recipe = self.settings, self.settings.recipe
        with progress.phase("Reading the train split"):
            examples = sample(settings.pieces("train"), settings.tokenizer_train_bytes)
        columns = [examples[name] for name in recipe.reads if name != recipe.labels]
        return [as_text(value) for column in columns for value in column]

    @property
    def _tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None where the recipe has none."""
        return self.tokenizer if self.settings.recipe.tokenized else None

    @property
    def _encoder(self) -> Tokenizer | ImageSettings | None:
        """What the recipe encodes with."""
        return self._tokenizer if self.settings.recipe.tokenized else self.settings.images

    @property
    def tokenizer_fingerprint(self) -> str:
        """What tells the tokenizer from others; "none" where there is none."""
        return self._tokenizer.fingerprint if self._tokenizer else "none"

    @property
    def vocab_size(self) -> int:
        """How many ids the tokenizer has; 0 where there is none."""
        return self._tokenizer.vocab_size if self._tokenizer else 0

    @functools.cached_property
    def special(self) -> SpecialIds:
        """The special ids of the tokenizer, which is not made for that."""
        file = self.settings.tokenizer_file
        return load_special_ids(file) if file else OWN_IDS

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels: of `settings.labels_file`, or of all splits, sorted; () where there are none.

        Raises:
            ValueError: there is but one.
        """
        settings = self.settings
        column, file = settings.recipe.labels, settings.labels_file
        if column is None:
            return ()
        if file is not None and file.exists():
            return read_labels(file)
        versions = [part.version() for split in SPLITS for part in settings.sets(split)]
        folder = settings.cache / "labels" / fingerprint("labels", column, *versions)

        def collect(temporary: Path) -> None:
            labels = set()
            for split in SPLITS:
                with progress.phase(f"Reading the labels of the {split} split"):
                    for piece in settings.pieces(split):
                        labels.update(label for value in piece[column] for label in listed(value))
            if len(labels) < settings.recipe.fewest_labels:
                reason = (
                    f"all labels of the data are {min(labels)!r}" if labels else "it has no labels"
                )
                raise ValueError(
                    f"{reason}, so there is nothing to learn: are data.train and what "
                    f"data.source={settings.source.source!r} reads the right ones?"
                )
            (temporary / LABELS).write_text(json.dumps(sorted(labels), ensure_ascii=False), "utf-8")

        build_once(folder, collect)
        return read_labels(folder / LABELS)

    # What is trained on

    def has(self, split: str) -> bool:
        """Whether there is such a split."""
        return bool(self.settings.sets(split))

    def train_streams(self, rows: Sequence[int] | None = None) -> TrainStreams:
        """Endless training batches, of which these rows (None: all), from the first epoch on."""
        settings, columns = self.settings, self.settings.recipe.columns
        if settings.contiguous:
            (arrays,) = self._tokens("train")
            return contiguous_streams(
                arrays,
                eos=self.special.eos,
                length=settings.rows["target"],
                batch_size=settings.batch_size,
                streams=settings.streams,
                rows=rows,
            )
        return shuffled_streams(
            self._tokens("train"),
            columns,
            {name: settings.rows[column.side] for name, column in columns.items()},
            batch_size=settings.batch_size,
            streams=settings.streams,
            packing=settings.packing,
            seed=settings.seed,
            draw=self._transform(settings.recipe.draw, training=True),
            corrupt=self._transform(settings.recipe.corrupt, training=True),
            rows=rows,
            weights=[part.weight for part in settings.sets("train")],
        )

    def batch_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape (B, length, ...) and dtype of a training batch's arrays, without the data."""
        settings = self.settings
        return {
            key: ((settings.batch_size, settings.rows[column.side], *column.shape), column.dtype)
            for key, column in settings.recipe.batch_columns().items()
        }

    @functools.cached_property
    def unigram_entropy(self) -> float | None:
        """Nats a token of what the model learns to predict: the least loss without reading.

        None where it predicts no tokens. Tokens that are never asked for do not count, and sets
        count by the shares of the examples that are drawn from them.
        """
        recipe = self.settings.recipe
        if recipe.predicted is None:
            return None
        corrupt = self._transform(recipe.corrupt, training=True)
        counts = summed(
            part.weight / len(arrays) * arrays.counts_of(recipe.predicted, corrupt)
            for part, arrays in zip(self.settings.sets("train"), self._tokens("train"), strict=True)
        )
        if recipe.draw is not None:  # masks spare them
            counts[np.isin(np.arange(len(counts)), self.special.silent)] = 0
        shares = counts[counts > 0] / counts.sum()
        return float(-np.sum(shares * np.log(shares)))

    # What is scored, and what comes in by hand

    def split(self, name: str) -> Split:
        """A split to score: "validation" or "test". Raises ValueError where there is none."""
        if name == "train":
            raise ValueError("train is not scored as a split: choose validation or test")
        if not self.has(name):
            raise ValueError(f"data.{name} is empty: name a split, or choose another --split")
        settings, sets = self.settings, self._tokens(name)
        if settings.contiguous:
            (arrays,) = sets
            batches = contiguous_batches(
                arrays,
                eos=self.special.eos,
                readers=settings.evaluation_readers,
                batch_size=settings.evaluation_batch_size,
                length=settings.rows["target"],
            )
        else:
            batches = eval_batches(
                sets,
                settings.recipe.columns,
                batch_size=settings.evaluation_batch_size,
                draw=self._transform(settings.recipe.draw, training=False),
                corrupt=self._transform(settings.recipe.corrupt, training=False),
            )
        ends = itertools.accumulate((arrays.counts.examples for arrays in sets), initial=0)
        parts = zip(settings.sets(name), itertools.pairwise(ends), strict=True)
        return Split(
            batches,
            concatenate(arrays.texts() for arrays in sets),
            {part.name: range(*ends) for part, ends in parts},
            lambda: self.in_train(name),
        )

    def prompts(self, lines: Sequence[Any]) -> Sequence[NumberedBatch]:
        """Batches of lines as the model reads them, with their numbers. Too long lines are cut.

        Images are read when their batch is asked for, and batched in the order of the lines.
        """
        size = self.settings.evaluation_batch_size

        def batches(lines: Sequence[Any]) -> Batches:
            return by_hand.prompts(
                lines, self.settings, self._encoder, self.labels, batch_size=size
            )

        if not self.settings.recipe.reads_images:
            return batches(lines)

        def images(number: int) -> NumberedBatch:
            start = number * size
            ((batch, numbers),) = batches(lines[start : start + size])
            return batch, np.where(numbers < 0, -1, start + numbers)

        return Batches(math.ceil(len(lines) / size), images)

    def batch(self, *columns: Sequence[Any]) -> Batch:
        """Examples that come in by hand as one batch: see `by_hand.batch`."""
        recipe = self.settings.recipe
        return by_hand.batch(
            columns,
            self.settings,
            self._encoder,
            self.labels,
            draw=self._transform(recipe.draw, training=False),
            corrupt=self._transform(recipe.corrupt, training=False),
        )

    def warn_of_unknown_words(self, lines: Sequence[str]) -> None:
        """Warns where the tokenizer, if there is one, lacks words of lines that came in by hand."""
        if self._tokenizer and (line := unknown(lines, self._tokenizer)):
            logging.warning("%s", line)

    # What is counted and compared

    def summaries(self) -> dict[str, Summary]:
        """Counts of every split. Those that nobody has asked for are prepared."""
        return {
            split: summarise(self._tokens(split), self.settings.recipe, self.special)
            for split in filter(self.has, SPLITS)
        }

    def contact_sheet(self) -> bytes:
        """Nine images of the training split as they are trained on, as a file of PNG."""
        (arrays, *_), images = self._tokens("train"), self.settings.images
        assert images is not None  # the recipe reads some
        corrupt = self._transform(self.settings.recipe.corrupt, training=True)
        return pictures.contact_sheet(arrays, corrupt, images)

    def check(self) -> None:
        """Reads all files, and compares their content with what was prepared of them.

        Raises ValueError where it is another, though all is the same that a set is found by.
        """
        for split in filter(self.has, SPLITS):
            sets = self.settings.sets(split)
            for part, arrays in zip(sets, self._tokens(split), strict=True):
                with progress.phase(f"Reading the {split} split"):
                    content = prepare.content(part.pieces(), self.settings.recipe)
                if content != arrays.counts.content:
                    raise ValueError(
                        f"data.{split}: the files have another content than when they were "
                        "prepared, with the same names, sizes, times and ends: delete "
                        f"{arrays.folder}"
                    )

    def share_of_tokens(self, rows: int) -> float:
        """The share of the places of about so many training rows that hold something."""
        streams, settings = self.train_streams(), self.settings
        batches = itertools.islice(streams, math.ceil(rows / settings.batch_size))
        keys = [f"{name}_segment_ids" for name in settings.recipe.columns]
        shares = [np.mean(batch[key] > 0) for batch in batches for key in keys if key in batch]
        return float(np.mean(shares))

    def in_train(self, split: str) -> Bool[np.ndarray, " examples"]:
        """Whether the training split has each example of a split too."""
        split_hashes = np.concatenate([arrays.hashes()[:] for arrays in self._tokens(split)])
        shared = np.zeros(len(split_hashes), bool)
        for arrays in self._tokens("train"):
            for hashes in chunks(arrays.hashes()):
                shared |= np.isin(split_hashes, hashes)
        return shared

    # What is prepared

    def _tokens(self, split: str) -> list[TokenArrays]:
        """The token arrays of the sets of a split."""
        if split not in self._prepared:
            sets = [self._prepare(split, part) for part in self.settings.sets(split)]
            summary = summarise(sets, self.settings.recipe, self.special)
            if split == "train":
                check_train(summary)
            if summary.too_long:
                logging.warning(
                    "%s: %d of %d examples have more %s than %s allows and are %s",
                    split,
                    summary.too_long,
                    summary.examples,
                    self.settings.recipe.counts,
                    " or ".join(f"data.max_{side}_length" for side in self.settings.recipe.sides),
                    "left out" if split == "train" else "cut off",
                )
            if split != "train" and self.settings.recipe.reads == sources.PAIRS and self._tokenizer:
                targets = [one for arrays in sets for one in arrays.texts()["target"]]
                if line := lost([listed(target)[0] for target in targets], self._tokenizer):
                    logging.warning("%s: %s", split, line)
            self._prepared[split] = sets
        return self._prepared[split]

    def _prepare(self, split: str, part: Set) -> TokenArrays:
        settings, trained_on = self.settings, split == "train"
        plan = prepare.Plan(
            encoder=self._encoder,
            recipe=settings.recipe,
            labels=self.labels,
            limits=settings.limits("drop" if trained_on else "truncate"),
            keeps_texts=not trained_on,
        )
        key = fingerprint(*plan.made_by(), plan.keeps_texts, part.version())
        return prepare.prepared(
            plan,
            part.pieces,
            settings.cache / "sets" / key,
            workers=settings.workers,
            what=f"{'Tokenising' if settings.recipe.tokenized else 'Encoding'} the {split} split",
            total=sources.plain_bytes(*part.where),
        )

    def _transform(self, make: Callable[[Any, Drawing], Any] | None, *, training: bool) -> Any:
        """What draws or corrupts, if anything does."""
        settings = self.settings
        limits = settings.limits("drop")
        drawing = Drawing(settings.mask_rate, settings.mean_span_length, limits, training)
        return make and make(self._encoder, drawing)
