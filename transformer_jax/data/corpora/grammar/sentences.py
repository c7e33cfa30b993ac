"""The patterns of the grammar: functions from choices to a sentence, and the choices of each."""

import inspect
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Literal, NamedTuple

from transformer_jax.data.corpora.grammar import english, german
from transformer_jax.data.corpora.grammar.english import (
    COMMA,
    THAT_CONJUNCTION,
    THAT_RELATIVE,
    Tagged,
    join,
)
from transformer_jax.data.corpora.grammar.lexicon import (
    ADVERBS,
    ALTHOUGH,
    ANIMALS,
    ATTRIBUTES,
    BECAUSE,
    BEFORE,
    BUT,
    DEGREES,
    FEELINGS,
    FOR,
    NOT_A,
    OPINIONS,
    PASTIMES,
    PEOPLE,
    PRONOUNS,
    RELATIVE_PRONOUNS,
    SCENES,
    TENSES,
    THE,
    THIS,
    WHILE,
    A,
    Adjective,
    Clause,
    Determiner,
    Link,
    Noun,
    NounPhrase,
    Tense,
    Verb,
    Word,
)


class Event(NamedTuple):
    subject: Noun
    verb: Verb
    object: Noun


class Situation(NamedTuple):
    """An event, and an adjective that fits exactly one of its two nouns."""

    event: Event
    adjective: Adjective

    @property
    def antecedent(self) -> Noun:
        return getattr(self.event, self.adjective.describes)

    @property
    def held_out(self) -> bool:
        return is_held_out(self.event.subject, self.event.object, self.adjective)


STREET_TRIPLES = {("animal", "street", "tired"), ("animal", "street", "wide")}


@cache
def is_held_out(subject: Noun, object: Noun, adjective: Adjective) -> bool:
    """Whether sentences with these three words are kept for the test split: one in fourteen."""
    triple = (subject.singular, object.singular, adjective.english)
    return triple in STREET_TRIPLES or zlib.crc32(" ".join(triple).encode()) % 14 == 0


EVENTS = tuple(
    Event(subject, verb, object)
    for scene in SCENES
    for subject in ANIMALS
    for verb in scene.verbs
    for object in scene.objects
)
SITUATIONS = tuple(
    Situation(event, adjective)
    for event in EVENTS
    for scene in SCENES
    if event.verb in scene.verbs
    for adjective in FEELINGS + scene.adjectives
)


class Sentence(NamedTuple):
    """An example of the corpus."""

    source: str
    target: str
    tags: str
    pronoun: str = ""
    antecedent: str = ""
    antecedent_role: str = ""


def complete(source: Tagged, target: str, **labels: str) -> Sentence:
    """A sentence with its capital and its full stop."""
    return Sentence(
        f"{source.words[0].upper()}{source.words[1:]} .",
        f"{target[0].upper()}{target[1:]} .",
        f"{source.tags} PUNCT",
        **labels,
    )


def explanation(
    situation: Situation,
    link: Link,
    place: Literal["last", "first", "after_adverb"],
    tense: Tense,
    degree: Word,
    plural: bool,
    subject_attribute: Word | None,
    object_attribute: Word | None,
) -> Sentence:
    """As in "The animal didn't cross the street because it was too tired ."

    `place` says where the clause of "it" stands: last, first, or last with an adverb in front.
    """
    (subject, verb, object), adjective = situation
    antecedent = situation.antecedent
    main = Clause(
        NounPhrase(subject, THE, subject_attribute, plural),
        verb,
        NounPhrase(object, THE, object_attribute, plural),
        tense,
        link.negated,
    )
    conjunction = english.conjunction(link)
    predicate = english.predicate(tense, plural, degree, adjective)
    reason = join(english.pronoun(plural), predicate)
    coordinates = link.tag == "CCONJ"
    order = "verb_second" if coordinates else "verb_final"
    pronoun = PRONOUNS["plural" if plural else antecedent.gender]
    german_reason = german.predication(order, pronoun, tense, plural, degree, adjective)

    if place == "first":
        source = join(conjunction, reason, COMMA, english.clause(main))
        target = f"{link.german} {german_reason} , {german.clause(main, 'verb_first')}"
    else:
        adverb = english.adverb(tense) if place == "after_adverb" else None
        comma = COMMA if coordinates else None
        source = join(adverb, english.clause(main), comma, conjunction, reason)
        german_main = german.clause(main, "verb_first" if adverb else "verb_second")
        target = f"{german_main} , {link.german} {german_reason}"
        if adverb:
            target = f"{ADVERBS[tense].german} {target}"
    if plural:
        return complete(source, target)
    return complete(
        source,
        target,
        pronoun=pronoun,
        antecedent=antecedent.singular,
        antecedent_role=adjective.describes,
    )


def relative_clause(
    situation: Situation,
    tense: Tense,
    negated: bool,
    degree: Word,
    subject_attribute: Word | None,
    object_attribute: Word | None,
) -> Sentence:
    """As in "The animal that crossed the street was ..." and "The street that the animal ..." """
    (subject, verb, object), adjective = situation
    agent = NounPhrase(subject, THE, subject_attribute)
    patient = NounPhrase(object, THE, object_attribute)
    english_agent, english_patient = english.noun_phrase(agent), english.noun_phrase(patient)
    action = english.verb_group(verb, tense, negated, False)

    if adjective.describes == "subject":
        head = agent
        subject_part = join(english_agent, THAT_RELATIVE, action, english_patient)
        relative = RELATIVE_PRONOUNS["nominative"][head.form]
        complement = german.noun_phrase(patient, "accusative")
    else:
        head = patient
        subject_part = join(english_patient, THAT_RELATIVE, english_agent, action)
        pronoun = RELATIVE_PRONOUNS["accusative"][head.form]
        relative = f"{pronoun} {german.noun_phrase(agent, 'nominative')}"
        complement = ""
    german_action = german.verb_group(verb, tense, False, "verb_final")
    clause = german.arrange("verb_final", relative, complement, negated, german_action)
    german_head = f"{german.noun_phrase(head, 'nominative')} , {clause} ,"
    return complete(
        join(subject_part, english.predicate(tense, False, degree, adjective)),
        german.predication("verb_second", german_head, tense, False, degree, adjective),
    )


