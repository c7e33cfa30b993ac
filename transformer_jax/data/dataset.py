"""One data set as a run uses it: tokenizer, labels, training streams, splits to score, prompts.

Each split is prepared when it is first asked for, and later found without being read again.
"""

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Bool

from transformer_jax.data import splits
from transformer_jax.data.cache import build_once, fingerprint
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepare.arrays import (
    CHUNK,
    FileArray,
    Joined,
    TokenArrays,
    load_texts,
    summed,
)
from transformer_jax.data.prepare.recipe import Corrupt, Draw
from transformer_jax.data.prepare.summary import Summary, check_train, summarise
from transformer_jax.data.prepare.tokenizer import (
    OWN_IDS,
    TOKENIZERS,
    SpecialIds,
    Tokenizer,
    cached_tokenizer,
    load_special_ids,
    load_tokenizer,
    train_tokenizer,
)
from transformer_jax.data.read import sources
from transformer_jax.data.read.examples import sample
from transformer_jax.data.serve.batches import NumberedBatch, eval_batches, prompt_batches
from transformer_jax.data.serve.continuous_rows import Endless, Readers, contiguous_batches
from transformer_jax.data.serve.streams import TrainStreams
from transformer_jax.data.settings import SPLITS, DataSettings, Part
from transformer_jax.process import progress
from transformer_jax.runs.workdir import LABELS, read_labels


