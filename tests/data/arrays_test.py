import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.data.numbered import PAIRS, assert_same
from transformer_jax.data import arrays
from transformer_jax.data.arrays import cached_tokens, tokenise
from transformer_jax.data.recipe import Limits, Recipe
from transformer_jax.data.tokenizer import EOS_ID, train_tokenizer

BYTES = train_tokenizer("bytes", [], 0)
EXAMPLES = {
    "source": ["ab", "", "abcdef", "a", "abcd"],
    "target": ["x", "y", "z", "0123456", "wxyz"],
}


def _encode(examples, tokenizer, labels, limits):
    """Texts with eos; leaves sources out that are too long, and ignores targets' limit."""
    pairs = zip(*(tokenizer.encode(examples[name]) for name in ("source", "target")), strict=True)
    found = [([*source, EOS_ID], [*target, EOS_ID]) for source, target in pairs]
    kept = [pair for pair in found if len(pair[0]) <= limits.source]
    rows = {"inputs": [source for source, _ in kept], "targets": [target for _, target in kept]}
    return rows, len(found) - len(kept)


RECIPE = Recipe(
    name="pairs",
    reads=("source", "target"),
    columns=dict(PAIRS),
    encode=_encode,
    prompt=lambda lines, tokenizer, labels, limits: ({"inputs": []}, 0),
)


def settings(**changes) -> dict[str, Any]:
    unchanged = dict(
        examples=EXAMPLES,
        tokenizer=BYTES,
        recipe=RECIPE,
        labels=(),
        limits=Limits(5, 6, "drop"),
    )
    return unchanged | changes


def named(name: str) -> Recipe:
    return dataclasses.replace(RECIPE, name=name)


def test_arrays_hold_what_the_recipe_makes_of_each_example(monkeypatch):
    monkeypatch.setattr(arrays, "_CHUNK", 2)  # several chunks, the last one not full
    made = tokenise(**settings())
    kept = [0, 1, 3, 4]
    assert (len(made), made.too_long) == (len(kept), 1)
    for number, example in enumerate(kept):
        for side, column in (("inputs", "source"), ("targets", "target")):
            ids = BYTES.encode([EXAMPLES[column][example]])[0]
            assert made[number][side].tolist() == [*ids, EOS_ID]
    assert {column.dtype for column in made.columns.values()} == {np.dtype(np.int32)}


def test_chunks_change_nothing(monkeypatch):
    at_once = tokenise(**settings())
    monkeypatch.setattr(arrays, "_CHUNK", 2)
    in_chunks = tokenise(**settings())
    assert_same(at_once.columns, in_chunks.columns)
    assert_same(at_once.offsets, in_chunks.offsets)
    assert at_once.too_long == in_chunks.too_long


@pytest.mark.parametrize("examples", [EXAMPLES, {"source": [], "target": []}])
def test_no_example_left(examples):
    with pytest.raises(ValueError, match="no example is left of .*data.max_source_length=0"):
        tokenise(**settings(examples=examples, limits=Limits(0, 6, "drop")))


def test_cached_tokens_are_made_once_and_mapped(tmp_path, monkeypatch):
    made = tokenise(**settings())
    cached_tokens(**settings(), cache_dir=tmp_path)
    monkeypatch.delattr(arrays, "tokenise")  # so only the cache can answer
    found = cached_tokens(**settings(), cache_dir=tmp_path)
    assert (found.too_long, found.fingerprint) == (made.too_long, made.fingerprint)
    assert list(found.columns) == list(made.columns)  # their order decides that of batches
    assert_same(found.columns, made.columns)
    assert_same(found.offsets, made.offsets)
    assert not any(column.flags.writeable for column in found.columns.values())
    folders = [path.name for path in (tmp_path / "tokens").iterdir() if path.is_dir()]
    assert folders == [made.fingerprint]


def test_the_fingerprint_of_tokens_covers_what_made_them():
    swapped = {"source": EXAMPLES["target"], "target": EXAMPLES["source"]}
    variants: list[dict[str, Any]] = [
        {},
        {"examples": swapped},
        {"tokenizer": train_tokenizer("words", ["ab"], 9)},
        {"limits": Limits(5, 6, "truncate")},
        {"limits": Limits(6, 6, "drop")},
        {"limits": Limits(5, 7, "drop")},
        {"recipe": named("others")},
        {"labels": ("bad", "good")},
        {"labels": ("good", "bad")},
    ]
    made = [tokenise(**settings(**variant)) for variant in variants]
    assert len({one.fingerprint for one in made}) == len(variants)
    beside = EXAMPLES | {"number": [1, 2, 3, 4, 5]}  # a column that the recipe does not read
    assert tokenise(**settings(examples=beside)).fingerprint == made[0].fingerprint
