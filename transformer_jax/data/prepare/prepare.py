"""Prepared sets: examples made into token arrays once, by several processes, a piece at a time.

A set is a folder. As long as it is unfinished, its journal has a line for each piece whose tokens
are in the files, so that a preparation which was killed goes on behind the last of them.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.cache import fingerprint, resumed
from transformer_jax.data.prepare import arrays
from transformer_jax.data.prepare.arrays import Counts, FileArray, TokenArrays
from transformer_jax.data.prepare.recipe import SIDES, Column, Limits, Recipe
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.prepare.worker import Worker
from transformer_jax.data.read.examples import Examples, characters_of, identified, listed
from transformer_jax.data.read.images import ImageSettings
from transformer_jax.process import machine, progress
from transformer_jax.runs.workdir import write_atomically

_FORMAT = 4  # counts the ways in which sets have been made
_JOURNAL = "journal"
_ALONE = 2**25  # characters, below which processes would take longer to start than they spare
_AHEAD = 2  # pieces that wait for each process

# What becomes of a piece: the bytes that each file gets, and what was counted.
EncodedPiece = tuple[dict[str, bytes], Counts]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What makes token arrays of examples.

    encoder: the tokenizer, or the settings of images; None where the recipe needs neither.
    keeps_texts: whether the set holds the examples themselves too, to be scored against; of images
    their names.
    """

    encoder: Tokenizer | ImageSettings | None
    recipe: Recipe
    labels: tuple[str, ...]
    limits: Limits
    keeps_texts: bool

    def made_by(self) -> list[Any]:
        """What decides the arrays besides the examples."""
        encoder = self.encoder.fingerprint if self.encoder else ""
        limits = self.limits
        if self.recipe.reads_images:  # of which no patch is cut
            limits = limits._replace(source=0)
        named = [_FORMAT, encoder, self.recipe.name, self.labels, limits._asdict()]
        named += [self.recipe.version] * (self.recipe.version > 0)
        columns = self.recipe.stored.items()
        shaped = [(name, column) for name, column in columns if not column.is_plain]
        return named + [[name, column.shape, column.dtype] for name, column in shaped]

    @property
    def ids_dtype(self) -> str:
        """The dtype in which files hold token ids and labels."""
        if not isinstance(self.encoder, Tokenizer):
            return "<i4"
        return "<u2" if max(self.encoder.vocab_size, 1 + len(self.labels)) <= 2**16 else "<i4"


def prepared(
    plan: Plan,
    pieces: Callable[[], Iterator[Examples]],
    folder: Path,
    *,
    workers: int,
    what: str,
    total: int | None,
) -> TokenArrays:
    """The token arrays of all examples, from `folder`, where they are made unless they are there.

    Args:
        pieces: reads the examples from their beginning.
        workers: processes that tokenise at most.
        what, total: what progress is shown as, and of how many bytes (None: it is not known).

    Raises:
        ValueError: nothing is left, the examples are not those of an interrupted preparation, or as
            `recipe.encode` and the reading of the examples.
        RuntimeError: a process was killed.
        OSError: as `cache.locked`.
    """
    with resumed(folder) as unfinished:
        if unfinished is not None:
            with _progress(what, total) as show:
                _make(plan, pieces(), unfinished, workers, what, show)
    return arrays.load(folder, plan.recipe)


def content(pieces: Iterable[Examples], recipe: Recipe) -> str:
    """The SHA-256 of examples that a set of them bears as `counts.content`."""
    return fingerprint(*(_digest(piece, recipe) for piece in pieces))