@dataclasses.dataclass(frozen=True)
class Split:
    """One split, ready to be scored.

    Attributes:
      batches: token ids sorted into a few fixed shapes, each with the examples' numbers (-1: none).
      examples: the columns that they were made of, as `sources.read` has them.
      parts: the numbers of the examples of each part, by its name.
      in_train: says of each example whether the training split has it too, word for word; it reads
        that split, and raises FileNotFoundError where it is not there.
    """

    batches: list[NumberedBatch]
    examples: Mapping[str, Sequence[Any]]
    parts: Mapping[str, range]
    in_train: Callable[[], Bool[np.ndarray, " examples"]]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The data of a run."""

    settings: DataSettings
    _prepared: dict[str, list[TokenArrays]] = dataclasses.field(default_factory=dict)

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
                f"task.name={recipe.name!r} needs a tokenizer with {len(missing)} special tokens, "
                f"such as {missing[0]!r}, and that of the run which checkpoint.init_from names "
                "lacks them"
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
            kind,
            self._texts,
            vocab_size,
            extra_tokens,
            known_by=[*splits.versions(settings, "train"), settings.tokenizer_train_bytes],
            cache_dir=settings.source.cache_dir,
        )

    def _texts(self) -> list[str]:
        """What a tokenizer is trained on: all columns of the training split but labels."""
        recipe, most = self.settings.recipe, self.settings.tokenizer_train_bytes
        with progress.phase("Reading the train split"):
            examples = sample(splits.all_pieces(self.settings, "train"), most)
        columns = [examples[name] for name in recipe.reads if name != recipe.labels]
        return [
            value if isinstance(value, str) else " ".join(value)
            for column in columns
            for value in column
        ]

    @functools.cached_property
    def special(self) -> SpecialIds:
        """The special ids of the tokenizer, which is not made for that."""
        file = self.settings.tokenizer_file
        return load_special_ids(file) if file else OWN_IDS

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
        present = list(filter(self.has, SPLITS))
        key = fingerprint("labels", column, *splits.versions(self.settings, *present))
        folder = Path(self.settings.source.cache_dir).expanduser() / "labels" / key

        def collect(temporary: Path) -> None:
            found = set()
            for split in present:
                with progress.phase(f"Reading the labels of the {split} split"):
                    for piece in splits.all_pieces(self.settings, split):
                        for value in piece[column]:
                            found.update([value] if isinstance(value, str) else value)
            if len(found) < 2:
                raise ValueError(
                    f"all labels of the data are {found.pop()!r}, so there is nothing to learn: is "
                    f"data.label_feature={self.settings.source.label_feature!r} right?"
                )
            (temporary / LABELS).write_text(json.dumps(sorted(found), ensure_ascii=False), "utf-8")

        build_once(folder, collect)
        return read_labels(folder / LABELS)

    def find_files(self) -> None:
        """Raises as `sources.find_files` where a file of any split is missing."""
        splits.find_files(self.settings)

    def has(self, split: str) -> bool:
        """Whether there is such a split."""
        return splits.has(self.settings, split)

    def train_streams(self, rows: Sequence[int] | None = None) -> Endless:
        """Endless training batches, of which these rows (None: all), from the first epoch on."""
        settings = self.settings
        if settings.contiguous:
            (arrays,) = self._tokens("train")
            return Readers(
                arrays,
                eos=self.special.eos,
                length=self._row_length("target"),
                batch_size=settings.batch_size,
                streams=settings.streams,
                rows=rows,
            )
        lengths = {
            name: self._row_length(column.side) for name, column in settings.recipe.columns.items()
        }
        return TrainStreams(
            self._tokens("train"),
            settings.recipe.columns,
            lengths,
            batch_size=settings.batch_size,
            streams=settings.streams,
            packing=settings.packing,
            seed=settings.seed,
            draw=self._draw(),
            corrupt=self._corrupt(),
            rows=rows,
            weights=[part.weight for part in splits.parts(settings, "train")],
        )

    @functools.cached_property
    def unigram_entropy(self) -> float | None:
        """Nats a token of what the model learns to predict: the least loss without reading.

        None where it predicts labels. Tokens that are never asked for do not count.
        """
        recipe = self.settings.recipe
        if recipe.predicted is None:
            return None
        counts = summed(arrays.ids[recipe.predicted] for arrays in self._tokens("train"))
        if recipe.draw is not None:  # masks spare them
            counts[[i for i in self.special.silent if i < len(counts)]] = 0
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
        settings, sets = self.settings, self._tokens(name)
        rows = settings.evaluation_batch_size
        if settings.contiguous:
            (arrays,), length = sets, self._row_length("target")
            batches = contiguous_batches(
                arrays,
                eos=self.special.eos,
                readers=settings.evaluation_readers,
                batch_size=rows,
                length=length,
            )
        else:
            batches = eval_batches(
                sets,
                settings.recipe.columns,
                batch_size=rows,
                draw=self._draw(),
                corrupt=self._corrupt(),
            )
        texts = [load_texts(folder) for folder in self._folders(name)]
        shared = [key for key in texts[0] if all(key in others for others in texts)]
        sizes = [len(next(iter(examples.values()))) for examples in texts]
        starts = itertools.accumulate(sizes, initial=0)
        parts = {
            one.name: range(start, start + size)
            for one, start, size in zip(splits.named(settings, name), starts, sizes, strict=False)
        }
        return Split(
            batches,
            {key: Joined([examples[key] for examples in texts]) for key in shared},
            parts,
            lambda: self._in_train(name),
        )

    def summaries(self) -> dict[str, Summary]:
        """Counts of every split. Those that nobody has asked for are prepared."""
        return {
            split: summarise(self._tokens(split), self.settings.recipe, self.special)
            for split in filter(self.has, SPLITS)
        }

    def check(self) -> None:
        """Reads all files, and compares their content with what was prepared of them.

        Raises ValueError where it is another, though names, sizes and times are the same.
        """
        settings = self.settings
        for split in filter(self.has, SPLITS):
            sets = zip(splits.parts(settings, split), self._tokens(split), strict=True)
            for part, made in sets:
                with progress.phase(f"Reading the {split} split"):
                    pieces = splits.pieces(settings, split, part)
                    found = prepare.content(pieces, settings.recipe)
                if found != made.counts.content:
                    raise ValueError(
                        f"data.{split}: the files have another content than when they were "
                        "prepared, with the same names, sizes and times: delete "
                        f"{self._folder(split, part)}"
                    )

    def share_of_tokens(self, rows: int) -> float:
        """The share of the places of about so many training rows that hold a token."""
        streams, settings = self.train_streams(), self.settings
        batches = itertools.islice(streams, math.ceil(rows / settings.batch_size))
        keys = [f"{name}_segment_ids" for name in settings.recipe.columns]
        shares = [np.mean(batch[key] > 0) for batch in batches for key in keys if key in batch]
        return float(np.mean(shares))

    def shared_with_train(self, split: str) -> int:
        """How many examples of a split the training split has too, word for word."""
        return int(self._in_train(split).sum())

    def _in_train(self, split: str) -> Bool[np.ndarray, " examples"]:
        """Whether the training split has each example of a split too."""
        wanted = np.concatenate([hashes[:] for hashes in self._hashes(split)])
        found = np.zeros(len(wanted), bool)
        for train in self._hashes("train"):
            for start in range(0, len(train), CHUNK):
                found |= np.isin(wanted, train[start : start + CHUNK])
        return found

    def _hashes(self, split: str) -> list[FileArray]:
        self._tokens(split)
        return [prepare.hashes(folder) for folder in self._folders(split)]

    def warn_of_unknown_words(self, lines: Sequence[str]) -> None:
        """Warns where the tokenizer lacks words of lines that came in by hand."""
        # An "<unk>" in the text itself, as WikiText-2 has them, is a word like any other.
        words = [word for line in lines for word in line.split(" ") if word not in ("", "<unk>")]
        (ids,) = self.tokenizer.encode_words([words])
        unk = self.special.unk
        unknown = [word for word, row in zip(words, ids, strict=True) if unk in row]
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
        if settings.recipe.reads == sources.PAIRS:  # as `sources.read`
            lines = [settings.source.prefix + line for line in lines]
        rows, too_long = settings.recipe.prompt(lines, self.tokenizer, self.labels, limits)
        if too_long:
            logging.warning("%d lines are too long and were cut off", too_long)
        return prompt_batches(
            rows,
            settings.recipe.columns,
            batch_size=settings.evaluation_batch_size,
            max_length=settings.max_prompt_length,
        )

    def _plan(self, split: str) -> prepare.Plan:
        """What makes the tokens of a split: it is trained on, or scored."""
        settings, train = self.settings, split == "train"
        return prepare.Plan(
            tokenizer=self.tokenizer,
            recipe=settings.recipe,
            labels=self.labels,
            limits=settings.limits("drop" if train else "truncate"),
            keeps_texts=not train,
        )

    def _folder(self, split: str, part: Part) -> Path:
        """Where a prepared set is, or will be."""
        plan = self._plan(split)
        version = splits.version(self.settings, split, part)
        key = fingerprint(*plan.made_by(), plan.keeps_texts, version)
        return Path(self.settings.source.cache_dir).expanduser() / "sets" / key

    def _folders(self, split: str) -> list[Path]:
        """Those of all sets of a split."""
        return [self._folder(split, part) for part in splits.parts(self.settings, split)]

    def _tokens(self, split: str) -> list[TokenArrays]:
        """The token arrays of the sets of a split."""
        if split not in self._prepared:
            made = [self._prepare(split, part) for part in splits.parts(self.settings, split)]
            if split == "train":
                check_train(summarise(made, self.settings.recipe, self.special))
            counts = [arrays.counts for arrays in made]
            if too_long := sum(one.too_long for one in counts):
                logging.warning(
                    "%s: %d of %d examples have more tokens than %s allows and are %s",
                    split,
                    too_long,
                    sum(one.examples for one in counts),
                    " or ".join(f"data.max_{side}_length" for side in self.settings.recipe.sides),
                    "left out" if split == "train" else "cut off",
                )
            self._prepared[split] = made
        return self._prepared[split]

    def _prepare(self, split: str, part: Part) -> TokenArrays:
        return prepare.prepared(
            self._plan(split),
            lambda: splits.pieces(self.settings, split, part),
            self._folder(split, part),
            workers=self.settings.workers,
            what=f"Tokenising the {split} split",
            total=sources.plain_bytes(part.source, self.settings.recipe.reads, part.files),
        )

    def _row_length(self, side: str) -> int:
        """Tokens of a training row."""
        kind = "row" if self.settings.packing else "max"
        return getattr(self.settings, f"{kind}_{side}_length")

    def _draw(self) -> Draw | None:
        make = self.settings.recipe.draw
        return make(self.tokenizer, self.settings.mask_rate) if make else None

    def _corrupt(self) -> Corrupt | None:
        settings, make = self.settings, self.settings.recipe.corrupt
        if make is None:
            return None
        limits = settings.limits("drop")
        return make(self.tokenizer, settings.mask_rate, settings.mean_span_length, limits)
