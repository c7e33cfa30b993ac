"""The embedded corpus: numbering, splits, labels, and German that a learner may trust."""

import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from transformer_jax.data import grammar

# Gender and plural forms as a dictionary gives them, independent of the grammar's lexicon.
MASCULINE = (
    "Hund Fuchs Esel Bär Wolf Igel Mann König Weg Pfad Platz Hof Spiegel Korb Stuhl Teller Apfel"
    " Kuchen Keks Pilz"
).split()
FEMININE = (
    "Katze Kuh Ziege Maus Ente Schildkröte Frau Königin Straße Brücke Gasse Wiese Kiste Tasche"
    " Flasche Vase Karotte Birne Wurst Zwiebel"
).split()
NEUTER = (
    "Tier Pferd Schwein Kaninchen Kamel Eichhörnchen Mädchen Kind Feld Tal Dach Moor Paket Bild"
    " Glas Buch Ei Brötchen Steak Radieschen"
).split()
PLURAL = (
    "Hunde Füchse Esel Bären Wölfe Igel Katzen Kühe Ziegen Mäuse Enten Schildkröten Tiere Pferde"
    " Schweine Kaninchen Kamele Eichhörnchen Wege Pfade Plätze Höfe Straßen Brücken Gassen Wiesen"
    " Felder Täler Dächer Moore Spiegel Körbe Stühle Teller Kisten Taschen Flaschen Vasen Pakete"
    " Bilder Gläser Bücher Äpfel Kuchen Kekse Pilze Karotten Birnen Würste Zwiebeln Eier Brötchen"
    " Steaks Radieschen"
).split()
# Article -> the nouns that it can stand before, with the ending of an adjective in between.
AGREEMENT = {
    "der": [(MASCULINE, "e")],
    "den": [(MASCULINE, "en")],
    "die": [(FEMININE, "e"), (PLURAL, "en")],
    "das": [(NEUTER, "e")],
    "dieser": [(MASCULINE, "e")],
    "diesen": [(MASCULINE, "en")],
    "diese": [(FEMININE, "e"), (PLURAL, "en")],
    "dieses": [(NEUTER, "e")],
    "ein": [(MASCULINE, "er"), (NEUTER, "es")],
    "einen": [(MASCULINE, "en")],
    "eine": [(FEMININE, "e")],
    "einige": [(PLURAL, "e")],
    "kein": [(NEUTER, "es")],
    "keinen": [(MASCULINE, "en")],
    "keine": [(FEMININE, "e"), (PLURAL, "en")],
}
STEMS = ("groß", "klein", "alt", "schön", "seltsam", "schmutzig")
OF_ANIMALS = set("tired sleepy lazy sick clumsy shy nervous impatient anxious stubborn".split())


@pytest.fixture(scope="module")
def corpus() -> list[grammar.Sentence]:
    return list(grammar.sentences(0, range(300_000)))


def triples():
    """All (subject, object, adjective), as (English words, held out)."""
    for scene in grammar.SCENES:
        adjectives = grammar.FEELINGS + scene.adjectives
        for subject, object, adjective in product(grammar.ANIMALS, scene.objects, adjectives):
            words = (subject.singular, object.singular, adjective.english)
            yield words, grammar.is_held_out(subject, object, adjective)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 1000, 4096, 5003])
def test_permutation_is_a_bijection(size):
    for seed in (0, 1):
        assert set(grammar.permute(seed, np.arange(size), size)) == set(range(size))


