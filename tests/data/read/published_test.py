"""Published data, where `TRANSFORMER_JAX_DATA` names its folder, have their published sizes."""

import os
import re
from functools import partial
from pathlib import Path

import pytest

from transformer_jax.data.read import parse, questions
from transformer_jax.data.read.open_file import read_documents
from transformer_jax.data.read.sources import PAIRS

TREEBANK = {"fine": (5, 8544, 1101, 2210), "binary": (2, 6920, 872, 1821)}
SIZES = {
    "cola/in_domain_train.tsv": 8551,
    "cola/in_domain_dev.tsv": 527,
    "cola/out_of_domain_dev.tsv": 516,
    "sst/glue_sst2/train_full.tsv": 67_349,
    "sst/glue_sst2/dev.tsv": 872,
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
WORDS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}


def published(name):
    folder = os.environ.get("TRANSFORMER_JAX_DATA")
    if folder is None or not Path(folder, f"{name}.gz").exists():
        pytest.skip(f"TRANSFORMER_JAX_DATA names no folder with {name}.gz")
    return Path(folder, f"{name}.gz")


@pytest.mark.parametrize("kind", TREEBANK)
def test_stanford_sentiment_treebank(kind):
    classes, *sizes = TREEBANK[kind]
    for split, size in zip(("train", "dev", "test"), sizes, strict=True):
        path = published(f"sst/stsa.{kind}.{split}")
        _, labels = zip(*parse.read_labelled(path, skip_bad=False), strict=True)
        assert len(labels) == size and set(labels) == {str(n) for n in range(classes)}


@pytest.mark.parametrize("name", SIZES)
def test_tables_of_texts_and_labels(name):
    columns = ("3", "1") if name.startswith("cola") else ("sentence", "label")
    rows = list(parse.read_table(published(name), *columns, skip_bad=False))
    assert len(rows) == SIZES[name] and {label for _, label in rows} == {"0", "1"}


@pytest.mark.parametrize("name", TAGGED)
def test_tagged_words(name):
    sentences, words, last = TAGGED[name]
    upos = name.endswith("conllu")
    read = partial(parse.read_conllu, label_column="upos") if upos else parse.read_conll
    rows = list(read(published(name), skip_bad=False))
    tags = [tag for _, of_sentence in rows for tag in of_sentence]
    assert (len(rows), len(tags)) == (sentences, words)
    entities = sum(tag.startswith("B-") for tag in tags)
    assert last == (len(set(tags)) if upos else entities)


@pytest.mark.parametrize("name", WORDS)
def test_wikitext2(name):
    text = "".join(read_documents(published(f"wikitext2/{name}.txt"), ""))
    assert len(text.split()) + text.count("\n") == WORDS[name]


def test_tiny_shakespeare():
    text = "".join(read_documents(published("tinyshakespeare/input.txt"), ""))
    assert (len(text), len(set(text)), text.count("\n")) == (1_115_394, 65, 40_000)


@pytest.mark.parametrize(
    ("name", "answers"),
    [("qa1_single-supporting-fact", r"\w+"), ("qa19_path-finding", "[nesw] , [nesw]")],
)
def test_babi(name, answers):
    rows = list(questions.read_babi(published(f"babi/en/{name}_test.txt"), skip_bad=False))
    assert len(rows) == 1000 and all(re.fullmatch(answers, answer) for _, answer in rows)


def test_xquad():
    rows = list(questions.read_squad(published("xquad_en/xquad.en.json"), skip_bad=False))
    assert len(rows) == 1190 and all(len(answers) == 1 for _, answers in rows)


@pytest.mark.parametrize(("split", "count"), [("dev", 500), ("test", 500), ("train", 12_460)])
def test_dialogsum(split, count):
    path = published(f"dialogsum/dialogsum.{split}.jsonl")
    rows = list(parse.read_json(PAIRS, path, "dialogue", "summary*", skip_bad=False))
    assert len(rows) == count
    assert all(isinstance(target, list) == (split == "test") for _, target in rows)
