"""Patterns: each choice shows in the sentence, and translations are a person's."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_jax.data.corpora.grammar import lexicon, sentences


def realised(pattern: sentences.Pattern, choices: dict[str, Any]) -> sentences.Sentence:
    return pattern.realise(SimpleNamespace(**choices))


def test_every_choice_of_a_pattern_shows_in_the_english_sentence():
    sources = []
    for pattern in sentences.PATTERNS:
        # Two options of a slot suffice: every combination of them must give its own sentence.
        few = {name: {slot[0], slot[-1]} for name, slot in pattern.slots.items()}
        sources += [
            realised(pattern, dict(zip(few, choices, strict=True))).source
            for choices in product(*few.values())
        ]
    assert len(set(sources)) == len(sources) > 1000
    for pattern in sentences.PATTERNS:  # and one slot at a time, all options or thousands
        for name, slot in pattern.slots.items():
            rest = {other: options[0] for other, options in pattern.slots.items() if other != name}
            options = slot[:: max(1, len(slot) // 4_000)]
            varied = {realised(pattern, rest | {name: option}).source for option in options}
            assert len(varied) == len(options), name


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
    if isinstance(option, sentences.Event | sentences.Situation):
        return all(may_choose(part, words) for part in option)
    if isinstance(option, lexicon.Noun):
        return bool({option.singular, option.plural} & words)
    if isinstance(option, lexicon.Verb):
        return bool({option.base, option.third, option.past, option.participle} & words)
    if isinstance(option, lexicon.Word | lexicon.Link):
        return option.english in words
    return True


@pytest.mark.parametrize(
    "pair", [pair.splitlines() for pair in TRANSLATIONS.strip().split("\n\n")], ids=lambda p: p[0]
)
def test_the_only_translation_is_that_of_a_person(pair):
    source, target = pair
    words = set(source.lower().split())
    translations = []
    for pattern in sentences.PATTERNS:
        # Most patterns fail at a slot of few options, before those of thousands are looked through.
        few_first = sorted(pattern.slots.values(), key=len)
        if not all(any(may_choose(o, words) for o in slot) for slot in few_first):
            continue
        slots = [[o for o in slot if may_choose(o, words)] for slot in pattern.slots.values()]
        for choices in product(*slots):
            sentence = realised(pattern, dict(zip(pattern.slots, choices, strict=True)))
            if sentence.source == source:
                translations.append(sentence.target)
    assert translations == [target]
