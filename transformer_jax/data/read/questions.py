"""Readers of questions about texts, from a path to rows of a source and its right answers."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.data.read.open_file import find, read_lines
from transformer_jax.data.read.parse import Row, checked, parsed, whole

_STORIES = "section-stories"  # the folder of FairytaleQA beside that of the questions


def read_babi(path: Path, *, skip_bad: bool) -> Iterator[Row]:
    """A file of the bAbI tasks (Weston et al. 2015): a question on the story so far, its answer.

    Lines are "ID text", or "ID question<TAB>answer<TAB>IDs"; a story begins at ID 1. Punctuation
    is made words of its own, as are the commas of an answer. Sources are as those of `read_squad`.

    Raises:
        ValueError: any other line.
    """
    story: list[str] = []

    def parse(line: str) -> Row | None:
        number, _, rest = line.partition(" ")
        if not number.isdecimal() or not rest or rest.count("\t") > 2:
            raise ValueError("expected 'ID text' or 'ID question<TAB>answer<TAB>IDs'")
        if number == "1":
            story.clear()
        text, *answer = rest.split("\t")
        if not answer:
            story.append(_spaced(text))
            return None
        return _source(_spaced(text), " ".join(story)), _spaced(answer[0])

    return parsed(path, parse, skip_bad)


def read_squad(path: Path, *, skip_bad: bool) -> Iterator[Row]:
    """A file of SQuAD's format (Rajpurkar et al. 2016), also XQuAD: one JSON object.

    Sources are "question: ... context: ...", as in T5; targets all different answers. Questions
    without an answer, as in SQuAD 2.0, are left out.

    Raises:
        ValueError: another content.
    """
    text = "\n".join(line for line in read_lines(path, skip_bad=skip_bad) if line is not None)
    try:
        for article in json.loads(text)["data"]:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    answers = [whole(answer["text"]) for answer in entry["answers"]]
                    if answers:
                        source = _source(entry["question"], paragraph["context"])
                        yield whole(source), list(dict.fromkeys(answers))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected SQuAD's format, data[].paragraphs[].{{context, qas[].{{question, "
            f"answers[].text}}}} ({error!r})"
        ) from error


def read_fairytaleqa(path: Path, *, skip_bad: bool) -> Iterator[Row]:
    """The questions on a story of FairytaleQA (Xu et al. 2022): questions/SPLIT/NAME-questions.csv.

    The sections that a question names are its context: section-stories/SPLIT/NAME-story.csv has
    them. Sources are as those of `read_squad`; targets the answers of both annotators, "answer1"
    and "answer4", where there are two.

    Raises:
        FileNotFoundError: there is no such story.
        ValueError: a column is missing, or a section, or both answers.
    """
    story = story_of(path)
    sections = {row["section"]: row["text"] for _, row in _table(story, ("section", "text"))}

    def parse(row: dict[str, Any]) -> Row:
        named = row["cor_section"].replace(" ", "").split(",")
        if missing := [section for section in named if section not in sections]:
            raise ValueError(f"there is no section {missing[0]!r} in {story}")
        context = " ".join(" ".join(sections[section].split()) for section in named)
        texts = (row[column].strip() for column in ("answer1", "answer4"))
        answers = [answer for answer in dict.fromkeys(texts) if answer]
        if not answers:
            raise ValueError("there is no answer")
        return _source(row["question"], context), answers

    rows = _table(path, ("question", "cor_section", "answer1", "answer4"))
    return checked(path, rows, parse, skip_bad)


def story_of(path: Path) -> Path:
    """The story that a file of questions of FairytaleQA is on. Raises as `open_file.find`."""
    name = path.name.partition(".csv")[0].removesuffix("-questions")
    return find(path.parents[2] / _STORIES / path.parent.name / f"{name}-story.csv")


def read_fairytales(path: Path, *, skip_bad: bool) -> Iterator[Row]:
    """A story of FairytaleQA, section-stories/SPLIT/NAME-story.csv, as one text.

    Raises ValueError where a column is missing.
    """
    del skip_bad  # the stories are not a list of examples
    sections = (row["text"] for _, row in _table(path, ("section", "text")))
    yield ("\n".join(" ".join(section.split()) for section in sections),)


def _spaced(text: str) -> str:
    """The text with blanks around punctuation, and nowhere two."""
    return " ".join(re.sub(r"([.?,])", r" \1 ", text).split())


def _source(question: str, context: str) -> str:
    return f"question: {question.strip()} context: {context.strip()}"


def _table(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a CSV file, all as wide as its header, by its names, and where each ends."""
    lines = (f"{line}\n" for line in read_lines(path))
    rows = csv.DictReader(lines, strict=True)
    try:
        names = rows.fieldnames or ()
        if wrong := [column for column in columns if list(names).count(column) != 1]:
            raise ValueError(
                f"{path}: expected one {wrong[0]!r} among its columns {', '.join(names)}"
            )
        for row in rows:
            if None in row or None in row.values():
                raise csv.Error(f"expected {len(names)} columns, as in the header")
            yield rows.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}:{rows.line_num}: {error}") from error
