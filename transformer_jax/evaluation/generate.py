"""Measures a model: means over a data set, what it writes or predicts, and the scores of that."""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

from transformer_jax.devices.mesh import constrain
from transformer_jax.evaluation import metrics
from transformer_jax.evaluation import search as decoding
from transformer_jax.evaluation.search import DecodeSettings, Hypotheses

Batch = Mapping[str, Shaped[Array | np.ndarray, "B ..."]]
# A batch and the number of the example in each of its rows; -1 marks a row of padding.
NumberedBatch = tuple[Batch, Int[np.ndarray, "B"]]
# name -> (sum, weight)
Sums = dict[str, tuple[Float[Array, ""], Float[Array, ""]]]
# (params, inputs of a batch, max_length) -> (what is read first (B,), context, cache)
StartFn = Callable[[Any, dict[str, Array], int], tuple[Array, Any, Any]]
# (params, context, cache, tokens (N,), index ()) -> (logits (N, V), cache)
StepFn = Callable[[Any, Any, Any, Array, Array], tuple[Array, Any]]
# tokens of prompts (B,) -> most tokens of what is generated from them, eos included (B,)
LimitFn = Callable[[Int[np.ndarray, "B"]], Int[np.ndarray, "B"]]


def eval_step(params: Any, batch: Batch, *, objective: Callable, apply_fn: Callable) -> Sums:
    """What the objective reports of a batch without dropout, as (sum, weight)."""
    _, _, sums = objective(apply_fn(params, batch, None), batch)
    return jax.tree.map(constrain, sums)


def make_eval_step(objective: Callable, apply_fn: Callable) -> Callable[[Any, Batch], Sums]:
    """`eval_step` of one model, compiled once per shape of a batch."""
    return jax.jit(functools.partial(eval_step, objective=objective, apply_fn=apply_fn))


def evaluate(
    params: Any, batches: Iterable[NumberedBatch], *, eval_step: Callable[[Any, Batch], Sums]
) -> dict[str, float]:
    """Means over all batches, so that it does not matter how these are cut.

    Sums are added up in float64 on the host, after the last batch is dispatched.

    Raises:
      ValueError: there are no batches, or nothing in them that has a weight.
    """
    parts = jax.device_get([eval_step(params, batch) for batch, _ in batches])
    if not parts:
        raise ValueError("nothing to evaluate on: there are no batches")

    def add_up(*values: float) -> float:
        return np.sum(values, dtype=np.float64)

    return metrics.means(jax.tree.map(add_up, *parts))


def generate(
    params: Any,
    batches: Iterable[NumberedBatch],
    *,
    start: StartFn,
    step: StepFn,
    settings: DecodeSettings,
    eos_id: int,
    pad_id: int,
    key: Key[Array, ""],
    limit: LimitFn,
) -> list[list[list[int]]]:
    """Translations or continuations: `settings.num_samples` of each example, as token ids.

    The ids come without eos, the examples in the order of their numbers. Rows of padding are not
    decoded. Compiled once per shape of the inputs, also over several calls, as long as `start` and
    `step` stay the same objects. `settings.stop` is not looked at: `cut_at_stop` cuts the texts.

    Args:
      batches: as of pipeline's eval_batches or prompt_batches; only `inputs` keys are read.
      key: for sampling. Every sample of an example draws by the example's number and its own,
        whatever its batch.
      limit: most tokens by the number of tokens of the prompt; nothing is decoded where it is 0.
    """
    decoded = []
    for batch, numbers in batches:
        prompts = _prompts(batch, numbers, settings, key, limit)
        tokens = decode_batch(
            params,
            prompts.inputs,
            prompts.limit,
            prompts.keys,
            start=start,
            step=step,
            settings=settings,
            length=prompts.length,
            eos_id=eos_id,
            pad_id=pad_id,
        )
        decoded.append((tokens, numbers))

    def before_eos(ids: list[int]) -> list[int]:
        return ids[: ids.index(eos_id)] if eos_id in ids else []  # no eos: the limit was 0

    results = {}
    for tokens, numbers in decoded:
        for rows, number in zip(np.asarray(tokens).tolist(), numbers.tolist(), strict=True):
            if number >= 0:
                results[number] = [before_eos(ids) for ids in rows]
    return [results[number] for number in range(len(results))]


