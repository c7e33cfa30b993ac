"""Published data, where `TRANSFORMER_JAX_DATA` names its folder, have their published sizes."""

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from transformer_jax.data.read import boxes, parse, questions
from transformer_jax.data.read.open_file import read_documents
from transformer_jax.data.read.sources import PAIRS

read_cola = partial(parse.read_table, text_column="3", label_column="1")
read_glue = partial(parse.read_table, text_column="sentence", label_column="label")
# How many rows there are, and what is in their second columns.
ROWS: dict[str, tuple[Any, int, str]] = {
    "sst/stsa.fine.train": (parse.read_labelled, 8544, "[0-4]"),
    "sst/stsa.fine.dev": (parse.read_labelled, 1101, "[0-4]"),
    "sst/stsa.fine.test": (parse.read_labelled, 2210, "[0-4]"),
    "sst/stsa.binary.train": (parse.read_labelled, 6920, "[01]"),
    "sst/stsa.binary.dev": (parse.read_labelled, 872, "[01]"),
    "sst/stsa.binary.test": (parse.read_labelled, 1821, "[01]"),
    "sst/glue_sst2/train_full.tsv": (read_glue, 67_349, "[01]"),
    "sst/glue_sst2/dev.tsv": (read_glue, 872, "[01]"),
    "cola/in_domain_train.tsv": (read_cola, 8551, "[01]"),
    "cola/in_domain_dev.tsv": (read_cola, 527, "[01]"),
    "cola/out_of_domain_dev.tsv": (read_cola, 516, "[01]"),
    "babi/en/qa1_single-supporting-fact_test.txt": (questions.read_babi, 1000, r"\w+"),
    "babi/en/qa19_path-finding_test.txt": (questions.read_babi, 1000, "[nesw] , [nesw]"),
}
# Sentences, words, and entities or different tags.
TAGGED = {
    "ud_english_ewt/en_ewt-ud-train.conllu": (12_544, 204_577, 17),
    "ud_english_ewt/en_ewt-ud-dev.conllu": (2001, 25_147, 17),
    "ud_english_ewt/en_ewt-ud-test.conllu": (2077, 25_094, 17),
    "wnut17/wnut17train.conll": (3394, 62_730, 1975),
    "wnut17/emerging.dev.conll": (1009, 15_733, 836),
    "wnut17/emerging.test.annotated": (1287, 23_394, 1079),
}


def published(name: str) -> Path:
    """A file or folder of the published data; the test is skipped where there is none."""
    folder = os.environ.get("TRANSFORMER_JAX_DATA")
    if folder is None or not Path(folder, name).exists():
        pytest.skip(f"TRANSFORMER_JAX_DATA names no folder with {name}")
    return Path(folder, name)


@pytest.mark.parametrize("name", ROWS)
def test_texts_with_labels_or_answers(name):
    read, size, pattern = ROWS[name]
    rows = list(read(published(f"{name}.gz"), skip_bad=False))
    assert len(rows) == size and all(re.fullmatch(pattern, label) for _, label in rows)


@pytest.mark.parametrize("name", TAGGED)
def test_tagged_words(name):
    sentences, words, last = TAGGED[name]
    upos = name.endswith("conllu")
    read = partial(parse.read_conllu, label_column="upos") if upos else parse.read_conll
    rows = list(read(published(f"{name}.gz"), skip_bad=False))
    tags = [tag for _, of_sentence in rows for tag in of_sentence]
    assert (len(rows), len(tags)) == (sentences, words)
    entities = sum(tag.startswith("B-") for tag in tags)
    assert last == (len(set(tags)) if upos else entities)


def test_tiny_shakespeare():
    text = "".join(read_documents(published("tinyshakespeare/input.txt.gz"), ""))
    assert (len(text), len(set(text)), text.count("\n")) == (1_115_394, 65, 40_000)


def test_xquad():
    rows = list(questions.read_squad(published("xquad_en/xquad.en.json.gz"), skip_bad=False))
    assert len(rows) == 1190 and all(len(answers) == 1 for _, answers in rows)


@pytest.mark.parametrize(("split", "count"), [("dev", 500), ("test", 500), ("train", 12_460)])
def test_dialogsum(split, count):
    path = published(f"dialogsum/dialogsum.{split}.jsonl.gz")
    rows = list(parse.read_json(PAIRS, path, "dialogue", "summary*", skip_bad=False))
    assert len(rows) == count
    assert all(isinstance(target, list) == (split == "test") for _, target in rows)


def test_blood_cells():
    """BCCD, of which two cells have no area by their files."""
    lists = published("bccd/BCCD/ImageSets/Main")
    rows = [row for name in ("trainval", "test")
            for row in boxes.read_voc(lists / f"{name}.txt", skip_bad=False)]  # fmt: skip
    columns = dict(zip(boxes.BOXED, map(list, zip(*rows, strict=True)), strict=True))
    assert len(rows) == 364 and all(size == [480, 640] for size in columns["size"])
    assert sum(map(len, columns["boxes"])) == 4888
    assert boxes.left_out(columns) == {"boxes without area": 2, "crowds or difficult boxes": 0}
    assert {name for names in columns["labels"] for name in names} == {"RBC", "WBC", "Platelets"}
