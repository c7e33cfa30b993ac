"""The embedded corpus: a generated English-German grammar in which "it" must be resolved.

"The animal didn't cross the street because it was too tired ." is "... weil es zu müde war .",
and "... because it was too wide ." is "... weil sie zu breit war .": the adjective decides which
noun "it" refers to, and the German gender of that noun decides the pronoun. Words and punctuation
are separated by single blanks. An English sentence has exactly one translation.

A sentence is a number below `SIZE` (about 350 million): the number selects a pattern, and its
mixed-radix digits fill the pattern's slots. A seeded permutation of the numbers makes the corpus.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from math import isqrt, log, prod
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

Case = Literal["nominative", "accusative"]
Form = Literal["masculine", "feminine", "neuter", "plural"]
Order = Literal["verb_second", "verb_first", "verb_final"]
Role = Literal["subject", "object"]
Tense = Literal["past", "present", "perfect", "future"]

FORMS: tuple[Form, ...] = ("masculine", "feminine", "neuter", "plural")
TENSES: tuple[Tense, ...] = ("past", "present", "perfect", "future")


# Lexicon. eq=False: words are compared and hashed by identity, which keeps the caches fast.


@dataclass(frozen=True, eq=False)
class Noun:
    singular: str
    plural: str
    german: str
    german_plural: str
    gender: Form


@dataclass(frozen=True, eq=False)
class Verb:
    """Principal parts; a separable prefix is part of the participle only ("angerührt")."""

    base: str
    third: str
    past: str
    participle: str
    infinitive: str
    german_present: str
    german_past: str
    german_participle: str
    prefix: str = ""


@dataclass(frozen=True, eq=False)
class Word:
    """A word without inflection, or an attributive adjective's stem."""

    english: str
    german: str


@dataclass(frozen=True, eq=False)
class Adjective(Word):
    """`describes` says which noun of an event the predicate can be true of."""

    describes: Role


@dataclass(frozen=True, eq=False)
class Determiner:
    """English singular and plural; German forms and the adjective endings that they govern."""

    english: tuple[str, str]
    german: dict[Case, dict[Form, str]]
    endings: dict[Case, dict[Form, str]]


@dataclass(frozen=True, eq=False)
class Link:
    """A conjunction, its part of speech, and whether the main clause beside it is negated."""

    english: str
    german: str
    tag: Literal["SCONJ", "CCONJ"]
    negated: bool = False


@dataclass(frozen=True, eq=False)
class Scene:
    """Things that fit together: what an animal may do to them, and why it may not want to."""

    verbs: tuple[Verb, ...]
    objects: tuple[Noun, ...]
    adjectives: tuple[Adjective, ...]


def nouns(gender: Form, rows: str) -> tuple[Noun, ...]:
    return tuple(Noun(*row.split(), gender=gender) for row in rows.split(","))


def verbs(*rows: str) -> tuple[Verb, ...]:
    return tuple(Verb(*row.split()) for row in rows)


def words(rows: str) -> tuple[Word, ...]:
    return tuple(Word(*row.split()) for row in rows.split(","))


def adjectives(describes: Role, rows: str) -> tuple[Adjective, ...]:
    return tuple(Adjective(*row.split(), describes=describes) for row in rows.split(","))


def paradigm(nominative: str, accusative: str) -> dict[Case, dict[Form, str]]:
    return {
        "nominative": dict(zip(FORMS, nominative.split(), strict=True)),
        "accusative": dict(zip(FORMS, accusative.split(), strict=True)),
    }


