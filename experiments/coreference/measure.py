"""What each head gives to both nouns from "it", and the scores of translations without heads."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.data.dataset import Split
from transformer_jax.devices.mesh import use
from transformer_jax.evaluation.scores import pronoun_accuracy
from transformer_jax.inspection.attention import attention, without_heads
from transformer_jax.models.transformer.schemes import Kind, Stack
from transformer_jax.run import Run

# Where nouns of the source are looked at: from "it" itself, and where its translation is written.
ENCODER: tuple[Stack, Kind] = ("encoder", "self_attention")
CROSS: tuple[Stack, Kind] = ("decoder", "cross_attention")


def measure(config: Config, workdir: Path, *, sentences: int) -> list[dict[str, Any]]:
    """Rows "look", one a head, and rows "ablation", one for each set of heads that is taken out.
    Layers and heads count from 1; a head of 0 means all of the layer.

    sentences: how many of the test split's are translated; heads are watched in all of them. All
    have triples of nouns and adjective that training lacks.
    """
    run = build.build(config, workdir)
    params = lab.trained(run, workdir)
    if params is None:
        return []
    split, rows = run.data.split("test"), []
    with use(run.mesh):
        by_kind = weights_of_it(run, params, split)
        for (stack, _), weights in by_kind.items():
            rows += [{"what": "look", "stack": stack, **row} for row in _looks(weights)]
        rows.append(_ablated(run, params, split, "none", "", [], sentences))
        for (stack, kind), weights in by_kind.items():
            layers, heads = weights.shape[1:3]
            # Each head alone, and each layer's heads
            for layer in range(layers):
                all_heads = [(layer, head) for head in range(heads)]
                for subset in (*([head] for head in all_heads), all_heads):
                    rows.append(_ablated(run, params, split, stack, kind, subset, sentences))
    return rows


def weights_of_it(
    run: Run, params: Any, split: Split
) -> dict[tuple[str, str], Float[np.ndarray, "sentences L H 2"]]:
    """The weights for the noun that "it" stands for and for the other one, by kind of attention.

    In the encoder from "it", in the decoder's cross-attention from the query that writes the
    German pronoun of the reference.
    """

    @jax.jit
    def look(params, batch):
        _, looks, _ = attention(run.model, params, batch)
        return {place: looks[place].weights for place in (ENCODER, CROSS)}

    examples, by_kind = split.examples, {}
    for batch, numbers in split.batches:
        weights = jax.device_get(look(params, batch))
        for row, number in enumerate(numbers.tolist()):
            if number < 0:
                continue
            texts = (examples[name][number] for name in ("source", "tags", "antecedent"))
            it, *nouns = places(*texts)
            written = examples["target"][number].lower().split()
            pronoun = written.index(examples["pronoun"][number])
            for place, query in ((ENCODER, it), (CROSS, pronoun)):
                by_kind.setdefault(place, {})[number] = weights[place][:, row, :, query][..., nouns]
    return {place: np.stack([rows[i] for i in sorted(rows)]) for place, rows in by_kind.items()}


def places(source: str, tags: str, antecedent: str) -> tuple[int, int, int]:
    """The places of "it", of the noun that it stands for, and of the other noun.

    Subject and object follow an article, which "yesterday", a noun as well, does not.
    """
    words, kinds = source.split(), tags.split()
    it = kinds.index("PRON")
    nouns = [
        i for i, kind in enumerate(kinds) if kind == "NOUN" and i and kinds[i - 1] in ("DET", "ADJ")
    ]
    (right,) = (i for i in nouns if words[i] == antecedent)
    (other,) = (i for i in nouns if i != right)
    return it, right, other


def _looks(weights: Float[np.ndarray, "sentences L H 2"]) -> Iterator[dict[str, Any]]:
    """A row for each head, and one for the mean of each layer's heads, whose number is 0."""
    mean = np.mean(weights, axis=2, keepdims=True)
    weights = np.concatenate([mean, weights], axis=2)
    for layer in range(weights.shape[1]):
        for head in range(weights.shape[2]):
            right, other = weights[:, layer, head].T
            yield {
                "layer": layer + 1,
                "head": head,
                "prefers_right": float(np.mean(right > other)),
                "right": float(np.mean(right)),
                "other": float(np.mean(other)),
            }


def _ablated(
    run: Run,
    params: Any,
    split: Split,
    stack: Any,
    kind: Any,
    heads: Sequence[tuple[int, int]],
    sentences: int,
) -> dict[str, Any]:
    """Scores of greedy translations."""
    changed = without_heads(params, stack, kind, heads) if heads else params
    trained = run.trained(changed)
    greedy = dataclasses.replace(run.decode, method="greedy", num_samples=1)
    examples: Mapping[str, list[str]] = {
        name: [split.examples[name][i] for i in range(sentences)]
        for name in ("source", "target", "pronoun")
    }
    prompts = run.data.prompts(examples["source"])
    texts = [text for (text,) in trained.writing(greedy).texts(prompts)]
    right = [a == b for a, b in zip(texts, examples["target"], strict=True)]
    return {
        "what": "ablation",
        "stack": stack,
        "layer": heads[0][0] + 1 if heads else 0,
        "head": heads[0][1] + 1 if len(heads) == 1 else 0,
        "pronoun_accuracy": pronoun_accuracy(texts, examples["pronoun"]),
        "exact_match": float(np.mean(right)),
    }
