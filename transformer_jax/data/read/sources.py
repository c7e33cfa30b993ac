"""Where examples come from: what is generated, files in a folder, TFDS's catalogue."""

import functools
import glob
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from transformer_jax.data.corpora import backcopy, bigram, grammar, repeat, scenes, zipf
from transformer_jax.data.read import boxes, embedded, open_file, parse, pictures, questions
from transformer_jax.data.read.examples import Examples, SourceSettings, as_text, gathered
from transformer_jax.data.read.features import KEYS
from transformer_jax.data.read.open_file import find

# Of a file, what tells its content from others: so many blocks of so many bytes.
_BLOCKS, _BLOCK = 16, 2**12

# The columns that a task reads.
Columns = tuple[str, ...]


class Files(NamedTuple):
    """Reads each split from files of its own.

    Attributes:
        read: (files of one split, values of `arguments`, skip_bad=) -> rows, tuples by columns.
        arguments: the settings that `read` takes.
        shaping: others that have an effect on the examples.
        endings: settings -> what the name of each file ends with, behind the name of the split.
        beside: a file of a split -> others that are read along with it.
        code: what tells one state of `read` from another, of a source that this library lacks.
    """

    read: Callable[..., Iterator[tuple]]
    arguments: tuple[str, ...] = ()
    shaping: tuple[str, ...] = ()
    endings: Callable[[SourceSettings], tuple[str, ...]] = lambda settings: ("",)
    beside: Callable[[Path], tuple[Path, ...]] = lambda path: ()
    code: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The settings that have an effect."""
        return ("dir", "skip_bad_lines", *self.arguments, *self.shaping)

    def rows(self, settings: SourceSettings, paths: Iterable[Path]) -> Iterator[tuple]:
        """The rows of the files of one split."""
        values = [getattr(settings, name) for name in self.arguments]
        return self.read(*paths, *values, skip_bad=settings.skip_bad_lines)

    def all_of(self, paths: Iterable[Path]) -> list[Path]:
        """The files of a split with those that are read along."""
        return [file for path in paths for file in (path, *self.beside(path))]


class Generated(NamedTuple):
    """Reads splits where there are no files to name.

    read: (settings, names of splits, columns) -> blocks of examples. reads, code: as of `Files`.
    version: settings -> what tells one state of the splits from another, without reading them.
    """

    read: Callable[[SourceSettings, tuple[str, ...], Columns], Iterable[Examples]]
    version: Callable[[SourceSettings], Any]
    reads: tuple[str, ...] = ()
    code: str = ""


PAIRS: Columns = ("source", "target")
TEXTS: Columns = ("text",)
LABELLED: Columns = ("text", "label")
TAGGED: Columns = ("words", "tags")
NUMBERS: Columns = parse.NUMBERS
# Images are `Picture`s.
PICTURES: Columns = ("image", "label")
BOXED: Columns = boxes.BOXED


def _languages(settings: SourceSettings) -> tuple[str, ...]:
    return f".{settings.source_language}", f".{settings.target_language}"


def _catalogue() -> Any:
    # Only here, since importing TFDS takes long and other sources do without it.
    from transformer_jax.data.read import catalogue

    return catalogue


def _in_catalogue(settings: SourceSettings) -> str:
    return _catalogue().version(settings)


def _named(columns: Columns) -> tuple[str, ...]:
    """The settings that shape columns which are read from features."""
    return (*(KEYS[column] for column in columns), *_PREFIX * (columns == PAIRS))


def _documents(path: Path, separator: str, *, skip_bad: bool) -> Iterator[tuple]:
    return ((text,) for text in open_file.read_documents(path, separator, skip_bad=skip_bad))


def _pieces(corpus: Any, *reads: str) -> dict[Columns, Generated]:
    """Reads the text of a generated language, a module of `corpora`, whose SPLITS have names.

    reads: the settings that the language depends on.
    """

    def read(settings: SourceSettings, splits: tuple[str, ...], _: Columns) -> Iterator[Examples]:
        for split in splits:
            if split not in corpus.SPLITS:
                raise ValueError(
                    f"data.source={settings.source!r} has no split {split!r}, which data.train, "
                    f"data.validation or data.test names; its splits are {', '.join(corpus.SPLITS)}"
                )
            yield {"text": [corpus.text(split, *(getattr(settings, name) for name in reads))]}

    return {TEXTS: Generated(read, lambda settings: sorted(corpus.SPLITS.items()), reads)}


def _with_texts(columns: Columns, files: Files) -> dict[Columns, Files]:
    """A reader of texts with their labels, and one of the texts alone, to pre-train on."""

    def texts(*arguments: Any, skip_bad: bool) -> Iterator[tuple]:
        return ((as_text(text),) for text, _ in files.read(*arguments, skip_bad=skip_bad))

    return {columns: files, TEXTS: files._replace(read=texts)}


def _objects(read: Callable[..., Iterator[tuple]]) -> dict[Columns, Files]:
    """Reads columns from the fields of objects, which settings name."""
    return {
        columns: Files(
            functools.partial(read, columns),
            tuple(KEYS[column] for column in columns),
            _PREFIX * (columns == PAIRS),
        )
        for columns in (*_TEXTUAL, NUMBERS)
    }


_PREFIX = ("prefix",)
_LABEL = ("text_feature", "label_feature")
_TEXTUAL = (PAIRS, TEXTS, LABELLED, TAGGED)

# Which columns each source yields, and how. A task finds its source by the columns that it reads.
SOURCES: dict[str, Mapping[Columns, Files | Generated]] = {
    # The generated English-German grammar.
    "embedded": {
        columns: Generated(embedded.read, lambda settings: grammar.NAME, _named(columns))
        for columns in _TEXTUAL
    },
    # Words drawn from a Markov chain, each 16 of them followed by their copy.
    "bigram_copy": _pieces(bigram),
    # The same chain, but after three of its words comes the one before them.
    "backcopy": _pieces(backcopy),
    # Words drawn alike, and then repeated at a distance that differs by piece.
    "repeat": _pieces(repeat),
    # Keys whose frequencies are a power of their rank, each with an answer of its own distribution.
    "zipf": _pieces(zipf, "name"),
    # Generated pictures of objects, as many as a split names.
    "scenes": {
        columns: Generated(boxes.read_scenes, lambda settings: scenes.VERSION, ("name",))
        for columns in (PICTURES, BOXED)
    },
    # Images with boxes, in COCO's JSON.
    "coco": {BOXED: Files(boxes.read_coco, beside=boxes.coco_images)},
    # Images with boxes, in Pascal VOC's folders.
    "voc": {BOXED: Files(boxes.read_voc, beside=boxes.voc_files)},
    # A set of TFDS's catalogue.
    "tfds": {
        **{
            columns: Generated(
                lambda *args: _catalogue().read(*args), _in_catalogue, ("name", *_named(columns))
            )
            for columns in (*_TEXTUAL, PICTURES)
        },
        BOXED: Generated(
            lambda *args: _catalogue().read_boxes(*args), _in_catalogue, ("name", *_LABEL)
        ),
    },
    # Images in folders of their labels.
    "folder": {PICTURES: Files(pictures.read_folder, beside=pictures.files_of)},
    # Handwritten digits of 8x8 pixels, which scikit-learn brings along.
    "digits": {PICTURES: Generated(pictures.read_digits, lambda _: pictures.DIGITS_VERSION)},
    # Two parallel files, a sentence a line; for language models plain text.
    "text": {
        PAIRS: Files(parse.read_pair, shaping=_named(PAIRS), endings=_languages),
        TEXTS: Files(_documents, ("document_separator",)),
    },
    # Files of the SCAN task.
    "scan": {PAIRS: Files(parse.read_scan, shaping=_PREFIX)},
    # Files of the bAbI tasks: a story with a question, and its answer.
    "babi": {PAIRS: Files(questions.read_babi, shaping=_PREFIX)},
    # Questions and answers on paragraphs, in SQuAD's JSON.
    "squad": {PAIRS: Files(questions.read_squad, shaping=_PREFIX)},
    # FairytaleQA: questions/SPLIT/NAME-questions.csv, or section-stories/SPLIT/NAME-story.csv.
    "fairytaleqa": {
        PAIRS: Files(
            questions.read_fairytaleqa,
            shaping=_PREFIX,
            beside=lambda path: (questions.story_of(path),),
        ),
        TEXTS: Files(questions.read_fairytales),
    },
    # Columns separated by tabs.
    "tsv": _with_texts(LABELLED, Files(parse.read_table, _LABEL)),
    # Lines "LABEL sentence".
    "labelled": _with_texts(LABELLED, Files(parse.read_labelled)),
    # A word and its tag a line.
    "conll": _with_texts(TAGGED, Files(parse.read_conll)),
    # CoNLL-U.
    "conllu": _with_texts(TAGGED, Files(parse.read_conllu, ("label_feature",))),
    # A JSON object, or a dict of Python, a line.
    "json": _objects(parse.read_json),
    # Columns of Parquet.
    "parquet": {**_objects(parse.read_parquet), PICTURES: Files(pictures.read_parquet, _LABEL)},
}


def read(settings: SourceSettings, columns: Columns, splits: tuple[str, ...]) -> Iterator[Examples]:
    """Yields all examples of the splits, one after the other, in pieces that memory can hold.

    Args:
        columns: what is read; sentences and documents are str, words and tags lists of str,
            features and values lists of numbers. A target is a list where several are right.
        splits: "embedded", "tfds": TFDS split expressions such as "train[:90%]"; parallel text:
            prefixes P of the pairs P.<source_language>, P.<target_language>; generated languages:
            keys of their SPLITS; others: files. Those of files may be patterns, as "part-*".

    Yields:
        The columns, sources behind `settings.prefix`; of English-German pairs from the embedded
        corpus all others too.

    Raises:
        FileNotFoundError: a missing file or folder.
        ValueError: anything else that is wrong with the input; the message names file and line.
    """
    for piece in _read(settings, columns, splits):
        if columns == PAIRS and settings.prefix:
            piece["source"] = [settings.prefix + source for source in piece["source"]]
        yield piece


def _read(
    settings: SourceSettings, columns: Columns, splits: tuple[str, ...]
) -> Iterator[Examples]:
    """The pieces as the files have them."""
    files = find_files(settings, columns, splits)
    reader = SOURCES[settings.source][columns]
    if isinstance(reader, Generated):
        for block in reader.read(settings, splits, columns):
            yield from gathered(list(block), zip(*block.values(), strict=True))
        return
    examples = 0
    for paths in files:
        all_of = reader.all_of(paths)
        before = list(map(_state, all_of))
        for piece in gathered(columns, reader.rows(settings, paths)):
            examples += len(piece[columns[0]])
            yield piece
        for path, state in zip(all_of, before, strict=True):
            if _state(path) != state:
                raise ValueError(f"{path} changed while it was read: start again once it is whole")
    if not examples:
        raise ValueError(f"data.dir={settings.dir!r}: there is no example in {', '.join(splits)}")
    separated = reader.arguments == ("document_separator",) and settings.document_separator
    if separated and examples == len(files):
        named = separated, ", ".join(splits)
        logging.warning("data.document_separator=%r divides none of %s: each is a document", *named)


def version(settings: SourceSettings, columns: Columns, splits: tuple[str, ...]) -> list[Any]:
    """What `read` depends on, known without reading all: the folder and the files behind all links,
    the `_state` of each, and the settings that shape the examples. Raises as `find_files`."""
    files = find_files(settings, columns, splits)
    reader = SOURCES[settings.source][columns]
    shaping = [getattr(settings, name) for name in reader.reads if name != "dir"]
    source = settings.source + reader.code
    if isinstance(reader, Generated):
        return [source, columns, splits, shaping, reader.version(settings)]
    folder = Path(settings.dir).expanduser().resolve()
    states = [
        [(os.path.relpath(path.resolve(), folder), *_state(path)) for path in reader.all_of(paths)]
        for paths in files
    ]
    return [source, columns, shaping, str(folder), states]


def plain_bytes(settings: SourceSettings, columns: Columns, splits: tuple[str, ...]) -> int | None:
    """The size of the files; None where there are none, or they are packed."""
    paths = [path for paths in find_files(settings, columns, splits) for path in paths]
    packed = any(path.suffix in open_file.PACKED for path in paths) or settings.source == "parquet"
    return sum(path.stat().st_size for path in paths) if paths and not packed else None


def _state(path: Path) -> tuple[int, int, str]:
    """The size of a file, the time at which it was changed, in nanoseconds, and a hash of its ends
    and of blocks between: of a small file's whole content."""
    status, digest = path.stat(), hashlib.sha256()
    if path.is_file():  # a pipe, which reading refuses, would be waited for
        with path.open("rb", buffering=0) as file:
            for number in range(_BLOCKS):
                file.seek(max(status.st_size - _BLOCK, 0) * number // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK))
    return status.st_size, status.st_mtime_ns, digest.hexdigest()


def find_files(
    settings: SourceSettings, columns: Columns, splits: tuple[str, ...]
) -> list[tuple[Path, ...]]:
    """The files of each split: two of parallel text, one of other files, none of other sources.

    Raises:
        FileNotFoundError: a missing file or folder.
        ValueError: the source does not yield the columns, or dir is empty.
    """
    source, dir = settings.source, settings.dir
    if columns not in SOURCES[source]:
        serving = ", ".join(name for name, readers in SOURCES.items() if columns in readers)
        raise ValueError(
            f"data.source={source!r} does not yield {' and '.join(columns)}, which the task reads; "
            f"sources that do: {serving or 'none'}"
        )
    reader = SOURCES[source][columns]
    if not isinstance(reader, Files):
        return []
    if not dir:
        raise ValueError(f"data.source={source!r} needs data.dir, the folder of its files")
    folder = Path(dir).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"data.dir={dir!r}: there is no such folder (a row of data.mixture names its own)"
        )
    endings = reader.endings(settings)
    return [paths for split in splits for paths in _match(folder, split, endings)]


def _match(folder: Path, split: str, endings: tuple[str, ...]) -> list[tuple[Path, ...]]:
    """The files of a split, or of all that match it where it is a pattern, in alphabetical order.

    As in a shell, names that begin with a dot match only a pattern that does. Raises
    FileNotFoundError where there are none.
    """
    if not set("*?[") & set(split) or (folder / f"{split}{endings[0]}").exists():
        return [tuple(find(folder / f"{split}{ending}") for ending in endings)]
    first = endings[0]
    # Of a file that is there plain and packed `find` takes one.
    names = (f"{split}{first}{packed}" for packed in ("", *open_file.PACKED))
    matches = (glob.iglob(name, root_dir=folder, recursive=True) for name in names)
    stems = {
        str(path.with_suffix("") if path.suffix in open_file.PACKED else path).removesuffix(first)
        for path in map(folder.joinpath, itertools.chain.from_iterable(matches))
    }
    if not stems:
        raise FileNotFoundError(
            f"{folder / split}{first}: no file matches (named by data.train, data.validation or "
            "data.test, in the folder data.dir)"
        )
    return [tuple(find(Path(f"{stem}{ending}")) for ending in endings) for stem in sorted(stems)]