ANIMALS = (
    nouns("masculine", "dog dogs Hund Hunde, fox foxes Fuchs Füchse")
    + nouns("masculine", "bear bears Bär Bären, wolf wolves Wolf Wölfe")
    + nouns("masculine", "donkey donkeys Esel Esel, hedgehog hedgehogs Igel Igel")
    + nouns("feminine", "cat cats Katze Katzen, cow cows Kuh Kühe")
    + nouns("feminine", "goat goats Ziege Ziegen, mouse mice Maus Mäuse")
    + nouns("feminine", "duck ducks Ente Enten, turtle turtles Schildkröte Schildkröten")
    + nouns("neuter", "animal animals Tier Tiere, horse horses Pferd Pferde")
    + nouns("neuter", "pig pigs Schwein Schweine, rabbit rabbits Kaninchen Kaninchen")
    + nouns("neuter", "camel camels Kamel Kamele, squirrel squirrels Eichhörnchen Eichhörnchen")
)
PEOPLE = (
    nouns("masculine", "man men Mann Männer, king kings König Könige")
    + nouns("feminine", "woman women Frau Frauen, queen queens Königin Königinnen")
    + nouns("neuter", "girl girls Mädchen Mädchen, child children Kind Kinder")
)
WAYS = Scene(
    verbs(
        "cross crosses crossed crossed überqueren überquert überquerte überquert",
        "leave leaves left left verlassen verlässt verließ verlassen",
        "find finds found found finden findet fand gefunden",
    ),
    nouns("masculine", "path paths Weg Wege, trail trails Pfad Pfade")
    + nouns("masculine", "square squares Platz Plätze, courtyard courtyards Hof Höfe")
    + nouns("feminine", "street streets Straße Straßen, bridge bridges Brücke Brücken")
    + nouns("feminine", "alley alleys Gasse Gassen, meadow meadows Wiese Wiesen")
    + nouns("neuter", "field fields Feld Felder, valley valleys Tal Täler")
    + nouns("neuter", "roof roofs Dach Dächer, bog bogs Moor Moore"),
    adjectives("object", "wide breit, narrow schmal, long lang, slippery rutschig, uneven uneben"),
)
BELONGINGS = Scene(
    verbs(
        "carry carries carried carried tragen trägt trug getragen",
        "lift lifts lifted lifted heben hebt hob hochgehoben hoch",
        "move moves moved moved bewegen bewegt bewegte bewegt",
    ),
    nouns("masculine", "mirror mirrors Spiegel Spiegel, basket baskets Korb Körbe")
    + nouns("masculine", "chair chairs Stuhl Stühle, plate plates Teller Teller")
    + nouns("feminine", "box boxes Kiste Kisten, bag bags Tasche Taschen")
    + nouns("feminine", "bottle bottles Flasche Flaschen, vase vases Vase Vasen")
    + nouns("neuter", "parcel parcels Paket Pakete, picture pictures Bild Bilder")
    + nouns("neuter", "glass glasses Glas Gläser, book books Buch Bücher"),
    adjectives(
        "object",
        "heavy schwer, bulky sperrig, fragile zerbrechlich, modern modern, worn abgenutzt",
    ),
)
FOOD = Scene(
    verbs(
        "eat eats ate eaten fressen frisst fraß gefressen",
        "touch touches touched touched rühren rührt rührte angerührt an",
        "try tries tried tried probieren probiert probierte probiert",
    ),
    nouns("masculine", "apple apples Apfel Äpfel, cake cakes Kuchen Kuchen")
    + nouns("masculine", "cookie cookies Keks Kekse, mushroom mushrooms Pilz Pilze")
    + nouns("feminine", "carrot carrots Karotte Karotten, pear pears Birne Birnen")
    + nouns("feminine", "sausage sausages Wurst Würste, onion onions Zwiebel Zwiebeln")
    + nouns("neuter", "egg eggs Ei Eier, roll rolls Brötchen Brötchen")
    + nouns("neuter", "steak steaks Steak Steaks, radish radishes Radieschen Radieschen"),
    adjectives("object", "sour sauer, bitter bitter, salty salzig, spicy scharf, mushy matschig"),
)
SCENES = (WAYS, BELONGINGS, FOOD)
FEELINGS = adjectives(
    "subject",
    "tired müde, sleepy schläfrig, lazy faul, sick krank, clumsy ungeschickt, shy schüchtern,"
    "nervous nervös, impatient ungeduldig, anxious ängstlich, stubborn stur",
)
# None: a noun without an attribute.
ATTRIBUTES = (None,) + words(
    "big groß, small klein, old alt, beautiful schön, strange seltsam, dirty schmutzig"
)
OPINIONS = verbs(
    "know knows knew known wissen weiß wusste gewusst",
    "believe believes believed believed glauben glaubt glaubte geglaubt",
    "say says said said sagen sagt sagte gesagt",
    "hope hopes hoped hoped hoffen hofft hoffte gehofft",
)
PASTIMES = verbs(
    "sleep sleeps slept slept schlafen schläft schlief geschlafen",
    "sing sings sang sung singen singt sang gesungen",
    "wait waits waited waited warten wartet wartete gewartet",
    "work works worked worked arbeiten arbeitet arbeitete gearbeitet",
)
TOO, VERY, SO = words("too zu, very sehr, so so")

