"""What a trained model makes of a split or of lines, by its objective: scores, samples, results."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax import run_log
from transformer_jax.build import Params, Run
from transformer_jax.data.dataset import Split
from transformer_jax.data.tokenizer import EOS_ID, PAD_ID, UNK_ID
from transformer_jax.evaluation import generate as evaluate
from transformer_jax.evaluation import metrics
from transformer_jax.evaluation.search import DecodeSettings

_SAMPLES = 4  # about so many examples are shown, and the first two
_SAMPLE_TOKENS = 64  # of a language model's sample at most, a quarter of them its prompt


def losses(run: Run, params: Params, split: Split) -> dict[str, float]:
    """Means of what the objective reports, and a language model's perplexity a word."""
    means = evaluate.evaluate(params, split.batches, eval_step=run.eval_step)
    if run.objective == "causal_lm":
        tokens = sum(np.sum(batch["targets_segment_ids"] > 0) for batch, _ in split.batches)
        nats, texts = means["token_loss"] * float(tokens), split.examples["text"]
        if not _has_unknown(split):
            means["word_perplexity"] = metrics.word_perplexity(nats, texts)
    return means


def _has_unknown(split: Split) -> bool:
    """Whether <unk> stands for words or characters, which would make a perplexity a word too low.

    The <unk> that a text is written with, as WikiText-2, is a word like any other.
    """
    unknown = sum(np.sum(batch["targets"] == UNK_ID) for batch, _ in split.batches)
    return bool(unknown > sum(text.count("<unk>") for text in split.examples["text"]))


def score(run: Run, params: Params, split: Split) -> tuple[dict[str, Any], str]:
    """Scores of what the model writes or predicts, with signatures, and a few samples as text."""
    match run.objective:
        case "translation":
            return _score_translations(run, params, split)
        case "classification":
            return _score_classes(run, params, split)
        case "tagging":
            return _score_tags(run, params, split)
        case "masked_lm":
            return {}, _masked_samples(run, params, split)
        case _:
            return {}, _continuations(run, params, split)


def results(run: Run, params: Params, lines: Sequence[str]) -> list[list[str]]:
    """For each line its results: a translation, continuations, a label, or the tags of its words.

    An empty line has empty results, but a language model begins a text there. A continuation
    comes with its prompt.

    Raises:
      ValueError: the objective has no results.
    """
    if run.objective == "masked_lm":
        raise ValueError("a model of masked tokens generates nothing; see --mode=embed")
    full = [
        number for number, line in enumerate(lines) if line.strip() or run.objective == "causal_lm"
    ]
    decodes = run.objective in ("translation", "causal_lm")
    found = [[""] * (run.decode.num_samples if decodes else 1) for _ in lines]
    if full:
        chosen = [lines[number] for number in full]
        for number, texts in zip(full, _results(run, params, chosen), strict=True):
            prompt = lines[number] if run.objective == "causal_lm" else ""
            found[number] = [prompt + text for text in texts]
    return found


def _results(run: Run, params: Params, lines: Sequence[str]) -> list[list[str]]:
    batches = run.data.prompts(lines)
    if run.objective in ("translation", "causal_lm"):
        hypotheses = _generate(run, params, batches, run.decode)
        decoders = [_decoder(run, line) for line in lines]
        return [
            [evaluate.cut_at_stop(decode(ids), run.decode.stop) for ids in samples]
            for decode, samples in zip(decoders, hypotheses, strict=True)
        ]
    predicted = evaluate.predict(params, batches, predict_step=run.predict_step)
    return [[" ".join(run.data.labels[label] for label in labels)] for labels in predicted]


def stream(run: Run, params: Params, line: str, number: int = 0) -> Iterator[str]:
    """Continuations of one prompt, piece by piece as they come, each behind the prompt.

    Of several samples the first comes piece by piece, and the others whole. The `number` of the
    line decides what is drawn: so they are those that `results` finds for this of many lines.
    """
    ((batch, _),) = run.data.prompts([line])
    alone = {name: rows[:1] for name, rows in batch.items()}, np.array([number])
    pieces = evaluate.stream(
        *(params, alone),
        settings=run.decode,
        decode=_decoder(run, line),
        **_model(run),
        **_bounds(run),
    )
    yield line
    others: dict[int, str] = {}
    for row, text in pieces:
        if row == 0:
            yield text
        others[row] = others.get(row, "") + text
    for row in range(1, run.decode.num_samples):
        yield f"\n{line}{others.get(row, '')}"
    yield "\n"


def embed(run: Run, params: Params, lines: Sequence[str]) -> np.ndarray:
    """The vector (D,) of each line, (N, D).

    Raises:
      ValueError: the model has no vector of a whole text.
    """
    if run.model.config.architecture != "encoder_only":
        raise ValueError(
            "only a model with model.architecture='encoder_only' embeds lines, this is a "
            f"{run.model.config.architecture!r}"
        )
    return evaluate.embed(params, run.data.prompts(lines), embed_step=run.embed_step)


def _decoder(run: Run, line: str) -> Callable[[list[int]], str]:
    """ids -> text: of a translation, or of what follows the prompt `line`."""
    tokenizer = run.data.tokenizer
    if run.objective == "translation":
        return tokenizer.decode
    (prompt,) = tokenizer.encode([line])
    start = len(tokenizer.decode(prompt))
    return lambda ids: tokenizer.decode([*prompt, *ids])[start:]


def _generate(
    run: Run,
    params: Params,
    batches: Iterable[evaluate.NumberedBatch],
    settings: DecodeSettings,
) -> list[list[list[int]]]:
    return evaluate.generate(params, batches, settings=settings, **_model(run), **_bounds(run))


