"""Measures a model: means over a data set, translations of it, and the scores of those."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

from transformer_jax import metrics
from transformer_jax.decode import Decoded, DecodeSettings, beam_search, greedy, sample

Batch = Mapping[str, Shaped[Array | np.ndarray, "B ..."]]
# A batch and the number of the example in each of its rows; -1 marks a row of padding.
NumberedBatch = tuple[Batch, Int[np.ndarray, "B"]]
# name -> (sum, weight)
Sums = dict[str, tuple[Float[Array, ""], Float[Array, ""]]]
# (params, inputs of a batch, max_length) -> (context, cache)
StartFn = Callable[[Any, dict[str, Array], int], tuple[Any, Any]]
# (params, context, cache, tokens (N,), index ()) -> (logits (N, V), cache)
StepFn = Callable[[Any, Any, Any, Array, Array], tuple[Array, Any]]


def eval_step(params: Any, batch: Batch, *, objective: Callable, apply_fn: Callable) -> Sums:
    """What the objective reports of a batch without dropout, as (sum, weight)."""
    _, _, sums = objective(apply_fn, params, batch, None)
    return sums


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


def translate(
    params: Any,
    batches: Iterable[NumberedBatch],
    *,
    start: StartFn,
    step: StepFn,
    settings: DecodeSettings,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    key: Key[Array, ""],
) -> list[list[int]]:
    """The token ids (without eos) of each example's translation, by the numbers of the examples.

    A translation has at most as many tokens as its source plus `settings.extra_length`, eos
    included in both. Rows of padding are not decoded. Compiled once per shape of the inputs, also
    over several calls, as long as `start` and `step` stay the same objects.

    Args:
      batches: as of pipeline's eval_batches or source_batches; only `inputs` keys are read.
      key: for sampling. Every example draws by its own number, whatever its batch.
    """
    decoded = []
    for batch, numbers in batches:
        inputs = {name: rows for name, rows in batch.items() if name.startswith("inputs")}
        source_tokens = np.sum(inputs["inputs_segment_ids"] != 0, axis=1)
        limit = np.where(numbers >= 0, source_tokens + settings.extra_length, 0).astype(np.int32)
        tokens, _ = _decode_batch(
            params,
            inputs,
            limit,
            _keys_of_rows(key, np.maximum(numbers, 0).astype(np.uint32)),
            start=start,
            step=step,
            settings=settings,
            bos_id=bos_id,
            eos_id=eos_id,
            pad_id=pad_id,
        )
        decoded.append((tokens, numbers))

    translations = {}
    for tokens, numbers in decoded:
        for row, number in zip(np.asarray(tokens).tolist(), numbers.tolist(), strict=True):
            if number >= 0:
                translations[number] = row[: row.index(eos_id)]
    return [translations[number] for number in range(len(translations))]


_keys_of_rows = jax.jit(jax.vmap(jax.random.fold_in, in_axes=(None, 0)))


@functools.partial(
    jax.jit, static_argnames=("start", "step", "settings", "bos_id", "eos_id", "pad_id")
)
def _decode_batch(
    params: Any,
    inputs: dict[str, Int[Array, "B S"]],
    limit: Int[Array, "B"],
    keys: Key[Array, "B"],
    *,
    start: StartFn,
    step: StepFn,
    settings: DecodeSettings,
    bos_id: int,
    eos_id: int,
    pad_id: int,
) -> Decoded:
    """The best hypothesis of each row: tokens (B, T), scores (B,)."""
    batch_size, source_length = inputs["inputs"].shape
    length = source_length + settings.extra_length
    context, cache = start(params, inputs, length)
    next_logits = functools.partial(step, params, context)
    decode = {"batch_size": batch_size, "length": length, "limit": limit}
    decode |= {"bos_id": bos_id, "eos_id": eos_id, "pad_id": pad_id}
    if settings.method == "greedy":
        return greedy(next_logits, cache, **decode)
    if settings.method == "sample":
        return sample(
            next_logits,
            cache,
            keys,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            **decode,
        )
    beams = beam_search(
        next_logits,
        cache,
        beam_size=settings.beam_size,
        length_penalty=settings.length_penalty,
        num_results=1,
        **decode,
    )
    return Decoded(beams.tokens[:, 0], beams.scores[:, 0])


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