THE = Determiner(
    ("the", "the"),
    paradigm("der die das die", "den die das die"),
    paradigm("e e e en", "en e e en"),
)
THIS = Determiner(
    ("this", "these"),
    paradigm("dieser diese dieses diese", "diesen diese dieses diese"),
    paradigm("e e e en", "en e e en"),
)
A = Determiner(
    ("a", "some"),
    paradigm("ein eine ein einige", "einen eine ein einige"),
    paradigm("er e es e", "en e es e"),
)
# The object "a ..." under negation: "didn't eat an apple" is "fraß keinen Apfel".
NOT_A = Determiner(
    ("a", "any"),
    paradigm("kein keine kein keine", "keinen keine kein keine"),
    paradigm("er e es en", "en e es en"),
)
PRONOUNS = dict(zip(FORMS, ("er", "sie", "es", "sie"), strict=True))
RELATIVE_PRONOUNS = paradigm("der die das die", "den die das die")

BECAUSE = Link("because", "weil", "SCONJ", negated=True)
ALTHOUGH = Link("although", "obwohl", "SCONJ")
FOR = Link("for", "denn", "CCONJ", negated=True)
BUT = Link("but", "aber", "CCONJ")
WHILE = Link("while", "während", "SCONJ")
BEFORE = Link("before", "bevor", "SCONJ")

ADVERBS: dict[Tense, Word] = {
    "past": Word("yesterday", "gestern"),
    "present": Word("today", "heute"),
    "perfect": Word("today", "heute"),
    "future": Word("tomorrow", "morgen"),
}


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


# Inflection. English carries a part-of-speech tag for every word; German does not.


class Tagged(NamedTuple):
    """English words and their Universal POS tags, each separated by blanks."""

    words: str
    tags: str


def join(*parts: Tagged | None) -> Tagged:
    present = [part for part in parts if part]
    return Tagged(
        " ".join([part.words for part in present]), " ".join([part.tags for part in present])
    )


class NounPhrase(NamedTuple):
    noun: Noun
    determiner: Determiner = THE
    attribute: Word | None = None
    plural: bool = False

    @property
    def form(self) -> Form:
        return "plural" if self.plural else self.noun.gender


@cache
def english_noun_phrase(phrase: NounPhrase) -> Tagged:
    noun, determiner, attribute, plural = phrase
    article = determiner.english[plural]
    words = [attribute.english] if attribute else []
    words.append(noun.plural if plural else noun.singular)
    if article == "a" and words[0][0] in "aeiou":
        article = "an"
    return Tagged(" ".join([article, *words]), "DET ADJ NOUN" if attribute else "DET NOUN")


@cache
def german_noun_phrase(phrase: NounPhrase, case: Case) -> str:
    noun, determiner, attribute, plural = phrase
    words = [determiner.german[case][phrase.form]]
    if attribute:
        words.append(attribute.german + determiner.endings[case][phrase.form])
    words.append(noun.german_plural if plural else noun.german)
    return " ".join(words)


@cache
def english_verb(verb: Verb, tense: Tense, negated: bool, plural: bool) -> Tagged:
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
def german_verb(verb: Verb, tense: Tense, plural: bool, order: Order) -> tuple[str, str]:
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
def english_copula(tense: Tense, plural: bool) -> Tagged:
    if tense == "future":
        return Tagged("will be", "AUX AUX")
    if tense == "past":
        return Tagged("were" if plural else "was", "AUX")
    return Tagged("are" if plural else "is", "AUX")


@cache
def german_copula(tense: Tense, plural: bool) -> tuple[str, str]:
    if tense == "future":
        return ("werden" if plural else "wird"), "sein"
    if tense == "past":
        return ("waren" if plural else "war"), ""
    return ("sind" if plural else "ist"), ""


# Clauses.


class Clause(NamedTuple):
    subject: NounPhrase
    verb: Verb
    object: NounPhrase | None
    tense: Tense
    negated: bool = False


def arrange(
    order: Order, subject: str, complement: str, negated: bool, verb: tuple[str, str]
) -> str:
    """A German clause from its parts, with the finite verb where the order wants it."""
    finite, end = verb
    negation = "nicht" if negated else ""
    if order == "verb_second":
        parts = (subject, finite, complement, negation, end)
    elif order == "verb_first":
        parts = (finite, subject, complement, negation, end)
    else:
        parts = (subject, complement, negation, end, finite)
    return " ".join([part for part in parts if part])


