"""What is in each split: counts that are shown before training, and what looks like a mistake."""

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Int, Int64

from transformer_jax.data.prepare.arrays import Counts, TokenArrays, summed, total
from transformer_jax.data.prepare.recipe import Recipe
from transformer_jax.data.prepare.tokenizer import SpecialIds, Tokenizer
from transformer_jax.process import tables

_SHOWN = 10  # labels in the table, the most frequent ones
_NAMED = 3  # labels in a warning
# Letters, marks and symbols that nobody sees, and those of Cyrillic that look like Latin ones.
_UNSEEN = "[\u034f\u115f\u1160\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
_CYRILLIC = str.maketrans("АВЕКМНОРСТХ", "ABEKMHOPCTX")
_FEW = 1000  # tokens of a split below which its loss is mostly chance
_MUCH_UNKNOWN = 0.2  # fraction of <unk> above which the loss says little about the text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary(Counts):
    """Counts of one split.

    Attributes:
        tokens: that its texts became; None where the task has no tokens.
        pieces: that documents were cut into; None where examples are not documents.
        lengths: tokens (or other places) of an example or a piece by side: median, 90 % quantile
            and longest. Special tokens count, examples that were left out do not.
        unknown: fraction of <unk> among the tokens of the texts.
        sizes: rows and columns of the smallest, the median and the largest image, as files have
            them and as they are kept; {} where there are no images.
    """

    tokens: int | None
    pieces: int | None
    lengths: dict[str, tuple[int, ...]]
    unknown: float
    sizes: dict[str, list[tuple[int, int]]]


def summarise(sets: Sequence[TokenArrays], recipe: Recipe, special: SpecialIds) -> Summary:
    """The counts of a split, which consists of these sets."""
    columns = {name: column for name, column in recipe.stored.items() if column.along is None}
    counted = columns.keys() & set(recipe.counted)
    ids = summed(arrays.ids[name] for arrays in sets for name in counted)
    silent, unknown = (
        sum(int(ids[i : i + 1].sum()) for i in numbers if i is not None)
        for numbers in (set(special.silent), (special.unk,))
    )
    lengths = {
        column.side: _quantiles(summed(arrays.lengths[name] for arrays in sets))
        for name, column in columns.items()
    }
    sizes = {}
    if recipe.reads_images:
        sides = np.concatenate([arrays.columns["size"][:] for arrays in sets]).reshape(-1, 4)
        sizes = {"in files": _sizes(sides[:, 2:]), "as kept": _sizes(sides[:, :2])}
        (patch,), (channels,) = recipe.columns["inputs"].shape, recipe.stored["pixels"].shape
        patches = sides[:, 0] * sides[:, 1] * channels // patch
        lengths["source"] = _quantiles(np.bincount(patches))
    tokens = int(ids.sum())
    return Summary(
        **vars(total(arrays.counts for arrays in sets)),
        tokens=tokens if recipe.tokenized else None,
        pieces=sum(map(len, sets)) if recipe.documents else None,
        lengths=lengths,
        unknown=unknown / max(tokens - silent, 1),
        sizes=sizes,
    )


