"""The corpus: its order, its splits, its labels and its entropy."""

import numpy as np
import pytest

from tests.data.corpora.grammar.dictionary import FEMININE, MASCULINE, NEUTER
from transformer_jax.data.corpora import grammar
from transformer_jax.data.corpora.grammar import lexicon, sentences

OBJECTS = [noun for scene in lexicon.SCENES for noun in scene.objects]
NOUNS = [*lexicon.ANIMALS, *OBJECTS]
OF_ANIMALS = set("tired sleepy lazy sick clumsy shy nervous impatient anxious stubborn".split())


@pytest.fixture(scope="module")
def many() -> list[sentences.Sentence]:
    located = map(grammar.locate, grammar.numbers(0, range(20_000)))
    return [pattern(number) for pattern, number in located]


@pytest.fixture(scope="module")
def held_out() -> dict[tuple[str, str, str], bool]:
    """Whether each (subject, object, adjective) is held out."""
    return {situation.triple: situation.held_out for situation in sentences.SITUATIONS}


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 1000, 4096, 5003])
def test_permutation_is_a_bijection(size):
    for seed in (0, 1):
        assert set(grammar.permute(seed, np.arange(size), size)) == set(range(size))


def test_permutation_spreads_over_the_whole_range():
    permuted = grammar.permute(3, np.arange(1000), grammar.SIZE)
    shares = np.bincount(permuted * 10 // grammar.SIZE, minlength=10) / len(permuted)
    assert np.all((shares > 0.05) & (shares < 0.15))


def test_sentence_is_a_pure_function_of_seed_and_index():
    indices = range(4090, 4105)  # across the edge of a block
    in_bulk = list(grammar.numbers(7, range(4200)))[4090:4105]
    alone = [list(grammar.numbers(7, range(index, index + 1))) for index in indices]
    assert [number for (number,) in alone] == in_bulk
    assert list(grammar.numbers(8, indices)) != in_bulk


def test_every_english_word_has_one_tag(many):
    universal = {"ADJ", "ADV", "AUX", "CCONJ", "DET", "NOUN", "PRON", "PUNCT", "SCONJ", "VERB"}
    tags_of = {}
    for s in many:
        words, tags = s.source.split(" "), s.tags.split(" ")
        assert len(words) == len(tags), s
        for word, tag in zip(words, tags, strict=True):
            tags_of.setdefault(word.lower(), set()).add(tag)
    assert set().union(*tags_of.values()) == universal
    assert {word for word, tags in tags_of.items() if len(tags) > 1} == {"that"}
    assert tags_of["that"] == {"SCONJ", "PRON"}


def test_it_is_resolved_by_the_adjective_and_takes_the_gender_of_its_noun(many):
    genders = {"er": MASCULINE, "sie": FEMININE, "es": NEUTER}
    german = {noun.singular: noun.german for noun in NOUNS}
    animals = {noun.singular for noun in lexicon.ANIMALS}
    roles = set()
    for s in many:
        words, target = s.source.lower().split(), s.target.lower().split()
        if "it" not in words:
            assert (s.pronoun, s.antecedent, s.antecedent_role) == ("", "", "")
            continue
        tags = s.tags.split()
        adjective = words[tags.index("ADJ", words.index("it"))]
        assert s.antecedent in words and s.pronoun in target
        assert german[s.antecedent] in genders[s.pronoun], s
        assert (s.antecedent in animals) == (adjective in OF_ANIMALS), s
        assert s.antecedent_role == ("subject" if adjective in OF_ANIMALS else "object")
        roles.add((s.pronoun, s.antecedent_role))
    assert len(roles) == 6


def test_held_out_triples_are_few_and_hold_both_of_the_street(held_out):
    assert 0.05 < np.mean(list(held_out.values())) < 0.10
    assert held_out["animal", "street", "tired"] and held_out["animal", "street", "wide"]


@pytest.mark.parametrize("of_triple", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_every_word_and_every_pair_occurs_in_training(held_out, of_triple):
    parts = [(tuple(words[i] for i in of_triple), held) for words, held in held_out.items()]
    assert {part for part, held in parts if not held} == {part for part, _ in parts}


def triple_in(example: dict[str, str]) -> tuple[str, str, str] | None:
    """The triple of a sentence with a predicate adjective, read from its words."""
    singular = {noun.plural: noun.singular for noun in NOUNS}
    words = [singular.get(word, word) for word in example["source"].lower().split()]
    subjects = {noun.singular for noun in lexicon.ANIMALS} & set(words)
    objects = {noun.singular for noun in OBJECTS} & set(words)
    predicates = {w.english for scene in lexicon.SCENES for w in scene.adjectives} | OF_ANIMALS
    adjectives = predicates & set(words)
    if not adjectives:
        return None
    (subject,), (object,), (adjective,) = subjects, objects, adjectives
    return subject, object, adjective


def test_held_out_triples_are_in_the_test_split_and_nowhere_else(held_out):
    splits = {name: list(grammar.examples(name, 1000)) for name in grammar.SPLITS}
    for name, examples in splits.items():
        assert len(examples) == len({e["source"] for e in examples}) == 1000
        triples = [triple_in(example) for example in examples]
        if name == "test":
            assert all(triple is not None and held_out[triple] for triple in triples)
            assert all(example["pronoun"] for example in examples)
        else:
            assert not any(triple is not None and held_out[triple] for triple in triples)
            assert None in triples
    train, validation = ({e["source"] for e in splits[n]} for n in ("train", "validation"))
    assert not train & validation


def test_entropy_counts_the_sentences_that_are_not_held_out(monkeypatch):
    # A grammar of the same patterns with a few options of each slot is small enough to enumerate.
    few = [
        {name: slot[: 60 if name == "situation" else 2] for name, slot in pattern.slots.items()}
        for pattern in sentences.PATTERNS
    ]
    small = [
        sentences.Pattern(p.realise, " ".join(slots), **slots)
        for p, slots in zip(sentences.PATTERNS, few, strict=True)
    ]
    monkeypatch.setattr(grammar, "PATTERNS", tuple(small))
    located = [grammar.locate(number) for number in range(sum(pattern.size for pattern in small))]
    free = {p(number).source for p, number in located if not p.is_held_out(number)}
    assert 0 < len(free) < len(located)
    assert grammar.entropy() == pytest.approx(np.log(len(free)))


def test_test_split_begins_with_the_two_street_sentences():
    tired, wide = grammar.examples("test", 2)
    assert tired["source"] == "The animal didn't cross the street because it was too tired ."
    assert tired["target"] == "Das Tier überquerte die Straße nicht , weil es zu müde war ."
    assert wide["source"] == "The animal didn't cross the street because it was too wide ."
    assert wide["target"] == "Das Tier überquerte die Straße nicht , weil sie zu breit war ."
    labels = ("pronoun", "antecedent", "antecedent_role")
    assert [tired[label] for label in labels] == ["es", "animal", "subject"]
    assert [wide[label] for label in labels] == ["sie", "street", "object"]
    assert tired["tags"] == "DET NOUN AUX VERB DET NOUN SCONJ PRON AUX ADV ADJ PUNCT"