def stream(
    params: Any,
    batch: NumberedBatch,
    *,
    start: StartFn,
    step: StepFn,
    settings: DecodeSettings,
    eos_id: int,
    pad_id: int,
    key: Key[Array, ""],
    limit: LimitFn,
    decode: Callable[[list[int]], str],
) -> Iterator[tuple[int, str]]:
    """What `generate` makes of one batch, cut at `settings.stop`, as (row, new text) when it comes.

    Sample r of the batch's row b is row b * num_samples + r. Text is held back while what follows
    may still change it: half of a character, or what may be the beginning of a stop text. A row
    of which nothing comes yields nothing.

    Args:
      decode: text of token ids. That of the first few is the beginning of that of all, but for
        U+FFFD in the place of half a character.

    Raises:
      ValueError: beam search, which does not know its first token before its last.
    """
    if settings.method == "beam":
        raise ValueError(
            'decode.method="beam" cannot stream, as it knows no token before it knows all; '
            "choose greedy or sample"
        )
    prompts = _prompts(*batch, settings, key, limit)
    context, hypotheses = _begin(
        params,
        prompts.inputs,
        prompts.limit,
        start=start,
        num_samples=settings.num_samples,
        length=prompts.length,
        pad_id=pad_id,
    )
    ended = np.repeat(prompts.limit < 1, settings.num_samples)
    ids: list[list[int]] = [[] for _ in ended]
    shown = [0] * len(ended)  # characters
    while not ended.all():
        hypotheses = _extend(
            params,
            context,
            hypotheses,
            prompts.keys,
            step=step,
            settings=settings,
            eos_id=eos_id,
            pad_id=pad_id,
        )
        newest = np.asarray(hypotheses.last).tolist()
        for row in np.flatnonzero(~ended).tolist():
            ended[row] = newest[row] == eos_id
            if not ended[row]:
                ids[row].append(newest[row])
            text = decode(ids[row])
            if not ended[row]:
                text = text.rstrip("\ufffd")
            cut = cut_at_stop(text, settings.stop)
            ended[row] |= cut != text
            if not ended[row]:
                cut = _without_beginning_of_stop(cut, settings.stop)
            if len(cut) > shown[row]:
                yield row, cut[shown[row] :]
                shown[row] = len(cut)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the stop text that is complete first; of several, the longest."""
    found = [(text.index(end) + len(end), text.index(end)) for end in stop if end in text]
    return text[: min(found)[1]] if found else text


def _without_beginning_of_stop(text: str, stop: Sequence[str]) -> str:
    """The text without the longest end that may be the beginning of a stop text."""
    held = [size for end in stop for size in range(1, len(end)) if text.endswith(end[:size])]
    return text[: len(text) - max(held, default=0)]


class _Prompts(NamedTuple):
    """What generation reads of a batch; R samples of each prompt."""

    inputs: dict[str, Int[np.ndarray, "B S"]]
    limit: Int[np.ndarray, "B"]  # 0 in rows of padding
    length: int  # at least every limit of a prompt in this shape, so one shape compiles once
    keys: Key[Array, "N"]


def _prompts(
    batch: Batch,
    numbers: Int[np.ndarray, "B"],
    settings: DecodeSettings,
    key: Key[Array, ""],
    limit: LimitFn,
) -> _Prompts:
    inputs = {name: np.asarray(rows) for name, rows in batch.items() if name.startswith("inputs")}
    segments = inputs["inputs_segment_ids"]
    limits = np.where(numbers >= 0, limit(np.sum(segments != 0, axis=1)), 0)
    length = max(1, int(np.max(limit(np.arange(1, segments.shape[1] + 1)))))
    keys = _keys_of_samples(key, np.maximum(numbers, 0).astype(np.uint32), settings.num_samples)
    return _Prompts(inputs, limits.astype(np.int32), length, keys)


@functools.partial(jax.jit, static_argnames="num_samples")
def _keys_of_samples(
    key: Key[Array, ""], numbers: Int[Array, "B"], num_samples: int
) -> Key[Array, "N"]:
    fold_in = jax.random.fold_in
    keys = jax.vmap(fold_in, in_axes=(None, 0))(key, numbers)
    of_samples = jax.vmap(fold_in, in_axes=(None, 0))
    return jax.vmap(of_samples, in_axes=(0, None))(keys, jnp.arange(num_samples)).reshape(-1)


@functools.partial(
    jax.jit, static_argnames=("start", "step", "settings", "length", "eos_id", "pad_id")
)
def decode_batch(
    params: Any,
    inputs: dict[str, Int[Array, "B S"]],
    limit: Int[Array, "B"],
    keys: Key[Array, "N"],
    *,
    start: StartFn,
    step: StepFn,
    settings: DecodeSettings,
    length: int,
    eos_id: int,
    pad_id: int,
) -> Int[Array, "B R T"]:
    """The tokens of each row's samples, or of its best hypothesis."""
    first, context, cache = start(params, inputs, length)
    next_logits = functools.partial(step, params, context)
    sizes = {"num_results": settings.num_samples, "length": length, "limit": limit}
    if settings.method == "beam":
        decoded = decoding.beam_search(
            next_logits,
            first,
            cache,
            beam_size=settings.beam_size,
            length_penalty=settings.length_penalty,
            eos_id=eos_id,
            pad_id=pad_id,
            **sizes,
        )
    else:
        choose = _choose(settings, keys)
        decoded = decoding.complete(
            next_logits, first, cache, choose, eos_id=eos_id, pad_id=pad_id, **sizes
        )
    return constrain(decoded.tokens)


