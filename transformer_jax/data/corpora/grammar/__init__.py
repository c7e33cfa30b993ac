"""The embedded corpus: a generated English-German grammar in which "it" must be resolved.

"The animal didn't cross the street because it was too tired ." is "... weil es zu müde war .",
and "... because it was too wide ." is "... weil sie zu breit war .": the adjective decides which
noun "it" refers to, and the German gender of that noun decides the pronoun. Words and punctuation
are separated by single blanks. An English sentence has exactly one German one.

A sentence is a number below `corpus.SIZE` (about 350 million): the number selects a pattern, and
its mixed-radix digits fill the pattern's slots. A seeded permutation of the numbers makes the
corpus.
"""

from transformer_jax.data.corpora.grammar.corpus import COUNTS, NAME, entropy, examples, sentence
from transformer_jax.data.corpora.grammar.sentences import Sentence

FEATURES = Sentence._fields

__all__ = ["COUNTS", "FEATURES", "NAME", "entropy", "examples", "sentence"]
