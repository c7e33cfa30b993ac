"""Genders and plurals as a dictionary gives them, independent of the grammar's lexicon."""

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
