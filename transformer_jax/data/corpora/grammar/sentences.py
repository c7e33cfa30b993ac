"""The patterns of the grammar: functions from choices to a sentence, and the choices of each.

The choices `c` of a sentence are one option for each slot of its pattern, by the slot's name.
"""

import zlib
from collections.abc import Callable, Sequence
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

from transformer_jax.data.corpora.grammar import english, german, lexicon
from transformer_jax.data.corpora.grammar.english import (
    COMMA,
    THAT_CONJUNCTION,
    THAT_RELATIVE,
    Tagged,
    join,
)
from transformer_jax.data.corpora.grammar.lexicon import (
    ADVERBS,
    NOT_A,
    PRONOUNS,
    RELATIVE_PRONOUNS,
    THE,
    A,
    Adjective,
    Clause,
    Determiner,
    Link,
    Noun,
    NounPhrase,
    Verb,
)


class Event(NamedTuple):
    subject: Noun
    verb: Verb
    object: Noun


STREET_TRIPLES = {("animal", "street", "tired"), ("animal", "street", "wide")}


class Situation(NamedTuple):
    """An event, and an adjective that fits exactly one of its two nouns."""

    event: Event
    adjective: Adjective

    @property
    def antecedent(self) -> Noun:
        return getattr(self.event, self.adjective.describes)

    @property
    def triple(self) -> tuple[str, str, str]:
        return self.event.subject.singular, self.event.object.singular, self.adjective.english

    @property
    def held_out(self) -> bool:
        """Whether sentences with these three words are kept for the test split: one in fourteen."""
        triple = self.triple
        return triple in STREET_TRIPLES or zlib.crc32(" ".join(triple).encode()) % 14 == 0


