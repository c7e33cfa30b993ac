"""English phrases and clauses, with a Universal POS tag for every word."""

from functools import cache
from typing import NamedTuple

from transformer_jax.data.corpora.grammar.lexicon import (
    Adjective,
    Clause,
    NounPhrase,
    Tense,
    Verb,
    Word,
)


class Tagged(NamedTuple):
    """Words and their tags, each separated by blanks."""

    words: str
    tags: str


COMMA = Tagged(",", "PUNCT")
THAT_CONJUNCTION = Tagged("that", "SCONJ")
THAT_RELATIVE = Tagged("that", "PRON")


def join(*parts: Tagged | None) -> Tagged:
    words, tags = zip(*filter(None, parts), strict=True)
    return Tagged(" ".join(words), " ".join(tags))


@cache
def noun_phrase(phrase: NounPhrase) -> Tagged:
    noun, determiner, attribute, plural = phrase
    article = determiner.english[plural]
    words = [attribute.english] if attribute else []
    words.append(noun.plural if plural else noun.singular)
    if article == "a" and words[0][0] in "aeiou":
        article = "an"
    return Tagged(" ".join([article, *words]), "DET ADJ NOUN" if attribute else "DET NOUN")


@cache
def verb_group(verb: Verb, tense: Tense, negated: bool, plural: bool) -> Tagged:
    """The third person, with its auxiliary; "didn't" is one word."""
    auxiliary = {
        "past": "did",
        "present": "do" if plural else "does",
        "perfect": "have" if plural else "has",
        "future": "will",
    }[tense]
    main = verb.participle if tense == "perfect" else verb.base
    if negated:
        auxiliary = "won't" if auxiliary == "will" else auxiliary + "n't"
    elif tense == "past":
        return Tagged(verb.past, "VERB")
    elif tense == "present":
        return Tagged(verb.base if plural else verb.third, "VERB")
    return Tagged(f"{auxiliary} {main}", "AUX VERB")


@cache
def copula(tense: Tense, plural: bool) -> Tagged:
    if tense == "future":
        return Tagged("will be", "AUX AUX")
    if tense == "past":
        return Tagged("were" if plural else "was", "AUX")
    return Tagged("are" if plural else "is", "AUX")


@cache
def predicate(tense: Tense, plural: bool, degree: Word, adjective: Adjective) -> Tagged:
    complement = Tagged(f"{degree.english} {adjective.english}", "ADV ADJ")
    return join(copula(tense, plural), complement)


def clause(parts: Clause) -> Tagged:
    subject, verb, object, tense, negated = parts
    return join(
        noun_phrase(subject),
        verb_group(verb, tense, negated, subject.plural),
        noun_phrase(object) if object else None,
    )
