"""Where examples come from: what is generated, files in a folder, TFDS's catalogue."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from transformer_jax.data import bigram, files
from transformer_jax.data.examples import Examples, SourceSettings, concatenate

# The columns that a task reads.
Columns = tuple[str, ...]


class Files(NamedTuple):
    """Reads each split from files of its own.

    read: (settings, files of one split) -> examples. reads: the settings that have an effect on it.
    endings: settings -> what the name of each file ends with, behind the name of the split.
    """

    read: Callable[..., Examples]
    reads: tuple[str, ...] = ("dir",)
    endings: Callable[[SourceSettings], tuple[str, ...]] = lambda settings: ("",)


class Generated(NamedTuple):
    """Reads all splits at once, where there are no files to name.

    read: (settings, names of splits) -> examples. reads: as of `Files`.
    """

    read: Callable[[SourceSettings, tuple[str, ...]], Examples]
    reads: tuple[str, ...] = ()


PAIRS: Columns = ("source", "target")
TEXTS: Columns = ("text",)
LABELLED: Columns = ("text", "label")
TAGGED: Columns = ("words", "tags")


def _languages(settings: SourceSettings) -> tuple[str, ...]:
    return f".{settings.source_language}", f".{settings.target_language}"


def _bigram_copy(settings: SourceSettings, splits: tuple[str, ...]) -> Examples:
    del settings
    return {"text": [bigram.text(split) for split in splits]}


def _from_tfds(builder: str, read: str, *reads: str) -> Generated:
    """Reads a set of TFDS. builder, read: functions of `catalogue` that find it and read it."""

    def load(settings: SourceSettings, splits: tuple[str, ...]) -> Examples:
        # Only here, since importing TFDS takes long and other sources do without it.
        from transformer_jax.data import catalogue

        return getattr(catalogue, read)(getattr(catalogue, builder)(settings), settings, splits)

    return Generated(load, reads)


_LANGUAGES = ("source_language", "target_language")
_LABEL = ("text_feature", "label_feature")

# Which columns each source yields, and how. A task finds its source by the columns that it reads.
SOURCES: dict[str, dict[Columns, Files | Generated]] = {
    # The generated English-German grammar.
    "embedded": {
        PAIRS: _from_tfds("embedded", "read_all"),
        TEXTS: _from_tfds("embedded", "read_texts", "text_feature"),
        LABELLED: _from_tfds("embedded", "read_labelled", *_LABEL),
        TAGGED: _from_tfds("embedded", "read_tagged", *_LABEL),
    },
    # Words drawn from a Markov chain, each 16 of them followed by their copy.
    "bigram_copy": {TEXTS: Generated(_bigram_copy)},
    # A set of TFDS's catalogue.
    "tfds": {
        PAIRS: _from_tfds("catalogued", "read_pairs", "name", *_LANGUAGES),
        TEXTS: _from_tfds("catalogued", "read_texts", "name", "text_feature"),
        LABELLED: _from_tfds("catalogued", "read_labelled", "name", *_LABEL),
        TAGGED: _from_tfds("catalogued", "read_tagged", "name", *_LABEL),
    },
    # Two parallel files, a sentence a line; for language models plain text.
    "text": {
        PAIRS: Files(
            lambda settings, source, target: files.read_pair(source, target),
            ("dir", *_LANGUAGES),
            _languages,
        ),
        TEXTS: Files(
            lambda settings, path: files.read_documents(path, settings.document_separator),
            ("dir", "document_separator"),
        ),
    },
    # Files of the SCAN task.
    "scan": {PAIRS: Files(lambda settings, path: files.read_scan(path))},
    # Columns separated by tabs.
    "tsv": {
        LABELLED: Files(
            lambda settings, path: files.read_table(
                path, settings.text_feature, settings.label_feature
            ),
            ("dir", *_LABEL),
        )
    },
    # Lines "LABEL sentence".
    "labelled": {LABELLED: Files(lambda settings, path: files.read_labelled(path))},
    # A word and its tag a line.
    "conll": {TAGGED: Files(lambda settings, path: files.read_conll(path))},
    # CoNLL-U.
    "conllu": {
        TAGGED: Files(
            lambda settings, path: files.read_conllu(path, settings.label_feature),
            ("dir", "label_feature"),
        )
    },
}


def load(settings: SourceSettings, columns: Columns, splits: tuple[str, ...]) -> Examples:
    """All examples of the splits, one after the other.

    Args:
        columns: what is read; sentences and documents are str, words and tags lists of str.
        splits: "embedded", "tfds": TFDS split expressions such as "train[:90%]"; parallel text:
            prefixes P of the pairs P.<source_language>, P.<target_language>; "bigram_copy": keys of
            `bigram.SPLITS`; others: files.

    Returns:
        The columns; of pairs from the embedded corpus all others too.

    Raises:
        FileNotFoundError: a missing file or folder.
        ValueError: anything else that is wrong with the input; the message names file and line.
    """
    if not splits:
        raise ValueError("no data to read: data.train (or data.test) names no split or file")
    found = find_files(settings, columns, splits)
    reader = SOURCES[settings.source][columns]
    if isinstance(reader, Files):
        return concatenate([reader.read(settings, *paths) for paths in found])
    return reader.read(settings, splits)


def find_files(
    settings: SourceSettings, columns: Columns, splits: tuple[str, ...]
) -> list[tuple[Path, ...]]:
    """The files of each split: two of parallel text, one of other files, none of other sources.

    Raises:
        FileNotFoundError: a missing file or folder.
        ValueError: the source is unknown or does not yield the columns, or dir is empty.
    """
    source, dir = settings.source, settings.dir
    if source not in SOURCES:
        raise ValueError(f"data.source={source!r}: expected one of {', '.join(SOURCES)}")
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
        raise FileNotFoundError(f"data.dir={dir!r}: there is no such folder")
    endings = reader.endings(settings)
    return [tuple(_find(folder / f"{split}{ending}") for ending in endings) for split in splits]


def _find(path: Path) -> Path:
    """The file, or where there is none the one with .gz added."""
    zipped = path.with_name(path.name + ".gz")
    if not path.exists() and not zipped.exists():
        raise FileNotFoundError(
            f"{path}: there is no such file, nor {zipped.name} (named by data.train, "
            "data.validation or data.test, in the folder data.dir)"
        )
    return path if path.exists() else zipped