@functools.partial(jax.jit, static_argnames=("start", "num_samples", "length", "pad_id"))
def _begin(
    params: Any,
    inputs: dict[str, Int[Array, "B S"]],
    limit: Int[Array, "B"],
    *,
    start: StartFn,
    num_samples: int,
    length: int,
    pad_id: int,
) -> tuple[Any, Hypotheses]:
    """The context of the prompts, and hypotheses without tokens."""
    first, context, cache = start(params, inputs, length)
    hypotheses = decoding.begin(
        first, cache, num_results=num_samples, length=length, limit=limit, pad_id=pad_id
    )
    return context, hypotheses


# The hypotheses are donated, or each token would copy the cache.
@functools.partial(
    jax.jit,
    static_argnames=("step", "settings", "eos_id", "pad_id"),
    donate_argnames="hypotheses",
)
def _extend(
    params: Any,
    context: Any,
    hypotheses: Hypotheses,
    keys: Key[Array, "N"],
    *,
    step: StepFn,
    settings: DecodeSettings,
    eos_id: int,
    pad_id: int,
) -> Hypotheses:
    next_logits = functools.partial(step, params, context)
    choose = _choose(settings, keys)
    extended = decoding.extend(hypotheses, next_logits, choose, eos_id=eos_id, pad_id=pad_id)
    return extended._replace(last=constrain(extended.last))


def _choose(settings: DecodeSettings, keys: Key[Array, "N"]) -> decoding.ChooseFn:
    if settings.method == "greedy":
        return decoding.greedy
    return decoding.sampler(
        keys,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
    )


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[str],
    pronouns: Sequence[str] | None,
    *,
    bleu_tokenizer: str,
) -> tuple[dict[str, float], dict[str, str]]:
    """Scores of translations, and the signatures of those by sacreBLEU, under flat names.

    Returns:
      "bleu" and "chrf" (0 to 100), "exact_match" and, where a sentence has a pronoun,
      "pronoun_accuracy" (fractions); and {"bleu": signature, "chrf": signature}.

    Raises:
      ValueError: no sentences, or lists of different lengths.
    """
    bleu, bleu_signature = metrics.bleu(hypotheses, references, bleu_tokenizer)
    chrf, chrf_signature = metrics.chrf(hypotheses, references)
    exact_match = metrics.exact_match(hypotheses, references)
    scores = {"bleu": bleu, "chrf": chrf, "exact_match": exact_match}
    if pronouns is not None and any(pronouns):
        scores["pronoun_accuracy"] = metrics.pronoun_accuracy(hypotheses, pronouns)
    return scores, {"bleu": bleu_signature, "chrf": chrf_signature}