def test_permutation_depends_on_seed_and_not_on_the_block():
    indices = np.arange(1000)
    permuted = grammar.permute(3, indices, grammar.SIZE)
    assert np.array_equal(permuted[500:], grammar.permute(3, indices[500:], grammar.SIZE))
    assert not np.any(permuted == grammar.permute(4, indices, grammar.SIZE))
    # Spread over the whole range: each tenth of it gets about a tenth.
    shares = np.bincount(permuted * 10 // grammar.SIZE, minlength=10) / len(indices)
    assert np.all((shares > 0.05) & (shares < 0.15))


def test_sentence_is_a_pure_function_of_seed_and_index():
    indices = range(4090, 4105)  # across the edge of a block
    in_bulk = [s.example() for s in grammar.sentences(7, range(4200))][4090:4105]
    assert [grammar.sentence(7, index) for index in indices] == in_bulk
    assert [grammar.sentence(8, index) for index in indices] != in_bulk


@pytest.mark.parametrize("index", [-1, grammar.SIZE])
def test_an_index_outside_the_grammar_is_refused(index):
    with pytest.raises(ValueError, match=str(grammar.SIZE)):
        grammar.sentence(0, index)


def test_digits_are_those_of_mixed_radix():
    slots = {"a": "xyz", "b": "pq", "c": "01234"}
    pattern = grammar.Pattern(lambda **choices: choices, **slots)  # pyright: ignore[reportArgumentType]
    assert pattern.size == 30
    for number in range(pattern.size):
        digits = np.unravel_index(number, (3, 2, 5))
        expected = {name: slots[name][digit] for name, digit in zip(slots, digits, strict=True)}
        assert pattern(number) == expected


def test_size_is_the_product_of_the_slots():
    products = [np.prod([len(slot) for slot in p.slots.values()]) for p in grammar.PATTERNS]
    assert grammar.SIZE == sum(products)


def test_every_choice_of_a_pattern_shows_in_the_english_sentence():
    found = []
    for pattern in grammar.PATTERNS:
        # Two options of a slot suffice: every combination of them must give its own sentence.
        few = {name: {slot[0], slot[-1]} for name, slot in pattern.slots.items()}
        found += [
            pattern.realise(**dict(zip(few, choices, strict=True))).source
            for choices in product(*few.values())
        ]
    assert len(set(found)) == len(found) > 1000
    for pattern in grammar.PATTERNS:  # and one slot at a time, all options
        for name, slot in pattern.slots.items():
            rest = {other: options[0] for other, options in pattern.slots.items() if other != name}
            varied = {pattern.realise(**rest, **{name: option}).source for option in slot}
            assert len(varied) == len(slot), name


def test_at_least_300_000_distinct_english_sentences(corpus):
    # Distinct sources also make the translation a function of the source.
    assert len({s.source for s in corpus}) == len(corpus) == 300_000


def test_every_english_word_has_one_tag(corpus):
    universal = {"ADJ", "ADV", "AUX", "CCONJ", "DET", "NOUN", "PRON", "PUNCT", "SCONJ", "VERB"}
    seen = {}
    for s in corpus:
        words, tags = s.source.split(" "), s.tags.split(" ")
        assert len(words) == len(tags), s
        for word, tag in zip(words, tags, strict=True):
            seen.setdefault(word.lower(), set()).add(tag)
    assert set().union(*seen.values()) == universal
    assert {word for word, tags in seen.items() if len(tags) > 1} == {"that"}
    assert seen["that"] == {"SCONJ", "PRON"}


def test_vocabulary_is_small_and_blank_separated(corpus):
    for text in ("source", "target"):
        vocabulary = {word for s in corpus for word in getattr(s, text).split(" ")}
        assert 150 < len(vocabulary) < 350
        assert all(word.replace("'", "").isalpha() or word in {".", ","} for word in vocabulary)
    for s in corpus[:1000]:
        assert s.source[0].isupper() and s.source.endswith(" .")
        assert s.target[0].isupper() and s.target.endswith(" .")


def test_it_is_resolved_by_the_adjective_and_takes_the_gender_of_its_noun(corpus):
    genders = {"er": MASCULINE, "sie": FEMININE, "es": NEUTER}
    german = {noun.singular: noun.german for scene in grammar.SCENES for noun in scene.objects}
    german |= {noun.singular: noun.german for noun in grammar.ANIMALS}
    animals = {noun.singular for noun in grammar.ANIMALS}
    roles = set()
    for s in corpus:
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


def test_german_articles_and_adjectives_agree_with_their_nouns(corpus):
    seen = set()
    for s in corpus[:30_000]:
        words = s.target.split()
        words[0] = words[0].lower()
        for position, word in enumerate(words[:-2]):
            if word not in AGREEMENT:
                continue
            following, after = words[position + 1], words[position + 2]
            if following[0].isupper():
                assert any(following in nouns for nouns, _ in AGREEMENT[word]), s.target
            elif following.startswith(STEMS):
                assert any(
                    after in nouns and following in {stem + ending for stem in STEMS}
                    for nouns, ending in AGREEMENT[word]
                ), s.target
                seen.add((word, following))
            else:  # a relative pronoun: "die der Hund ...", checked below
                assert words[position - 1] == "," and following in AGREEMENT, s.target
    assert len(seen) > 15 * len(STEMS)


def test_every_phrase_of_every_noun_agrees():
    nouns = grammar.ANIMALS + sum((scene.objects for scene in grammar.SCENES), ())
    for noun, determiner, plural in product(
        nouns, (grammar.THE, grammar.THIS, grammar.A, grammar.NOT_A), (False, True)
    ):
        for case in ("nominative", "accusative"):
            if determiner is grammar.NOT_A and case == "nominative":
                continue  # only objects
            phrase = grammar.NounPhrase(noun, determiner, grammar.ATTRIBUTES[1], plural)
            article, adjective, word = grammar.german_noun_phrase(phrase, case).split()
            matches = [end for nouns, end in AGREEMENT[article] if word in nouns]
            assert adjective in {"groß" + end for end in matches}
            assert word in (PLURAL if plural else MASCULINE + FEMININE + NEUTER)


# A person's translations.
TRANSLATIONS = """
The goat lifted an old basket .
Die Ziege hob einen alten Korb hoch .

Yesterday this dog ate the carrots .
Gestern fraß dieser Hund die Karotten .

Some big dogs don't touch any small apples .
Einige große Hunde rühren keine kleinen Äpfel an .

Tomorrow the horse won't lift a chair .
Morgen wird das Pferd keinen Stuhl hochheben .

The child hopes that the cats have left the bog .
Das Kind hofft , dass die Katzen das Moor verlassen haben .

The king says that the fox won't lift the box .
Der König sagt , dass der Fuchs die Kiste nicht hochheben wird .

The woman knows that the bear didn't touch the egg .
Die Frau weiß , dass der Bär das Ei nicht anrührte .

While the man slept , the mouse ate the cake .
Während der Mann schlief , fraß die Maus den Kuchen .

The duck leaves the path before the girl sings .
Die Ente verlässt den Weg , bevor das Mädchen singt .

The old path that the wolf didn't find was very narrow .
Der alte Weg , den der Wolf nicht fand , war sehr schmal .

The camel that has crossed the bridge is so tired .
Das Kamel , das die Brücke überquert hat , ist so müde .

Although it was very clumsy , the bear lifted the vase .
Obwohl er sehr ungeschickt war , hob der Bär die Vase hoch .

Because it will be too sour , the dog won't eat the pear .
Weil sie zu sauer sein wird , wird der Hund die Birne nicht fressen .

Today the fox hasn't tried the roll , for it is too spicy .
Heute hat der Fuchs das Brötchen nicht probiert , denn es ist zu scharf .

The pig will carry the book , but it will be very lazy .
Das Schwein wird das Buch tragen , aber es wird sehr faul sein .

The turtles don't cross the streets because they are too wide .
Die Schildkröten überqueren die Straßen nicht , weil sie zu breit sind .
"""


def may_choose(option, words: set[str]) -> bool:
    """Whether a sentence of these words may come from this choice: its words are among them."""
    if isinstance(option, grammar.Event | grammar.Situation):
        return all(may_choose(part, words) for part in option)
    if isinstance(option, grammar.Noun):
        return bool({option.singular, option.plural} & words)
    if isinstance(option, grammar.Verb):
        return bool({option.base, option.third, option.past, option.participle} & words)
    if isinstance(option, grammar.Word | grammar.Link):
        return option.english in words
    return True


@pytest.mark.parametrize(
    "pair", [pair.splitlines() for pair in TRANSLATIONS.strip().split("\n\n")], ids=lambda p: p[0]
)
def test_the_only_translation_is_that_of_a_person(pair):
    source, target = pair
    words = set(source.lower().split())
    translations = []
    for pattern in grammar.PATTERNS:
        slots = [[o for o in slot if may_choose(o, words)] for slot in pattern.slots.values()]
        for choices in product(*slots):
            found = pattern.realise(**dict(zip(pattern.slots, choices, strict=True)))
            if found.source == source:
                translations.append(found.target)
    assert translations == [target]


def test_held_out_triples_are_few_and_hold_both_of_the_street():
    held_out = dict(triples())
    assert 0.05 < np.mean(list(held_out.values())) < 0.10
    assert held_out["animal", "street", "tired"] and held_out["animal", "street", "wide"]


@pytest.mark.parametrize("of_triple", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_every_word_and_every_pair_occurs_in_training(of_triple):
    parts = [(tuple(words[i] for i in of_triple), held_out) for words, held_out in triples()]
    assert {part for part, held_out in parts if not held_out} == {part for part, _ in parts}


def triple_in(example: dict[str, str]) -> tuple[str, str, str] | None:
    """The triple of a sentence with a predicate adjective, read from its words."""
    singular = {noun.plural: noun.singular for noun in grammar.ANIMALS}
    singular |= {noun.plural: noun.singular for scene in grammar.SCENES for noun in scene.objects}
    words = [singular.get(word, word) for word in example["source"].lower().split()]
    subjects = {noun.singular for noun in grammar.ANIMALS} & set(words)
    objects = {noun.singular for scene in grammar.SCENES for noun in scene.objects} & set(words)
    predicates = {w.english for scene in grammar.SCENES for w in scene.adjectives} | OF_ANIMALS
    adjectives = predicates & set(words)
    if not adjectives:
        return None
    (subject,), (object,), (adjective,) = subjects, objects, adjectives
    return subject, object, adjective


def test_held_out_triples_are_in_the_test_split_and_nowhere_else():
    held_out = dict(triples())
    splits = {name: list(grammar.examples(name, 1000)) for name in grammar.SPLITS}
    for name, examples in splits.items():
        assert len(examples) == len({e["source"] for e in examples}) == 1000
        found = [triple_in(example) for example in examples]
        if name == "test":
            assert all(triple is not None and held_out[triple] for triple in found)
            assert all(example["pronoun"] for example in examples)
        else:
            assert not any(triple is not None and held_out[triple] for triple in found)
            assert None in found
    train, validation = ({e["source"] for e in splits[n]} for n in ("train", "validation"))
    assert not train & validation


def test_entropy_counts_the_sentences_that_are_not_held_out(monkeypatch):
    # A grammar of the same patterns with a few options of each slot is small enough to enumerate.
    few = [
        {name: slot[: 60 if name == "situation" else 2] for name, slot in pattern.slots.items()}
        for pattern in grammar.PATTERNS
    ]
    small = [
        grammar.Pattern(p.realise, **slots) for p, slots in zip(grammar.PATTERNS, few, strict=True)
    ]
    monkeypatch.setattr(grammar, "PATTERNS", tuple(small))
    found = [grammar.realise(number) for number in range(sum(p.size for p in small))]
    free = {s.source for s in found if not s.held_out}
    assert 0 < len(free) < len(found)
    assert grammar.entropy() == pytest.approx(np.log(len(free)))


def test_entropy_of_the_whole_grammar_fits_a_sample(corpus):
    sources = {s.source for s in corpus if not s.held_out}
    assert len(sources) == sum(not s.held_out for s in corpus)  # so entropies of sentences add up
    share = len(sources) / len(corpus)
    error = 4 * (share * (1 - share) / len(corpus)) ** 0.5
    assert np.exp(grammar.entropy()) / grammar.SIZE == pytest.approx(share, abs=error)


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


def test_unknown_split_is_refused():
    with pytest.raises(ValueError, match="'dev'.*train, validation, test"):
        grammar.examples("dev", 1)


BUILD = """
import sys
from transformer_jax.data.grammar import EnglishGermanGrammar

EnglishGermanGrammar.COUNTS = {"train": 40, "validation": 10, "test": 5}
builder = EnglishGermanGrammar(data_dir=sys.argv[1], file_format="array_record")
builder.download_and_prepare()
source = builder.as_data_source()
assert len(source["train"]) == 40
assert not {"tensorflow", "jax"} & set(sys.modules), "the builder must need neither"
print(builder.data_dir)
"""


def test_tfds_builder_keeps_order_and_needs_no_tensorflow(tmp_path):
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    built = subprocess.run(command, check=True, capture_output=True, text=True)
    source: Any = tfds.builder_from_directory(built.stdout.splitlines()[-1]).as_data_source()
    for split, count in (("train", 40), ("validation", 10), ("test", 5)):
        read = [{k: v.decode() for k, v in example.items()} for example in source[split]]
        assert read == list(grammar.examples(split, count))
