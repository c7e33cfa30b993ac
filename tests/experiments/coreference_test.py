"""Where the experiment looks: at "it", the noun that it stands for, and the other one."""

from experiments.coreference.measure import places
from transformer_jax.data.corpora import grammar


def test_it_and_both_nouns_are_found_in_every_sentence():
    for example in grammar.examples("test", 500):
        words = example["source"].split()
        indices = places(*(example[name] for name in ("source", "tags", "antecedent")))
        it, right, other = (words[i] for i in indices)
        assert it.lower() == "it" and right == example["antecedent"] != other
        # Of subject and object, the subject comes first.
        assert (indices[1] < indices[2]) == (example["antecedent_role"] == "subject")
