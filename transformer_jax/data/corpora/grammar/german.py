"""German phrases and clauses: case, gender, and where the verb stands."""

from functools import cache
from typing import Literal

from transformer_jax.data.corpora.grammar.lexicon import (
    NOT_A,
    Adjective,
    Case,
    Clause,
    NounPhrase,
    Tense,
    Verb,
    Word,
)

Order = Literal["verb_second", "verb_first", "verb_final"]


@cache
def noun_phrase(phrase: NounPhrase, case: Case) -> str:
    noun, determiner, attribute, plural = phrase
    words = [determiner.german[case][phrase.form]]
    if attribute:
        words.append(attribute.german + determiner.endings[case][phrase.form])
    words.append(noun.german_plural if plural else noun.german)
    return " ".join(words)


@cache
def verb_group(verb: Verb, tense: Tense, plural: bool, order: Order) -> tuple[str, str]:
    """The finite verb, and what stands at the end of a main clause (or "")."""
    if tense == "perfect":
        return ("haben" if plural else "hat"), verb.german_participle
    if tense == "future":
        return ("werden" if plural else "wird"), verb.prefix + verb.infinitive
    if tense == "present":
        finite = verb.infinitive if plural else verb.german_present
    else:
        finite = verb.german_past
        if plural:
            finite += "n" if finite.endswith("e") else "en"
    return (verb.prefix + finite, "") if order == "verb_final" else (finite, verb.prefix)


@cache
def copula(tense: Tense, plural: bool) -> tuple[str, str]:
    """The finite verb, and what stands at the end of a main clause (or "")."""
    if tense == "future":
        return ("werden" if plural else "wird"), "sein"
    if tense == "past":
        return ("waren" if plural else "war"), ""
    return ("sind" if plural else "ist"), ""


def arrange(
    order: Order, subject: str, complement: str, negated: bool, verb: tuple[str, str]
) -> str:
    """A clause from its parts, with the finite verb where the order wants it."""
    finite, end = verb
    negation = "nicht" if negated else ""
    if order == "verb_second":
        parts = (subject, finite, complement, negation, end)
    elif order == "verb_first":
        parts = (finite, subject, complement, negation, end)
    else:
        parts = (subject, complement, negation, end, finite)
    return " ".join([part for part in parts if part])


def clause(parts: Clause, order: Order) -> str:
    subject, verb, object, tense, negated = parts
    return arrange(
        order,
        noun_phrase(subject, "nominative"),
        noun_phrase(object, "accusative") if object else "",
        negated and not (object and object.determiner is NOT_A),
        verb_group(verb, tense, subject.plural, order),
    )


def predication(
    order: Order, subject: str, tense: Tense, plural: bool, degree: Word, adjective: Adjective
) -> str:
    complement = f"{degree.german} {adjective.german}"
    return arrange(order, subject, complement, False, copula(tense, plural))
