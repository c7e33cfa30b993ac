"""The words of the grammar in both languages, and the phrases and clauses made of them."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Case = Literal["nominative", "accusative"]
Form = Literal["masculine", "feminine", "neuter", "plural"]
Role = Literal["subject", "object"]
Tense = Literal["past", "present", "perfect", "future"]

FORMS: tuple[Form, ...] = ("masculine", "feminine", "neuter", "plural")
TENSES: tuple[Tense, ...] = ("past", "present", "perfect", "future")


# eq=False: words are compared and hashed by identity, which keeps the caches fast.


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
    """A conjunction, its part of speech, and whether the main clause that it joins is negated."""

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


def nouns(masculine: str, feminine: str, neuter: str) -> tuple[Noun, ...]:
    genders = zip(FORMS, (masculine, feminine, neuter), strict=False)
    return tuple(
        Noun(*row.split(), gender=gender) for gender, rows in genders for row in rows.split(",")
    )


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


def determiner(english: str, *german: str) -> Determiner:
    """german: its forms in the nominative and accusative, and the endings of adjectives in each."""
    singular, plural = english.split()
    return Determiner((singular, plural), paradigm(*german[:2]), paradigm(*german[2:]))


ANIMALS = nouns(
    "dog dogs Hund Hunde, fox foxes Fuchs Füchse, bear bears Bär Bären, wolf wolves Wolf Wölfe, "
    "donkey donkeys Esel Esel, hedgehog hedgehogs Igel Igel",
    "cat cats Katze Katzen, cow cows Kuh Kühe, goat goats Ziege Ziegen, mouse mice Maus Mäuse, "
    "duck ducks Ente Enten, turtle turtles Schildkröte Schildkröten",
    "animal animals Tier Tiere, horse horses Pferd Pferde, pig pigs Schwein Schweine, "
    "rabbit rabbits Kaninchen Kaninchen, camel camels Kamel Kamele, "
    "squirrel squirrels Eichhörnchen Eichhörnchen",
)
PEOPLE = nouns(
    "man men Mann Männer, king kings König Könige",
    "woman women Frau Frauen, queen queens Königin Königinnen",
    "girl girls Mädchen Mädchen, child children Kind Kinder",
)
WAYS = Scene(
    verbs(
        "cross crosses crossed crossed überqueren überquert überquerte überquert",
        "leave leaves left left verlassen verlässt verließ verlassen",
        "find finds found found finden findet fand gefunden",
    ),
    nouns(
        "path paths Weg Wege, trail trails Pfad Pfade, square squares Platz Plätze, "
        "courtyard courtyards Hof Höfe",
        "street streets Straße Straßen, bridge bridges Brücke Brücken, alley alleys Gasse Gassen, "
        "meadow meadows Wiese Wiesen",
        "field fields Feld Felder, valley valleys Tal Täler, roof roofs Dach Dächer, "
        "bog bogs Moor Moore",
    ),
    adjectives("object", "wide breit, narrow schmal, long lang, slippery rutschig, uneven uneben"),
)
BELONGINGS = Scene(
    verbs(
        "carry carries carried carried tragen trägt trug getragen",
        "lift lifts lifted lifted heben hebt hob hochgehoben hoch",
        "move moves moved moved bewegen bewegt bewegte bewegt",
    ),
    nouns(
        "mirror mirrors Spiegel Spiegel, basket baskets Korb Körbe, chair chairs Stuhl Stühle, "
        "plate plates Teller Teller",
        "box boxes Kiste Kisten, bag bags Tasche Taschen, bottle bottles Flasche Flaschen, "
        "vase vases Vase Vasen",
        "parcel parcels Paket Pakete, picture pictures Bild Bilder, glass glasses Glas Gläser, "
        "book books Buch Bücher",
    ),
    adjectives(
        "object", "heavy schwer, bulky sperrig, fragile zerbrechlich, modern modern, worn abgenutzt"
    ),
)
FOOD = Scene(
    verbs(
        "eat eats ate eaten fressen frisst fraß gefressen",
        "touch touches touched touched rühren rührt rührte angerührt an",
        "try tries tried tried probieren probiert probierte probiert",
    ),
    nouns(
        "apple apples Apfel Äpfel, cake cakes Kuchen Kuchen, cookie cookies Keks Kekse, "
        "mushroom mushrooms Pilz Pilze",
        "carrot carrots Karotte Karotten, pear pears Birne Birnen, sausage sausages Wurst Würste, "
        "onion onions Zwiebel Zwiebeln",
        "egg eggs Ei Eier, roll rolls Brötchen Brötchen, steak steaks Steak Steaks, "
        "radish radishes Radieschen Radieschen",
    ),
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
DEGREES = TOO, VERY, SO = words("too zu, very sehr, so so")

THE = determiner("the the", "der die das die", "den die das die", "e e e en", "en e e en")
THIS = determiner(
    "this these", "dieser diese dieses diese", "diesen diese dieses diese", "e e e en", "en e e en"
)
A = determiner("a some", "ein eine ein einige", "einen eine ein einige", "er e es e", "en e es e")
# The object "a ..." under negation: "didn't eat an apple" is "fraß keinen Apfel".
NOT_A = determiner(
    "a any", "kein keine kein keine", "keinen keine kein keine", "er e es en", "en e es en"
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


class NounPhrase(NamedTuple):
    noun: Noun
    determiner: Determiner = THE
    attribute: Word | None = None
    plural: bool = False

    @property
    def form(self) -> Form:
        return "plural" if self.plural else self.noun.gender


class Clause(NamedTuple):
    """Subject, verb and object in the third person; each language arranges them in its own way."""

    subject: NounPhrase
    verb: Verb
    object: NounPhrase | None
    tense: Tense
    negated: bool = False