def english_clause(clause: Clause) -> Tagged:
    subject, verb, object, tense, negated = clause
    return join(
        english_noun_phrase(subject),
        english_verb(verb, tense, negated, subject.plural),
        english_noun_phrase(object) if object else None,
    )


def german_clause(clause: Clause, order: Order) -> str:
    subject, verb, object, tense, negated = clause
    return arrange(
        order,
        german_noun_phrase(subject, "nominative"),
        german_noun_phrase(object, "accusative") if object else "",
        negated and not (object and object.determiner is NOT_A),
        german_verb(verb, tense, subject.plural, order),
    )


@cache
def english_predicate(tense: Tense, plural: bool, degree: Word, adjective: Adjective) -> Tagged:
    complement = Tagged(f"{degree.english} {adjective.english}", "ADV ADJ")
    return join(english_copula(tense, plural), complement)


def german_predication(
    order: Order, subject: str, tense: Tense, plural: bool, degree: Word, adjective: Adjective
) -> str:
    complement = f"{degree.german} {adjective.german}"
    return arrange(order, subject, complement, False, german_copula(tense, plural))


# Patterns: choices -> sentence.


class Sentence(NamedTuple):
    """An example, and whether its subject, object and adjective are kept for the test split."""

    source: str
    target: str
    tags: str
    pronoun: str = ""
    antecedent: str = ""
    antecedent_role: str = ""
    held_out: bool = False

    def example(self) -> dict[str, str]:
        fields = self._asdict()
        del fields["held_out"]
        return fields


COMMA = Tagged(",", "PUNCT")
THAT_CONJUNCTION = Tagged("that", "SCONJ")
THAT_RELATIVE = Tagged("that", "PRON")


def complete(english: Tagged, german: str, **labels: Any) -> Sentence:
    source = f"{english.words[0].upper()}{english.words[1:]} ."
    target = f"{german[0].upper()}{german[1:]} ."
    return Sentence(source, target, english.tags + " PUNCT", **labels)


