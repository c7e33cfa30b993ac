"""German that a learner may trust: articles and adjectives agree with their nouns."""

from itertools import product

from tests.data.corpora.grammar.dictionary import FEMININE, MASCULINE, NEUTER, PLURAL
from transformer_jax.data.corpora.grammar import german, lexicon

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


def test_every_phrase_of_every_noun_agrees():
    nouns = lexicon.ANIMALS + sum((scene.objects for scene in lexicon.SCENES), ())
    for noun, determiner, plural in product(
        nouns, (lexicon.THE, lexicon.THIS, lexicon.A, lexicon.NOT_A), (False, True)
    ):
        for case in ("nominative", "accusative"):
            if determiner is lexicon.NOT_A and case == "nominative":
                continue  # only objects
            phrase = lexicon.NounPhrase(noun, determiner, lexicon.ATTRIBUTES[1], plural)
            article, adjective, word = german.noun_phrase(phrase, case).split()
            matches = [end for nouns, end in AGREEMENT[article] if word in nouns]
            assert adjective in {"groß" + end for end in matches}
            assert word in (PLURAL if plural else MASCULINE + FEMININE + NEUTER)