def make_predict_step(apply: Callable) -> Callable[[Any, Batch], Int[Array, "B T"]]:
    """The likeliest class at every token, without dropout, compiled once per shape of a batch."""

    def predict_step(params: Any, batch: Batch) -> Int[Array, "B T"]:
        return constrain(jnp.argmax(apply(params, batch, None), axis=-1))

    return jax.jit(predict_step)


def predict(
    params: Any,
    batches: Iterable[NumberedBatch],
    *,
    predict_step: Callable[[Any, Batch], Int[Array, "B T"]],
) -> list[list[int]]:
    """The predicted class (from 0) at every place that has a label, by the numbers of the examples.

    Args:
      batches: with `labels`, one example a row. Of a label only matters whether it is 0.
    """
    steps = [(predict_step(params, batch), batch["labels"], numbers) for batch, numbers in batches]
    predicted = {}
    for classes, labels, numbers in steps:
        rows = zip(numbers.tolist(), np.asarray(classes), np.asarray(labels), strict=True)
        predicted |= {number: row[label > 0].tolist() for number, row, label in rows if number >= 0}
    return [predicted[number] for number in range(len(predicted))]


def score_classification(predicted: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """Scores of the labels of texts: "accuracy", macro "f1" and "matthews" correlation.

    Raises:
      ValueError: no labels, or lists of different lengths.
    """
    return {
        "accuracy": metrics.accuracy(predicted, labels),
        "f1": metrics.f1(predicted, labels),
        "matthews": metrics.matthews(predicted, labels),
    }


def score_tagging(
    predicted: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Scores of the tags of words, as fractions.

    A sentence that was cut off has fewer predicted tags: the missing ones count as wrong.

    Returns:
      "accuracy" and macro "f1" over all words, "exact_match" (sentences without a mistake) and,
      where every tag is O, B-x or I-x, "span_f1" (a missing tag is O).

    Raises:
      ValueError: no words, lists of different lengths, or a sentence with more predicted tags than
        words.
    """
    if len(predicted) != len(tags):
        raise ValueError(f"{len(predicted)} tagged sentences, but {len(tags)} expected ones")
    expected = [list(sentence) for sentence in tags]
    filled = [_filled(ours, len(theirs)) for ours, theirs in zip(predicted, expected, strict=True)]
    words, expected_words = list(chain(*filled)), list(chain(*expected))
    scores = {
        "accuracy": metrics.accuracy(words, expected_words),
        "f1": metrics.f1(words, expected_words),
        "exact_match": sum(map(operator.eq, filled, expected)) / len(expected),
    }
    if all(map(metrics.is_span_tag, {*words, *expected_words} - {metrics.NOTHING})):
        outside = [["O" if tag == metrics.NOTHING else tag for tag in row] for row in filled]
        scores["span_f1"] = metrics.span_f1(outside, expected)
    return scores


def _filled(predicted: Sequence[str], words: int) -> list[str]:
    """The predicted tags of one sentence, made as many as it has words."""
    if len(predicted) > words:
        raise ValueError(f"{len(predicted)} tags predicted for a sentence of {words} words")
    return [*predicted, *[metrics.NOTHING] * (words - len(predicted))]


def embed(
    params: Any,
    batches: Iterable[NumberedBatch],
    *,
    embed_step: Callable[[Any, Batch], Float[Array, "B T D"]],
) -> Float[np.ndarray, "N D"]:
    """The vector of each example, by the numbers of the examples.

    Args:
      batches: one example a row.
      embed_step: at each token, the vector that stands for its whole text; the first is taken.

    Raises:
      ValueError: there are no batches.
    """
    steps = [(embed_step(params, batch)[:, 0], numbers) for batch, numbers in batches]
    if not steps:
        raise ValueError("nothing to embed: there are no batches")
    vectors = np.concatenate([np.asarray(rows, np.float32) for rows, _ in steps])
    numbers = np.concatenate([numbers for _, numbers in steps])
    # Rows of padding have -1, so that they come first.
    return vectors[np.argsort(numbers)][np.sum(numbers < 0) :]