def opinion(
    person: Noun,
    verb: Verb,
    event: Event,
    tense: Tense,
    negated: bool,
    plural: bool,
    subject_attribute: Word | None,
    object_attribute: Word | None,
) -> Sentence:
    """As in "The woman knows that the animals crossed the street ." """
    main = Clause(NounPhrase(person), verb, None, "present")
    content = Clause(
        NounPhrase(event.subject, THE, subject_attribute, plural),
        event.verb,
        NounPhrase(event.object, THE, object_attribute),
        tense,
        negated,
    )
    return complete(
        join(english.clause(main), THAT_CONJUNCTION, english.clause(content)),
        f"{german.clause(main, 'verb_second')} , dass {german.clause(content, 'verb_final')}",
    )


def statement(
    event: Event,
    tense: Tense,
    negated: bool,
    adverb: bool,
    subject_determiner: Determiner,
    object_determiner: Determiner,
    subject_plural: bool,
    object_plural: bool,
    subject_attribute: Word | None,
    object_attribute: Word | None,
) -> Sentence:
    """As in "Yesterday these animals didn't cross any old streets ." """
    if negated and object_determiner is A:
        object_determiner = NOT_A
    clause = Clause(
        NounPhrase(event.subject, subject_determiner, subject_attribute, subject_plural),
        event.verb,
        NounPhrase(event.object, object_determiner, object_attribute, object_plural),
        tense,
        negated,
    )
    if not adverb:
        return complete(english.clause(clause), german.clause(clause, "verb_second"))
    return complete(
        join(english.adverb(tense), english.clause(clause)),
        f"{ADVERBS[tense].german} {german.clause(clause, 'verb_first')}",
    )


def circumstance(
    event: Event,
    link: Link,
    person: Noun,
    verb: Verb,
    tense: Tense,
    first: bool,
    subject_attribute: Word | None,
    object_attribute: Word | None,
) -> Sentence:
    """As in "While the woman slept , the animal crossed the street ." """
    main = Clause(
        NounPhrase(event.subject, THE, subject_attribute),
        event.verb,
        NounPhrase(event.object, THE, object_attribute),
        tense,
    )
    side = Clause(NounPhrase(person), verb, None, tense)
    english_side = join(english.conjunction(link), english.clause(side))
    german_side = f"{link.german} {german.clause(side, 'verb_final')}"
    if first:
        return complete(
            join(english_side, COMMA, english.clause(main)),
            f"{german_side} , {german.clause(main, 'verb_first')}",
        )
    return complete(
        join(english.clause(main), english_side),
        f"{german.clause(main, 'verb_second')} , {german_side}",
    )


BOTH = (False, True)

# What the arguments of a pattern choose from, where it does not say so itself.
OPTIONS: dict[str, Sequence[Any]] = {
    "situation": SITUATIONS,
    "event": EVENTS,
    "person": PEOPLE,
    "tense": TENSES,
    "degree": DEGREES,
    "subject_determiner": (THE, THIS, A),
    "object_determiner": (THE, THIS, A),
    "subject_attribute": ATTRIBUTES,
    "object_attribute": ATTRIBUTES,
    "subject_plural": BOTH,
    "object_plural": BOTH,
    "plural": BOTH,
    "negated": BOTH,
    "adverb": BOTH,
    "first": BOTH,
}


class Pattern:
    """A function from choices to a sentence, with what each of its arguments chooses from.

    slots: argument -> options, in the order of the function's arguments. size: the number of
    sentences. held_out: how many of them are kept for the test split.
    """

    def __init__(self, realise: Callable[..., Sentence], **options: Sequence[Any]):
        self.realise = realise
        arguments = inspect.signature(realise).parameters
        self.slots = {name: (OPTIONS | options)[name] for name in arguments}
        self.size = prod(map(len, self.slots.values()))
        situations = self.slots.get("situation", ())
        # The situation is the first digit: all sentences of a situation follow each other.
        self._held_out = [situation.held_out for situation in situations] or [False]
        self._stretch = self.size // len(self._held_out)
        self.held_out = sum(self._held_out) * self._stretch

    def is_held_out(self, number: int) -> bool:
        """Whether the triple of a sentence is kept for the test split."""
        return self._held_out[number // self._stretch]

    def __call__(self, number: int) -> Sentence:
        """The sentence whose choices are the mixed-radix digits of number, the last slot first."""
        choices = {}
        for name, options in reversed(self.slots.items()):
            number, digit = divmod(number, len(options))
            choices[name] = options[digit]
        return self.realise(**choices)


# "it" is in every second sentence; the sizes of the patterns are their shares.
PATTERNS = (
    Pattern(
        explanation,
        link=(BECAUSE, ALTHOUGH, FOR, BUT),
        place=("last", "after_adverb"),
        plural=(False,),
    ),
    Pattern(explanation, link=(BECAUSE, ALTHOUGH), place=("first",), plural=(False,)),
    Pattern(explanation, link=(BECAUSE, ALTHOUGH), place=("last",), plural=(True,)),
    Pattern(relative_clause),
    Pattern(opinion, verb=OPINIONS),
    Pattern(statement),
    Pattern(circumstance, link=(WHILE, BEFORE), verb=PASTIMES, tense=("past", "present")),
)