def _make(
    plan: Plan,
    pieces: Iterator[Examples],
    folder: Path,
    workers: int,
    what: str,
    show: Callable[[int], None],
) -> None:
    counts = [Counts(**line["counts"]) for line in _done(folder)]
    for number, done in enumerate(counts):
        piece = next(pieces, None)
        if piece is None or _digest(piece, plan.recipe) != done.content:
            raise ValueError(
                f"{what}: piece {number} of the examples is another than when the preparation was "
                "interrupted; start again, and it begins anew"
            )
    show(sum(done.characters for done in counts))
    with (folder / _JOURNAL).open("a") as journal:
        for added, counted in _mapped(plan, pieces, workers):
            for name, data in added.items():
                with (folder / name).open("ab") as file:
                    file.write(data)
            counts.append(counted)
            sizes = {name: (folder / name).stat().st_size for name in added}
            line = {"counts": dataclasses.asdict(counted), "sizes": sizes}
            journal.write(json.dumps(line) + "\n")
            journal.flush()
            show(counted.characters)
    _finish(plan, folder, arrays.total(counts))


def _done(folder: Path) -> list[dict[str, Any]]:
    """The lines of the journal; the files are cut to what they say."""
    path = folder / _JOURNAL
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    lines = [json.loads(line) for line in whole.splitlines()]
    sizes = lines[-1]["sizes"] if lines else {}
    if any((folder / name).stat().st_size < size for name, size in sizes.items()):
        lines, whole, sizes = [], "", {}  # the machine stopped before they were on the disk
    path.write_text(whole)
    for file in folder.iterdir():
        if file != path:
            os.truncate(file, sizes.get(file.name, 0))
    return lines


def _finish(plan: Plan, folder: Path, counts: Counts) -> None:
    """Counts what is in the files, and says what they are."""
    names = list(plan.recipe.stored)
    if not counts.examples or not (folder / f"{names[0]}_lengths").stat().st_size:
        limits = {f"data.max_{side}_length": getattr(plan.limits, side) for side in SIDES}
        if plan.recipe.reads_images:  # of which no patch is cut
            del limits["data.max_source_length"]
        most = " or ".join(f"{key}={length}" for key, length in limits.items())
        raise ValueError(
            f"no example is left of {counts.examples}: {counts.too_long} are longer than {most} "
            f"{plan.recipe.counts}"
        )
    for name in names:
        _sum_up(folder / f"{name}_lengths", folder / f"{name}_offsets")
    for name in plan.recipe.counted:
        ids = FileArray(folder / name, plan.ids_dtype, "int32")
        np.save(folder / f"{name}_ids.npy", arrays.summed(map(np.bincount, arrays.chunks(ids))))
    offsets = {name: FileArray(folder / f"{name}_offsets", "<i8") for name in names}
    known = {
        "kept": plan.ids_dtype,
        "lengths": {name: arrays.lengths_of(offsets[name]).tolist() for name in names},
        "counts": dataclasses.asdict(counts),
        "fingerprint": fingerprint(*plan.made_by(), counts.content),
    }
    write_atomically(folder / arrays.SET, json.dumps(known))
    # Only now, so that whoever is killed in between can sum up again.
    for path in [folder / _JOURNAL, *folder.glob("*_lengths")]:
        path.unlink()


def _sum_up(source: Path, target: Path) -> None:
    """Makes a file of offsets from one of lengths."""
    lengths, start = FileArray(source, "<i8"), 0
    with target.open("wb") as file:
        file.write(np.int64(0).tobytes())
        for chunk in arrays.chunks(lengths):
            offsets = start + np.cumsum(chunk)
            file.write(offsets.tobytes())
            start = int(offsets[-1])