def english_adverb(tense: Tense) -> Tagged:
    return Tagged(ADVERBS[tense].english, "NOUN")  # Universal Dependencies: "yesterday" is a noun


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
    pronoun = PRONOUNS["plural" if plural else antecedent.gender]
    conjunction = Tagged(link.english, link.tag)
    reason = join(
        Tagged("they" if plural else "it", "PRON"),
        english_predicate(tense, plural, degree, adjective),
    )
    coordinates = link.tag == "CCONJ"
    order: Order = "verb_second" if coordinates else "verb_final"
    german_reason = german_predication(order, pronoun, tense, plural, degree, adjective)

    if place == "first":
        english = join(conjunction, reason, COMMA, english_clause(main))
        german = f"{link.german} {german_reason} , {german_clause(main, 'verb_first')}"
    else:
        adverb = english_adverb(tense) if place == "after_adverb" else None
        comma = COMMA if coordinates else None
        english = join(adverb, english_clause(main), comma, conjunction, reason)
        german_main = german_clause(main, "verb_first" if adverb else "verb_second")
        german = f"{german_main} , {link.german} {german_reason}"
        if adverb:
            german = f"{ADVERBS[tense].german} {german}"
    if plural:
        return complete(english, german, held_out=situation.held_out)
    return complete(
        english,
        german,
        pronoun=pronoun,
        antecedent=antecedent.singular,
        antecedent_role=adjective.describes,
        held_out=situation.held_out,
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
    english_agent, english_patient = english_noun_phrase(agent), english_noun_phrase(patient)
    action = english_verb(verb, tense, negated, False)
    german_action = german_verb(verb, tense, False, "verb_final")

    if adjective.describes == "subject":
        head = agent
        english = join(english_agent, THAT_RELATIVE, action, english_patient)
        relative = RELATIVE_PRONOUNS["nominative"][head.form]
        complement = german_noun_phrase(patient, "accusative")
    else:
        head = patient
        english = join(english_patient, THAT_RELATIVE, english_agent, action)
        pronoun = RELATIVE_PRONOUNS["accusative"][head.form]
        relative = f"{pronoun} {german_noun_phrase(agent, 'nominative')}"
        complement = ""
    clause = arrange("verb_final", relative, complement, negated, german_action)
    german_head = f"{german_noun_phrase(head, 'nominative')} , {clause} ,"
    return complete(
        join(english, english_predicate(tense, False, degree, adjective)),
        german_predication("verb_second", german_head, tense, False, degree, adjective),
        held_out=situation.held_out,
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
        join(english_clause(main), THAT_CONJUNCTION, english_clause(content)),
        f"{german_clause(main, 'verb_second')} , dass {german_clause(content, 'verb_final')}",
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
        return complete(english_clause(clause), german_clause(clause, "verb_second"))
    return complete(
        join(english_adverb(tense), english_clause(clause)),
        f"{ADVERBS[tense].german} {german_clause(clause, 'verb_first')}",
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
    english_side = join(Tagged(link.english, link.tag), english_clause(side))
    german_side = f"{link.german} {german_clause(side, 'verb_final')}"
    if first:
        return complete(
            join(english_side, COMMA, english_clause(main)),
            f"{german_side} , {german_clause(main, 'verb_first')}",
        )
    return complete(
        join(english_clause(main), english_side),
        f"{german_clause(main, 'verb_second')} , {german_side}",
    )


class Pattern:
    """A function from choices to a sentence, and what there is to choose from for each argument."""

    def __init__(self, realise: Callable[..., Sentence], **slots: Sequence[Any]):
        self.realise = realise
        self.slots = slots
        self.size = prod(len(options) for options in slots.values())

    def __call__(self, number: int) -> Sentence:
        """The sentence whose choices are the mixed-radix digits of number, the last slot first."""
        choices = {}
        for name, options in reversed(self.slots.items()):
            number, digit = divmod(number, len(options))
            choices[name] = options[digit]
        return self.realise(**choices)


BOTH = (False, True)
ATTRIBUTE_SLOTS = {"subject_attribute": ATTRIBUTES, "object_attribute": ATTRIBUTES}

# "it" is in every second sentence; the sizes of the patterns are their shares.
PATTERNS = (
    Pattern(
        explanation,
        situation=SITUATIONS,
        link=(BECAUSE, ALTHOUGH, FOR, BUT),
        place=("last", "after_adverb"),
        tense=TENSES,
        degree=(TOO, VERY, SO),
        plural=(False,),
        **ATTRIBUTE_SLOTS,
    ),
    Pattern(
        explanation,
        situation=SITUATIONS,
        link=(BECAUSE, ALTHOUGH),
        place=("first",),
        tense=TENSES,
        degree=(TOO, VERY, SO),
        plural=(False,),
        **ATTRIBUTE_SLOTS,
    ),
    Pattern(
        explanation,
        situation=SITUATIONS,
        link=(BECAUSE, ALTHOUGH),
        place=("last",),
        tense=TENSES,
        degree=(TOO, VERY, SO),
        plural=(True,),
        **ATTRIBUTE_SLOTS,
    ),
    Pattern(
        relative_clause,
        situation=SITUATIONS,
        tense=TENSES,
        negated=BOTH,
        degree=(TOO, VERY, SO),
        **ATTRIBUTE_SLOTS,
    ),
    Pattern(
        opinion,
        person=PEOPLE,
        verb=OPINIONS,
        event=EVENTS,
        tense=TENSES,
        negated=BOTH,
        plural=BOTH,
        **ATTRIBUTE_SLOTS,
    ),
    Pattern(
        statement,
        event=EVENTS,
        tense=TENSES,
        negated=BOTH,
        adverb=BOTH,
        subject_determiner=(THE, THIS, A),
        object_determiner=(THE, THIS, A),
        subject_plural=BOTH,
        object_plural=BOTH,
        **ATTRIBUTE_SLOTS,
    ),
    Pattern(
        circumstance,
        event=EVENTS,
        link=(WHILE, BEFORE),
        person=PEOPLE,
        verb=PASTIMES,
        tense=("past", "present"),
        first=BOTH,
        **ATTRIBUTE_SLOTS,
    ),
)
SIZE = sum(pattern.size for pattern in PATTERNS)


# Numbering.

ROUNDS = 4
BLOCK = 4096


def permute(seed: int, indices: np.ndarray, size: int) -> np.ndarray:
    """A seeded bijection of [0, size): (n,) integers -> (n,) integers.

    A Feistel network whose halves are digits of radix a and b, with a * b just above size; what
    falls outside is sent through again (cycle walking; Black and Rogaway, 2002, methods 2 and 3).
    """
    a = isqrt(size)
    b = -(-size // a)
    keys = np.random.SeedSequence(seed).generate_state(2 * ROUNDS, np.uint64)
    numbers = np.array(indices, np.uint64)
    outside = np.arange(len(numbers))
    while len(outside):
        left, right = np.divmod(numbers[outside], np.uint64(b))
        for key in keys.reshape(ROUNDS, 2):
            left = (left + _mix(right + key[0]) % a) % a
            right = (right + _mix(left + key[1]) % b) % b
        numbers[outside] = left * np.uint64(b) + right
        outside = outside[numbers[outside] >= size]
    return numbers.astype(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014); products wrap around."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def realise(number: int) -> Sentence:
    """Sentence `number` of the grammar, 0 <= number < SIZE."""
    for pattern in PATTERNS:
        if number < pattern.size:
            return pattern(number)
        number -= pattern.size
    raise ValueError(f"the numbers of the grammar's sentences end at {SIZE - 1}")


def sentences(seed: int, indices: range) -> Iterator[Sentence]:
    """The sentences at these ascending indices of the seeded order, permuted in blocks."""
    if indices and not 0 <= indices[0] <= indices[-1] < SIZE:
        raise ValueError(f"{indices} is not within the {SIZE} indices of the grammar")
    for start in range(0, len(indices), BLOCK):
        block = np.asarray(indices[start : start + BLOCK])
        yield from map(realise, permute(seed, block, SIZE).tolist())


def sentence(seed: int, index: int) -> dict[str, str]:
    """Example `index` of the corpus: a pure function; different indices, different sentences.

    Keys: source (English), target (German), tags (one Universal POS tag for each English word),
    and where the sentence has an "it": pronoun (its German translation), antecedent (the English
    noun that it refers to) and antecedent_role ("subject" or "object"); else these are "".

    Raises:
      ValueError: if index is not in [0, SIZE).
    """
    return next(sentences(seed, range(index, index + 1))).example()


# Splits and builder.

# Parts of the seeded order: splits share no index, hence no sentence.
SPLITS = {
    "train": range(SIZE * 8 // 10),
    "validation": range(SIZE * 8 // 10, SIZE * 9 // 10),
    "test": range(SIZE * 9 // 10, SIZE),
}


def street_sentences() -> list[Sentence]:
    """The two sentences that introductions to attention use."""
    situations = {
        situation.adjective.english: situation
        for situation in SITUATIONS
        if situation.event.subject.singular == "animal"
        and situation.event.verb.base == "cross"
        and situation.event.object.singular == "street"
    }
    return [
        explanation(situations[name], BECAUSE, "last", "past", TOO, False, None, None)
        for name in ("tired", "wide")
    ]


def examples(split: str, count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """The first `count` examples of a split.

    Training and validation share their triples of subject, object and adjective. The test split
    has the other triples, in sentences with "it", and begins with the two street sentences.

    Raises:
      ValueError: if there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"the grammar has no split {split!r}; its splits are {', '.join(SPLITS)}")
    found = sentences(seed, SPLITS[split])
    if split == "test":
        first = street_sentences()
        rest = (s for s in found if s.held_out and s.pronoun and s not in first)
        found = chain(first, rest)
    else:
        found = (s for s in found if not s.held_out)
    return (s.example() for s in islice(found, count))


def entropy() -> float:
    """Nats of a sentence of the train or the validation split, about 20.

    It is ln of how many sentences are not held out, since all are equally likely and differ in
    English: no language model of `source` can have a lower expected loss on unseen sentences.
    """
    total = 0
    for pattern in PATTERNS:
        situations = pattern.slots.get("situation", ())
        held_out = sum(situation.held_out for situation in situations)
        total += pattern.size - held_out * (pattern.size // max(len(situations), 1))
    return log(total)


class EnglishGermanGrammar(tfds.core.GeneratorBasedBuilder):
    """The corpus as a TFDS data set, in the order of the permutation."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}
    COUNTS = {"train": 100_000, "validation": 1_000, "test": 2_000}

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "source": tfds.features.Text(),
                    "target": tfds.features.Text(),
                    "tags": tfds.features.Text(),
                    "pronoun": tfds.features.Text(),
                    "antecedent": tfds.features.Text(),
                    "antecedent_role": tfds.features.Text(),
                }
            ),
            supervised_keys=("source", "target"),
            disable_shuffling=True,  # already permuted; the street sentences stay in front
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        return {split: self._generate_examples(split) for split in self.COUNTS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        yield from enumerate(examples(split, self.COUNTS[split]))