EVENTS = tuple(
    Event(subject, verb, object)
    for scene in lexicon.SCENES
    for subject in lexicon.ANIMALS
    for verb in scene.verbs
    for object in scene.objects
)
SITUATIONS = tuple(
    Situation(event, adjective)
    for event in EVENTS
    for scene in lexicon.SCENES
    if event.verb in scene.verbs
    for adjective in lexicon.FEELINGS + scene.adjectives
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


def happening(
    c: SimpleNamespace,
    event: Event,
    negated: bool = False,
    plurals: tuple[bool, bool] = (False, False),
    determiners: tuple[Determiner, Determiner] = (THE, THE),
) -> Clause:
    """An event as a clause; `c` has its tense and the attributes of its nouns."""
    return Clause(
        NounPhrase(event.subject, determiners[0], c.subject_attribute, plurals[0]),
        event.verb,
        NounPhrase(event.object, determiners[1], c.object_attribute, plurals[1]),
        c.tense,
        negated,
    )


def main_clause(clause: Clause, adverb: bool = False) -> tuple[Tagged, str]:
    """A main clause in both languages, with the adverb of its tense in front or without."""
    words = english.clause(clause)
    if not adverb:
        return words, german.clause(clause, "verb_second")
    first = ADVERBS[clause.tense]
    in_german = f"{first.german} {german.clause(clause, 'verb_first')}"
    return join(Tagged(first.english, "NOUN"), words), in_german  # as in Universal Dependencies


def linked(
    link: Link, main: Clause, side: Tagged, in_german: str, first: bool, adverb: bool = False
) -> tuple[Tagged, str]:
    """A main clause and a side clause, given in both languages, which may stand first."""
    side, in_german = join(Tagged(link.english, link.tag), side), f"{link.german} {in_german}"
    if first:
        german_main = german.clause(main, "verb_first")
        return join(side, COMMA, english.clause(main)), f"{in_german} , {german_main}"
    words, german_main = main_clause(main, adverb)
    comma = COMMA if link.tag == "CCONJ" else None
    return join(words, comma, side), f"{german_main} , {in_german}"


def explanation(c: SimpleNamespace) -> Sentence:
    """As in "The animal didn't cross the street because it was too tired ."

    `c.place` says where the clause of "it" stands: last, first, or last with an adverb in front.
    """
    event, adjective = c.situation
    antecedent, plural = c.situation.antecedent, c.plural
    main = happening(c, event, c.link.negated, (plural, plural))
    predicate = english.predicate(c.tense, plural, c.degree, adjective)
    reason = join(Tagged("they" if plural else "it", "PRON"), predicate)
    order = "verb_second" if c.link.tag == "CCONJ" else "verb_final"
    pronoun = PRONOUNS["plural" if plural else antecedent.gender]
    german_reason = german.predication(order, pronoun, c.tense, plural, c.degree, adjective)
    first, adverb = c.place == "first", c.place == "after_adverb"
    source, target = linked(c.link, main, reason, german_reason, first, adverb)
    if plural:
        return complete(source, target)
    return complete(
        source,
        target,
        pronoun=pronoun,
        antecedent=antecedent.singular,
        antecedent_role=adjective.describes,
    )


def relative_clause(c: SimpleNamespace) -> Sentence:
    """As in "The animal that crossed the street was ..." and "The street that the animal ..." """
    event, adjective = c.situation
    agent = NounPhrase(event.subject, THE, c.subject_attribute)
    patient = NounPhrase(event.object, THE, c.object_attribute)
    english_agent, english_patient = english.noun_phrase(agent), english.noun_phrase(patient)
    action = english.verb_group(event.verb, c.tense, c.negated, False)

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
    german_action = german.verb_group(event.verb, c.tense, False, "verb_final")
    clause = german.arrange("verb_final", relative, complement, c.negated, german_action)
    german_head = f"{german.noun_phrase(head, 'nominative')} , {clause} ,"
    return complete(
        join(subject_part, english.predicate(c.tense, False, c.degree, adjective)),
        german.predication("verb_second", german_head, c.tense, False, c.degree, adjective),
    )


def opinion(c: SimpleNamespace) -> Sentence:
    """As in "The woman knows that the animals crossed the street ." """
    source, target = main_clause(Clause(NounPhrase(c.person), c.verb, None, "present"))
    content = happening(c, c.event, c.negated, (c.plural, False))
    return complete(
        join(source, THAT_CONJUNCTION, english.clause(content)),
        f"{target} , dass {german.clause(content, 'verb_final')}",
    )


def statement(c: SimpleNamespace) -> Sentence:
    """As in "Yesterday these animals didn't cross any old streets ." """
    determiner = NOT_A if c.negated and c.object_determiner is A else c.object_determiner
    determiners = c.subject_determiner, determiner
    clause = happening(c, c.event, c.negated, (c.subject_plural, c.object_plural), determiners)
    return complete(*main_clause(clause, c.adverb))


def circumstance(c: SimpleNamespace) -> Sentence:
    """As in "While the woman slept , the animal crossed the street ." """
    side = Clause(NounPhrase(c.person), c.verb, None, c.tense)
    words, in_german = english.clause(side), german.clause(side, "verb_final")
    return complete(*linked(c.link, happening(c, c.event), words, in_german, c.first))


BOTH = (False, True)

# What a slot chooses from, where its pattern does not say so itself.
OPTIONS: dict[str, Sequence[Any]] = {
    "situation": SITUATIONS,
    "event": EVENTS,
    "person": lexicon.PEOPLE,
    "tense": lexicon.TENSES,
    "degree": lexicon.DEGREES,
    "subject_determiner": (THE, lexicon.THIS, A),
    "object_determiner": (THE, lexicon.THIS, A),
    "subject_attribute": lexicon.ATTRIBUTES,
    "object_attribute": lexicon.ATTRIBUTES,
    **dict.fromkeys("subject_plural object_plural plural negated adverb first".split(), BOTH),
}


class Pattern:
    """A function from choices to a sentence, with what each of its slots chooses from.

    slots: name -> options. size: the number of sentences.
    """

    def __init__(self, realise: Callable[[Any], Sentence], slots: str, **options: Sequence[Any]):
        self.realise = realise
        self.slots = {name: (OPTIONS | options)[name] for name in slots.split()}
        self.size = prod(map(len, self.slots.values()))
        self._situations: Sequence[Situation] = self.slots.get("situation", ())

    def is_held_out(self, number: int) -> bool:
        """Whether the triple of a sentence is kept for the test split."""
        # The situation is the first digit: all sentences of a situation follow each other.
        count = len(self._situations)
        return bool(count) and self._situations[number * count // self.size].held_out

    @property
    def held_out(self) -> int:
        """The number of sentences that are kept for the test split."""
        held_out = sum(situation.held_out for situation in self._situations)
        return held_out * (self.size // max(1, len(self._situations)))

    def __call__(self, number: int) -> Sentence:
        """The sentence whose choices are the mixed-radix digits of number, the last slot first."""
        choices = {}
        for name, options in reversed(self.slots.items()):
            number, digit = divmod(number, len(options))
            choices[name] = options[digit]
        return self.realise(SimpleNamespace(**choices))


ATTRIBUTES = "subject_attribute object_attribute"
EXPLANATION = f"situation link place tense degree plural {ATTRIBUTES}"
SUBORDINATING = (lexicon.BECAUSE, lexicon.ALTHOUGH)
# "it" is in every second sentence; the sizes of the patterns are their shares.
PATTERNS = (
    Pattern(
        explanation,
        EXPLANATION,
        link=(*SUBORDINATING, lexicon.FOR, lexicon.BUT),
        place=("last", "after_adverb"),
        plural=(False,),
    ),
    Pattern(explanation, EXPLANATION, link=SUBORDINATING, place=("first",), plural=(False,)),
    Pattern(explanation, EXPLANATION, link=SUBORDINATING, place=("last",), plural=(True,)),
    Pattern(relative_clause, f"situation tense negated degree {ATTRIBUTES}"),
    Pattern(opinion, f"person verb event tense negated plural {ATTRIBUTES}", verb=lexicon.OPINIONS),
    Pattern(
        statement,
        "event tense negated adverb subject_determiner object_determiner subject_plural "
        f"object_plural {ATTRIBUTES}",
    ),
    Pattern(
        circumstance,
        f"event link person verb tense first {ATTRIBUTES}",
        link=(lexicon.WHILE, lexicon.BEFORE),
        verb=lexicon.PASTIMES,
        tense=("past", "present"),
    ),
)