def _encoded_piece(plan: Plan, piece: Examples) -> EncodedPiece:
    """What becomes of a piece."""
    recipe = plan.recipe
    rows, too_long = recipe.encode(piece, plan.encoder, plan.labels, plan.limits)
    files = {}
    for name, column in recipe.stored.items():
        files[name] = _bytes(rows[name], name, column, plan.ids_dtype)
        files[f"{name}_lengths"] = np.fromiter(map(len, rows[name]), "<i8").tobytes()
    examples = list(zip(*piece.values(), strict=True))
    if plan.keeps_texts:
        lines = [_line(dict(zip(piece, example, strict=True))) for example in examples]
        files[arrays.TEXTS] = b"".join(lines)
    left_out = set(too_long if plan.limits.too_long == "drop" else ())
    files[arrays.HASHES] = b"".join(
        hashlib.blake2b(repr(tuple(map(identified, example))).encode(), digest_size=8).digest()
        for number, example in enumerate(examples)
        if number not in left_out
    )
    texts = [name for name in recipe.reads if name != recipe.labels]
    labels = piece[recipe.labels] if recipe.labels else []
    leading = [name for name in recipe.counted if recipe.stored[name].along is None]
    cut = too_long if plan.limits.too_long == "truncate" else ()
    counts = Counts(
        examples=len(examples),
        characters=sum(characters_of(piece[name]) for name in texts),
        empty={name: sum(map(_is_empty, piece[name])) for name in texts},
        labels=dict(Counter(label for value in labels for label in listed(value))),
        too_long=len(too_long),
        content=_digest(piece, recipe),
        long_characters=sum(characters_of(piece[name][n]) for name in texts for n in too_long),
        long_tokens=sum(len(rows[name][n]) for name in leading for n in cut),
        left_out=recipe.left_out(piece) if recipe.left_out else {},
    )
    return files, counts


def _line(example: dict[str, Any]) -> bytes:
    """An example as it is kept: a line of JSON, images by their names."""
    text = json.dumps(example, ensure_ascii=False, default=lambda picture: picture.name)
    return text.encode() + b"\n"


def _digest(piece: Examples, recipe: Recipe) -> str:
    """SHA-256 of what a recipe reads of a piece."""
    return fingerprint({name: list(map(identified, piece[name])) for name in recipe.reads})


def _bytes(rows: Sequence[Any], name: str, column: Column, ids: str) -> bytes:
    """The rows of a column one after the other. ids: the dtype of token ids and labels in files."""
    if column.is_plain:  # lists as a rule, of which arrays would take longer
        entries = itertools.chain.from_iterable(rows)
        return np.fromiter(entries, ids, sum(map(len, rows))).tobytes()
    try:
        return b"".join(column.array(row).tobytes() for row in rows)
    except ValueError as error:
        raise ValueError(f"the column {name!r} of the task: {error}") from None


def _is_empty(value: str | list[Any]) -> bool:
    return not value or (isinstance(value, str) and value.isspace())


def _mapped(plan: Plan, pieces: Iterator[Examples], workers: int) -> Iterator[EncodedPiece]:
    """What becomes of each piece, in their order, by this process and, if it takes long, others."""
    workers = min(workers, machine.cores())
    alone = 0
    for piece in pieces:
        encoding = _encoded_piece(plan, piece)
        yield encoding
        alone += encoding[1].characters
        if alone >= _ALONE and workers > 1:
            break
    first = next(pieces, None)
    if first is None:
        return
    waiting: collections.deque[Any] = collections.deque()
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def encoded_by_worker(piece: Examples) -> EncodedPiece:
        worker = free.get()
        try:
            return worker(piece)
        finally:
            free.put(worker)

    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            worker = Worker(functools.partial(_encoded_piece, plan))
            stack.callback(worker.close)
            free.put(worker)
        pool = concurrent.futures.ThreadPoolExecutor(workers)  # a thread waits for each process
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        try:
            for piece in itertools.chain([first], pieces):
                waiting.append(pool.submit(encoded_by_worker, piece))
                if len(waiting) > _AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except (EOFError, BrokenPipeError) as error:
            raise RuntimeError(
                "a process that prepares examples was killed, perhaps for want of memory: run the "
                f"same command again and it goes on, with fewer than data.workers={workers}"
            ) from error


@contextlib.contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Shows how far a preparation is; yields a function to call with how many characters more."""
    if total is None or total < _ALONE:
        with progress.phase(what):
            yield lambda count: None
        return
    bar, done = progress.Bar(what, total=total // 10**6, unit="MB"), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        bar.update(min(done, total) // 10**6)

    with contextlib.closing(bar):
        yield advance
