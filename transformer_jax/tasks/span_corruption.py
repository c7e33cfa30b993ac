"""Span corruption: the hidden spans of a text, by an encoder-decoder.

T5's objective (Raffel et al. 2020, arXiv 1910.10683, section 3.1.4). A run of text_to_text starts
from such a one by checkpoint.init_from.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int32, Int64

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Column, Drawing, Encoding, Labels, Limits, Recipe
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.prepare.transforms import pieces, prompt_sources
from transformer_jax.data.read.examples import Examples
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks import tokens
from transformer_jax.tasks.task import Sample, Scores, Task
from transformer_jax.training.losses import next_token_loss

# What stands for the first span of a text, the second ...: as many as T5 has.
SENTINELS = tuple(f"< extra_id_{number} >" for number in range(100))


def _encode(examples: Examples, tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Pieces of documents; with eos, what becomes of one is not longer than sources may be."""
    return {"text": pieces(tokenizer.encode(examples["text"]), limits.source - 1)}, ()


@dataclasses.dataclass(frozen=True)
class Spans:
    """Hides spans of a text: sentinels stand for them, and the targets say what was there.

    "a b c d e f" becomes the inputs "a <0> d e <1>" and the targets "<0> b c <1> f", with eos.
    How many tokens and spans are hidden follows from the length alone, where they lie is drawn.

    Attributes:
        noise_density: fraction of the tokens that is hidden, and at least one.
        mean_length: tokens of a span, on average over those of a text.
        sentinels: their ids.
        eos: the id that inputs and targets end in.
    """

    noise_density: float
    mean_length: float
    sentinels: tuple[int, ...]
    eos: int

    def counts(self, length: int) -> tuple[int, int]:
        """How many tokens of a text are hidden, in how many spans."""
        if length < 2:
            return 0, 0
        noise = min(max(round(length * self.noise_density), 1), length - 1)
        spans = min(max(round(noise / self.mean_length), 1), length - noise)
        return noise, spans

    def mask(self, length: int, rng: np.random.Generator) -> Bool[np.ndarray, " length"]:
        """Which tokens are hidden; T5's random_spans_noise_mask. The first never is."""
        noise, spans = self.counts(length)
        if not spans:
            return np.zeros(length, bool)
        shown, hidden = _divided(length - noise, spans, rng), _divided(noise, spans, rng)
        return np.repeat(np.tile([False, True], spans), np.stack([shown, hidden], axis=1).ravel())

    def __call__(
        self, example: Mapping[str, Int32[np.ndarray, " length"]], rng: np.random.Generator
    ) -> dict[str, Int32[np.ndarray, " _"]]:
        """The "inputs" and "targets" of a "text"."""
        tokens = example["text"]
        mask = self.mask(len(tokens), rng)
        return {"inputs": self._replaced(tokens, mask), "targets": self._replaced(tokens, ~mask)}

    def _replaced(
        self, tokens: Int32[np.ndarray, " length"], hidden: Bool[np.ndarray, " length"]
    ) -> Int32[np.ndarray, " _"]:
        """The tokens with a sentinel in the place of each hidden span, and eos."""
        starts = hidden & ~np.concatenate([[False], hidden[:-1]])
        numbers = np.cumsum(starts) - 1
        sentinels = np.array(self.sentinels)[np.maximum(numbers, 0)]
        ids = np.where(starts, sentinels, tokens)[starts | ~hidden]
        return np.append(ids, self.eos).astype(np.int32)


def _divided(total: int, parts: int, rng: np.random.Generator) -> Int64[np.ndarray, " parts"]:
    """The lengths of parts of at least one, every division equally likely."""
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def _corrupt(tokenizer: Tokenizer, drawing: Drawing) -> Spans:
    """Raises ValueError where a piece may need more sentinels or longer targets than there are."""
    ids, eos = tuple(tokenizer.token_id(token) for token in SENTINELS), tokenizer.special.eos
    mask_rate, mean_length, limits, _ = drawing
    spans = Spans(mask_rate, mean_length, tuple(i for i in ids if i is not None), eos)
    noise, count = spans.counts(limits.source - 1)
    if count > len(spans.sentinels):
        raise ValueError(
            f"data.max_source_length={limits.source} makes {count} spans of a text at "
            f"task.mask_rate={mask_rate} and task.mean_span_length={mean_length}, but there are "
            f"{len(spans.sentinels)} sentinels: shorten it, or lengthen the spans"
        )
    if noise + count + 1 > limits.target:
        raise ValueError(
            f"data.max_target_length={limits.target} cannot hold {noise} hidden tokens, {count} "
            f"sentinels and eos, which data.max_source_length={limits.source} and task.mask_rate="
            f"{mask_rate} make: set it to {noise + count + 1}"
        )
    return spans


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """No scores but the losses; as samples, each token's likeliest after the right ones before."""
    decode, samples = trained.data.tokenizer.decode, []
    for example, predicted in tokens.few_predicted(trained, split):
        end = np.sum(example["targets_segment_ids"] > 0)
        texts = example["inputs"], example["targets"], predicted[:end]
        samples.append(tuple(map(decode, texts)))
    return {}, samples


TASK = Task(
    recipe=Recipe(
        name="span_corruption",
        reads=("text",),
        columns={"inputs": Column("source"), "targets": Column("target")},
        encode=_encode,
        encoded={"text": Column("source")},
        prompt=prompt_sources,
        corrupt=_corrupt,
        extra_tokens=SENTINELS,
        documents=True,
        predicted="targets",
    ),
    heads={"encoder_decoder": "tokens"},
    loss=next_token_loss,
    score=_score,
    settings=("task.mask_rate", "task.mean_span_length"),
)
