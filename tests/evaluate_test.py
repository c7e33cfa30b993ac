"""Evaluation and translation with tiny functions in the place of a model."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import evaluate
from transformer_jax.decode import DecodeSettings

PAD, EOS, BOS = 0, 1, 2
VOCAB = 12
BEAM = DecodeSettings(
    method="beam",
    beam_size=3,
    length_penalty=0.6,
    extra_length=2,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
)
SOURCES = [[3, 4, 5, EOS], [9, EOS], [7, 7, 8, 6, 3, EOS], [EOS], [4, 11, EOS]]


def padded(rows, length):
    return np.array([[*row, *[PAD] * (length - len(row))] for row in rows], np.int32)


def batch_of(numbers, length):
    """The numbered sources, -1 for a row of padding, and targets that decoding must not read."""
    rows = [SOURCES[number] if number >= 0 else [] for number in numbers]
    inputs = padded(rows, length)
    batch = {
        "inputs": inputs,
        "inputs_segment_ids": padded([[1] * len(row) for row in rows], length),
        "inputs_positions": padded([range(len(row)) for row in rows], length),
        "targets": np.zeros((len(rows), length + numbers[0]), np.int32),
    }
    return batch, np.array(numbers)


class Copier:
    """A "model" that prefers to copy its source, as pure functions; counts how often it is traced.

    After the source's row it goes on with the token params["end"].
    """

    def __init__(self):
        self.traces = 0

    def start(self, params, batch, max_length):
        self.traces += 1
        assert set(batch) == {"inputs", "inputs_segment_ids", "inputs_positions"}
        size = (1, batch["inputs"].shape[0], max_length)
        return batch["inputs"], {"history": jnp.zeros(size, jnp.int32)}

    def step(self, params, context, cache, tokens, index):
        source = jnp.pad(context, ((0, 0), (0, BEAM.extra_length)), constant_values=params["end"])
        wanted = jnp.repeat(source[:, index], tokens.shape[0] // context.shape[0])
        logits = params["scale"] * jax.nn.one_hot(wanted, VOCAB)
        return logits, {"history": cache["history"].at[0, :, index].set(tokens)}


def sure(end=EOS, scale=20.0):
    return {"scale": jnp.float32(scale), "end": jnp.int32(end)}


def translate(model, batches, *, params=None, settings=BEAM, key=0):
    return evaluate.translate(
        params or sure(),
        batches,
        start=model.start,
        step=model.step,
        settings=settings,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=PAD,
        key=jax.random.key(key),
    )


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_translations_come_in_the_order_of_the_examples(method):
    settings = dataclasses.replace(BEAM, method=method, temperature=0.5)
    batches = [batch_of([2, 0, 4], 6), batch_of([3, 1, -1], 4)]
    expected = [source[:-1] for source in SOURCES]
    assert translate(Copier(), batches, settings=settings) == expected


def test_each_shape_of_inputs_is_compiled_once_over_all_calls():
    model = Copier()
    batches = [batch_of([2, 0, 4], 6), batch_of([3, 1, -1], 4), batch_of([1, 3, 4], 4)]
    translate(model, batches[:2])
    assert model.traces == 2
    translate(model, batches, params=sure(scale=10.0))
    assert model.traces == 2
    translate(model, batches, settings=dataclasses.replace(BEAM, beam_size=2))
    assert model.traces == 4


def test_a_translation_is_as_long_as_its_own_source_allows():
    """A model that never ends its sentence is cut at source tokens + extra_length, eos included."""
    endless = {"scale": jnp.float32(20.0), "end": jnp.int32(5)}
    rows = [[3, 3, 3], [3]]
    inputs = padded(rows, 3)
    batch = {
        "inputs": np.where(inputs == PAD, 5, inputs),
        "inputs_segment_ids": (inputs != PAD).astype(np.int32),
        "inputs_positions": np.zeros_like(inputs),
    }
    translations = translate(Copier(), [(batch, np.array([0, 1]))], params=endless)
    assert [len(row) + 1 for row in translations] == [len(row) + BEAM.extra_length for row in rows]


def test_rows_of_padding_do_not_prolong_decoding():
    """The padding's "model" never ends, so that decoding it would take every step there is."""
    calls = []

    class Counting(Copier):
        def step(self, params, context, cache, tokens, index):
            jax.debug.callback(lambda index: calls.append(int(index)), index)
            return super().step(params, context, cache, tokens, index)

    batch, numbers = batch_of([1, -1, -1], 6)
    batch["inputs"][1:], batch["inputs_segment_ids"][1:] = 5, 1
    greedy = dataclasses.replace(BEAM, method="greedy")
    translate(Counting(), [(batch, np.array([0, -1, -1]))], settings=greedy)
    jax.effects_barrier()
    assert sorted(calls) == [0, 1]
    calls.clear()
    translate(Counting(), [(batch, np.array([0, 1, 2]))], settings=greedy)
    jax.effects_barrier()
    assert len(calls) > 2