def _sizes(sides: Int[np.ndarray, "N 2"]) -> list[tuple[int, int]]:
    """The smallest, the median and the largest, by their area."""
    order = np.argsort(sides.prod(axis=1), kind="stable")
    quantiles = sides[order[[0, (len(order) - 1) // 2, -1]]]
    return [(int(rows), int(columns)) for rows, columns in quantiles]


def _quantiles(lengths: Int64[np.ndarray, " longest+1"]) -> tuple[int, ...]:
    """The length that each of these shares of the examples does not exceed."""
    ends = np.cumsum(lengths)
    return tuple(int(np.searchsorted(ends, share * ends[-1])) for share in (0.5, 0.9, 1.0))


def check_train(summary: Summary) -> None:
    """Raises ValueError where a side of the training data has no text at all."""
    for column, count in summary.empty.items():
        if count == summary.examples:
            raise ValueError(
                f"data.train: all {count:,} texts of {column!r} are empty, so there is nothing to "
                "learn: does it name the right files and columns?"
            )


def lost(targets: Sequence[str], tokenizer: Tokenizer) -> str:
    """Says which share of a sample of targets, but for blanks at their ends and for those with
    unknown words, does not come back from their tokens; "" if none."""
    texts = targets[:: 1 + len(targets) // 500]
    rows = zip(texts, tokenizer.encode(texts), strict=True)
    known = [(one, tokenizer.decode(row)) for one, row in rows if tokenizer.special.unk not in row]
    others = [(text, written) for text, written in known if text.strip() != written.strip()]
    if not others:
        return ""
    text, written = others[0]
    return (
        f"{len(others) / len(known):.1%} of the targets do not come back from their tokens, so "
        f"scores are low: {text!r:.80} becomes {written!r:.80}; change texts or data.tokenizer.kind"
    )


def unknown(lines: Sequence[str], tokenizer: Tokenizer) -> str:
    """Says how many words of lines that came in by hand the tokenizer lacks; "" if none."""
    # An "<unk>" in the text itself, as WikiText-2 has them, is a word like any other.
    words = [word for line in lines for word in line.split(" ") if word not in ("", "<unk>")]
    (ids,) = tokenizer.encode_words([words])
    lacking = [word for word, row in zip(words, ids, strict=True) if tokenizer.special.unk in row]
    if not lacking:
        return ""
    return (
        f"{len(lacking)} of {len(words)} words, such as {lacking[0][:40]!r}, are unknown to this "
        "run's tokenizer: the model reads <unk> instead"
    )


def too_long(summaries: Mapping[str, Summary]) -> dict[str, float]:
    """The share of examples that are longer than may be, of each split that has some."""
    return {
        split: summary.too_long / summary.examples
        for split, summary in summaries.items()
        if summary.too_long
    }


def report(summaries: Mapping[str, Summary]) -> str:
    """A table with a column for each split, and below it a line for each likely mistake."""
    labels: Counter[str] = Counter()
    for summary in summaries.values():
        labels.update(summary.labels)
    top_labels = [label for label, _ in labels.most_common(_SHOWN)]
    columns = [_cells(summary, top_labels, len(labels)) for summary in summaries.values()]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    warnings = [f"Warning: {line}" for line in likely_mistakes(summaries)]
    return "\n".join([*tables.aligned([["Data", *summaries], *rows]), *warnings])


def _cells(summary: Summary, top_labels: Sequence[str], labels: int) -> dict[str, str]:
    """The texts of one split by the names of their rows.

    Args:
        top_labels: the labels that get a row.
        labels: how many labels all splits have.
    """
    cells = {"examples": f"{summary.examples:,}"}
    cells |= {f"empty {column}": f"{count:,}" for column, count in summary.empty.items()}
    cells |= {name: f"{count:,}" for name, count in summary.left_out.items()}
    if summary.pieces is None:
        share = f" ({summary.too_long / summary.examples:.1%})" if summary.too_long else ""
        cells["too long"] = f"{summary.too_long:,}{share}"
    else:
        cells["pieces"] = f"{summary.pieces:,}"
    if summary.tokens is not None:
        cells["tokens"] = f"{summary.tokens:,}"
        # Of the same examples; a set that was prepared long ago does not know them.
        tokens = max(summary.tokens - summary.long_tokens, 1)
        characters = summary.characters - summary.long_characters
        known = summary.long_characters or not summary.too_long
        cells["characters a token"] = f"{characters / tokens:.2f}" if known else "-"
    for where, sides in summary.sizes.items():
        name = f"rows x columns {where}: smallest / median / largest"
        cells[name] = " / ".join(f"{rows}x{columns}" for rows, columns in sides)
    what = "places" if summary.tokens is None else "tokens"
    for side, quantiles in summary.lengths.items():
        of_images = {"source": "patches", "target": "boxes"} if summary.sizes else {}
        unit = of_images.get(side, what)
        name = f"{side} {unit}: median / 90 % / longest"
        cells[name] = " / ".join(f"{length:,}" for length in quantiles)
    if summary.tokens is not None:
        cells["<unk>"] = f"{summary.unknown:.1%}"
    counts = {label: summary.labels.get(label, 0) for label in top_labels}
    cells |= {f"label {_quoted(label)}": f"{count:,}" for label, count in counts.items()}
    if labels > len(top_labels):
        others = sum(summary.labels.values()) - sum(counts.values())
        cells[f"{labels - len(top_labels):,} other labels"] = f"{others:,}"
    return cells


def likely_mistakes(summaries: Mapping[str, Summary]) -> list[str]:
    """A line for each thing in the counts that is probably a mistake; "train" is among them."""
    lines = []
    for split, summary in summaries.items():
        lines += [
            f"{split}: {count:,} of {summary.examples:,} texts of {column!r} are empty; are these "
            "the right files and columns?"
            for column, count in summary.empty.items()
            if count > summary.examples / 2
        ]
        if left_out := [f"{count:,} {what}" for what, count in summary.left_out.items() if count]:
            lines.append(f"{split}: {' and '.join(left_out)} are left out")
        if split != "train" and summary.tokens is not None and summary.tokens < _FEW:
            lines.append(
                f"{split}: scores of {summary.tokens:,} tokens are mostly chance: name more files "
                "or raise data.validation_size, which counts characters for language models"
            )
        if summary.unknown > _MUCH_UNKNOWN:
            lines.append(
                f"{split}: {summary.unknown:.0%} of the tokens are <unk>, so scores say little: "
                "raise data.tokenizer.vocab_size or choose another data.tokenizer.kind"
            )
    return lines + _mistaken_labels(summaries)


def _mistaken_labels(summaries: Mapping[str, Summary]) -> list[str]:
    lines, train = [], summaries["train"].labels
    spellings: dict[str, set[str]] = {}
    for summary in summaries.values():
        for label in summary.labels:
            spellings.setdefault(_outline(label), set()).add(label)
    if alike := [sorted(labels) for labels in spellings.values() if len(labels) > 1]:
        pairs = _named([" and ".join(map(ascii, labels)) for labels in alike])
        lines.append(
            "labels that differ by white space or case, by invisible characters, by letters that "
            f"look like others or the way that accents are written: {pairs}; spell them alike"
        )
    if once := [label for label, count in train.items() if count == 1]:
        lines.append(
            f"train: {len(once):,} of {len(train):,} labels occur only once: "
            f"{_named(map(_quoted, once))}; are they typing mistakes, or a header?"
        )
    for split, summary in summaries.items():
        if unseen := [label for label in summary.labels if label not in train]:
            lines.append(
                f"{split}: {len(unseen):,} of {len(summary.labels):,} labels are not in train: "
                f"{_named(map(_quoted, unseen))}; no training teaches them: correct them or add "
                "examples to train"
            )
    return lines


def _outline(label: str) -> str:
    """What a reader sees of a label: without blanks, case, and what is not printed."""
    plain = re.sub(_UNSEEN, "", unicodedata.normalize("NFKC", label)).upper().translate(_CYRILLIC)
    return "".join(c for c in plain if unicodedata.category(c)[0] not in "CZ") or label


def _quoted(label: str) -> str:
    """A label in quotes, escaped where it does not look like what it is."""
    form = re.sub(_UNSEEN, "", unicodedata.normalize("NFKC", label))
    return repr(label) if label == form else ascii(label)


def _named(texts: Iterable[str]) -> str:
    texts = list(texts)
    more = f" and {len(texts) - _NAMED:,} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more