def decoding(run: Run, params: Params) -> tuple[Callable[..., Any], tuple]:
    """The compiled function that decodes, and the shapes of a batch of the longest prompts.

    For whoever wants to know what it costs; params: or their shapes.
    """
    settings = run.data.settings
    side = "source" if run.objective == "translation" else "target"
    rows, width = settings.evaluation_batch_size, getattr(settings, f"max_{side}_length")
    names = ("inputs", "inputs_segment_ids", "inputs_positions")
    inputs = {name: jax.ShapeDtypeStruct((rows, width), "int32") for name in names}
    keys = jax.eval_shape(
        lambda: jax.random.split(jax.random.key(0), rows * run.decode.num_samples)
    )
    longest = int(np.max(_limit(run, np.arange(1, width + 1))))
    fixed = {"settings": run.decode, "length": longest, **_model(run)}
    decode = jax.jit(functools.partial(evaluate.decode_batch, **fixed))
    return decode, (params, inputs, jax.ShapeDtypeStruct((rows,), "int32"), keys)


def _model(run: Run) -> dict[str, Any]:
    """What decoding needs of the model."""
    return {"start": run.start, "step": run.step, "eos_id": EOS_ID, "pad_id": PAD_ID}


def _bounds(run: Run) -> dict[str, Any]:
    """What decoding draws with, and where it ends."""
    return {"key": jax.random.key(run.seed), "limit": functools.partial(_limit, run)}


def _limit(run: Run, prompt_tokens: np.ndarray) -> np.ndarray:
    """Most tokens that follow prompts of so many."""
    extra, model = run.decode.extra_length, run.model.config
    if run.objective == "translation":
        return prompt_tokens + extra
    if model.positions != "learned":
        return np.full_like(prompt_tokens, extra)
    # The last token is written and not read, so it needs no position.
    return np.minimum(extra, model.max_length + 1 - prompt_tokens)


def _score_translations(run: Run, params: Params, split: Split) -> tuple[dict[str, Any], str]:
    sources, references = split.examples["source"], split.examples["target"]
    once = dataclasses.replace(run.decode, num_samples=1)
    decode = run.data.tokenizer.decode
    hypotheses = [decode(ids) for (ids,) in _generate(run, params, split.batches, once)]
    scores, signatures = evaluate.score_translations(
        *(hypotheses, references, split.examples.get("pronoun")),
        bleu_tokenizer=run.evaluate.bleu_tokenizer,
    )
    signatures = {f"{name}_signature": text for name, text in signatures.items()}
    return scores | signatures, _samples(sources, references, hypotheses)


def _score_classes(run: Run, params: Params, split: Split) -> tuple[dict[str, Any], str]:
    predicted = evaluate.predict(params, split.batches, predict_step=run.predict_step)
    labels = [run.data.labels[label] for (label,) in predicted]
    scores = evaluate.score_classification(labels, split.examples["label"])
    return scores, _samples(split.examples["text"], split.examples["label"], labels)


def _score_tags(run: Run, params: Params, split: Split) -> tuple[dict[str, Any], str]:
    predicted = evaluate.predict(params, split.batches, predict_step=run.predict_step)
    tags = [[run.data.labels[label] for label in labels] for labels in predicted]
    expected = split.examples["tags"]
    texts = [[" ".join(row) for row in rows] for rows in (split.examples["words"], expected, tags)]
    return evaluate.score_tagging(tags, expected), _samples(*texts)


def _masked_samples(run: Run, params: Params, split: Split) -> str:
    """What the model puts in the place of masked tokens, in the first texts of one batch."""
    batch, numbers = split.batches[len(split.batches) // 2]
    batch = {name: rows[:_SAMPLES] for name, rows in batch.items()}
    asked = batch["targets"] > 0
    predicted = run.predict_step(params, batch)
    decode = run.data.tokenizer.decode
    originals = np.where(asked, batch["targets"], batch["inputs"])
    filled = np.where(asked, predicted, batch["inputs"])
    rows = range(int(np.sum(numbers[:_SAMPLES] >= 0)))
    triples = [
        (decode(batch["inputs"][row]), decode(originals[row]), decode(filled[row])) for row in rows
    ]
    return run_log.format_samples(triples)


def _continuations(run: Run, params: Params, split: Split) -> str:
    """What the model writes after the beginnings of a few texts."""
    tokenizer, texts = run.data.tokenizer, split.examples["text"]
    chosen = _spread(texts)
    # No longer than in training, since there may be no more positions.
    most = min(_SAMPLE_TOKENS, run.data.settings.max_target_length)
    # Characters bound tokens, so that of a whole book only the beginning is read.
    ids = [row[:most] for row in tokenizer.encode([text[: 32 * most] for text in chosen])]
    cuts = [min(most // 4, len(row) // 2) for row in ids]
    beginnings = [tokenizer.decode(row[:cut]) for row, cut in zip(ids, cuts, strict=True)]
    prompts = [text.rstrip("\ufffd") for text in beginnings]  # half of a character
    references = [
        tokenizer.decode(row)[len(prompt) :] for row, prompt in zip(ids, prompts, strict=True)
    ]
    decode = dataclasses.replace(run.decode, num_samples=1, extra_length=most - most // 4, stop=())
    outputs = [
        text for (text,) in _results(dataclasses.replace(run, decode=decode), params, prompts)
    ]
    return run_log.format_samples(list(zip(prompts, references, outputs, strict=True)))


def _samples(*columns: Sequence[str]) -> str:
    return run_log.format_samples(_spread(list(zip(*columns, strict=True))))


def _spread(rows: Sequence[Any]) -> list[Any]:
    """The first two (of the embedded corpus: the street's), and others from all over the split."""
    return [*rows[:2], *rows[2 :: math.ceil(len(rows) / _SAMPLES)]]