def test_samples_depend_on_the_example_and_the_key_alone():
    settings = dataclasses.replace(BEAM, method="sample")
    vague = sure(scale=1.0)
    one_way = [batch_of([2, 0, 4], 6), batch_of([3, 1, -1], 6)]
    another = [batch_of([4, -1, 3], 6), batch_of([1, 2, 0], 6)]
    first = translate(Copier(), one_way, params=vague, settings=settings, key=1)
    assert translate(Copier(), another, params=vague, settings=settings, key=1) == first
    assert translate(Copier(), one_way, params=vague, settings=settings, key=2) != first


def objective(apply_fn, params, batch, rng):
    """Mean distance of the prediction from y, over the rows with a weight."""
    assert rng is None
    error = jnp.abs(apply_fn(params, batch, rng) - batch["y"])
    weight = jnp.sum(batch["weights"])
    total = jnp.sum(error * batch["weights"])
    return total, weight, {"loss": (total, weight), "token_loss": (2 * total, weight)}


def test_evaluation_does_not_depend_on_how_batches_are_cut():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 12)).astype(np.float32)
    weights = np.array([1] * 10 + [0] * 2, np.float32)

    def batches(size):
        for rows in np.split(np.arange(12), 12 // size):
            yield {"x": x[rows], "y": y[rows], "weights": weights[rows]}, rows

    eval_step = evaluate.make_eval_step(objective, lambda params, batch, rng: params * batch["x"])
    expected = np.mean(np.abs(3 * x[:10].astype(np.float64) - y[:10]))
    for size in (12, 4, 3, 1):
        result = evaluate.evaluate(jnp.float32(3), batches(size), eval_step=eval_step)
        assert set(result) == {"loss", "token_loss", "perplexity"}
        assert result["loss"] == pytest.approx(expected, rel=1e-6)
        assert result["perplexity"] == pytest.approx(np.exp(2 * expected), rel=1e-5)


def test_an_eval_step_is_compiled_once_per_shape():
    traces = []

    def apply_fn(params, batch, rng):
        traces.append(batch["x"].shape)
        return batch["x"]

    eval_step = evaluate.make_eval_step(objective, apply_fn)
    for size in (4, 2, 4, 2):
        batch = {name: np.ones((size,), np.float32) for name in ("x", "y", "weights")}
        evaluate.evaluate(0.0, [(batch, np.arange(size))], eval_step=eval_step)
    assert traces == [(4,), (2,)]


def test_evaluation_needs_batches():
    with pytest.raises(ValueError, match="no batches"):
        evaluate.evaluate(0.0, [], eval_step=lambda params, batch: {})


def test_translations_are_scored_under_flat_names():
    hypotheses = ["Das Tier war müde , weil es lief .", "Ein Hund"]
    references = ["Das Tier war müde , weil es lief .", "Ein Hund bellt"]
    score = functools.partial(evaluate.score_translations, bleu_tokenizer="none")
    scores, signatures = score(hypotheses, references, ["es", ""])
    assert set(scores) == {"bleu", "chrf", "exact_match", "pronoun_accuracy"}
    assert 0 < scores["bleu"] < 100 and 0 < scores["chrf"] < 100
    assert (scores["exact_match"], scores["pronoun_accuracy"]) == (0.5, 1.0)
    assert "tok:none" in signatures["bleu"] and set(signatures) == {"bleu", "chrf"}
    for pronouns in (None, ["", ""]):
        assert "pronoun_accuracy" not in score(hypotheses, references, pronouns)[0]
