"""Decoding against slow NumPy searches over a tiny model whose logits depend on all of the history.

The model keeps the history in its cache, so that ancestors that are wrong change the result.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluation.fakes import BOS, EOS, PAD, counting, own_history, padded
from transformer_jax.evaluation import search as decode

VOCAB = 5
LENGTH = 5


def make_model(seed, batch_size, scale=1.5):
    """Logits: a sentence's bias plus, for each earlier token, a row of its place's table."""
    random = np.random.default_rng(seed)
    tables = (scale * random.normal(size=(LENGTH, VOCAB, VOCAB))).astype(np.float32)
    bias = (scale * random.normal(size=(batch_size, VOCAB))).astype(np.float32)
    return tables, bias


def begun(begin, bias, limit, **sizes):
    """What `begin` makes of sentences that have read bos or another token, as prompts end in."""
    first = BOS + jnp.argmax(jnp.asarray(bias), axis=-1) % 3
    cache = jnp.zeros((len(bias), LENGTH), jnp.int32)
    return begin(first, cache, length=LENGTH, limit=limit, pad=PAD, **sizes)


def make_step(tables, bias):
    tables, bias = jnp.asarray(tables), jnp.asarray(bias)

    def step(cache, tokens, index, ancestors):
        cache = cache.at[:, index].set(tokens)
        history = own_history(cache, ancestors)
        rows = tables[jnp.arange(LENGTH), history]  # (N, T, V)
        mask = (jnp.arange(LENGTH) <= index)[None, :, None]
        logits = jnp.where(mask, rows, 0.0).sum(axis=1)
        per_sentence = tokens.shape[0] // bias.shape[0]
        return logits + jnp.repeat(bias, per_sentence, axis=0), cache

    return step


def log_probs(tables, bias, prefix):
    """Log probabilities of the token after `prefix`, for one sentence, in float64: (V,)."""
    history = [BOS + np.argmax(bias) % 3, *prefix]
    logits = bias.astype(np.float64) + sum(tables[t, token] for t, token in enumerate(history))
    return logits - np.log(np.sum(np.exp(logits)))


def penalised(log_prob, tokens, alpha):
    return log_prob / ((5 + tokens) / 6) ** alpha


def slow_beam_search(tables, bias, limit, alpha, beam_size, ends=(EOS,)):
    """[(score, tokens)]: never stops before the limit, and keeps all that finish."""
    alive, finished = [(0.0, ())], []
    for place in range(1, limit + 1):
        candidates = []
        for total, prefix in alive:
            following = log_probs(tables, bias, prefix)
            for token in range(VOCAB) if place < limit else (EOS,):
                candidates.append((total + following[token], (*prefix, token)))
        candidates.sort(reverse=True)
        finished += [
            (penalised(total, place, alpha), sequence)
            for total, sequence in candidates[:beam_size]
            if sequence[-1] in ends
        ]
        alive = [candidate for candidate in candidates if candidate[1][-1] not in ends][:beam_size]
    return sorted(finished, reverse=True)


@functools.partial(jax.jit, static_argnames=("beam_size", "alpha", "num_results", "ends"))
def search(tables, bias, limit, *, beam_size, alpha, num_results=None, ends=(EOS,)):
    step, num_results = make_step(tables, bias), num_results or beam_size
    return search_by(step, bias, limit, beam_size, alpha, num_results, ends)


def search_by(step, bias, limit, beam_size, alpha, num_results, ends=(EOS,)):
    start = begun(decode.begin_beams, bias, limit, beam_size=beam_size, num_results=num_results)
    extend = functools.partial(decode.extend_beams, step=step, length_penalty=alpha, ends=ends)
    end = decode.advance(start, extend, LENGTH)
    return end.finished_tokens, end.finished_scores


def complete(tables, bias, limit, choose, num_results, ends=(EOS,)):
    """The tokens (B, R, T) of greedy decoding or of samples."""
    start = begun(decode.begin, bias, limit, num_results=num_results)
    step = make_step(tables, bias)
    extend = functools.partial(decode.extend, step=step, choose=choose, ends=ends, pad=PAD)
    return decode.advance(start, extend, LENGTH).tokens.reshape(-1, num_results, LENGTH)


@functools.partial(jax.jit, static_argnums=3)
def decode_greedily(tables, bias, limit, ends=(EOS,)):
    return complete(tables, bias, limit, decode.greedy, 1, ends)


@functools.partial(jax.jit, static_argnames=("temperature", "top_k", "top_p"))
def draw(tables, bias, limit, keys, *, temperature=1.0, top_k=0, top_p=1.0):
    """`keys` (B, R): as many samples of each sentence."""
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    choose = decode.sampler(keys.reshape(-1), **settings)
    return complete(tables, bias, limit, choose, keys.shape[1])


def keys_of(seed, *shape):
    return jax.random.split(jax.random.key(seed), shape)


@pytest.mark.parametrize(
    ("beam_size", "alpha", "num_results", "ends"),
    [
        (1, 0.6, 1, (EOS,)),
        (2, 0.0, 2, (EOS,)),
        (3, 0.6, 2, (EOS, 4)),  # where the limit ends a text, the first id does
        (3, 3.0, 2, (EOS,)),
        (3, -1.0, 3, (EOS,)),
        (7, 0.6, 7, (EOS,)),
        (2, -50.0, 1, (EOS,)),
    ],
)
def test_an_early_stop_finds_what_a_search_to_the_end_does(beam_size, alpha, num_results, ends):
    # So many because a bound that is wrong by a little changes the result of few sentences.
    limit = np.array([5] * 250 + [4, 3] * 25)
    tables, bias = make_model(0, len(limit), scale=3.0)
    expected = [
        slow_beam_search(tables, bias[row], limit[row], alpha, beam_size, ends)[:num_results]
        for row in range(len(limit))
    ]
    assert {*ends} == {sequence[-1] for beam in expected for _, sequence in beam}
    sizes = {"beam_size": beam_size, "num_results": num_results}
    tokens, scores = search(tables, bias, limit, **sizes, alpha=alpha, ends=ends)
    nothing = (-np.inf, ())
    expected = [best + [nothing] * (num_results - len(best)) for best in expected]
    of_sequences = [padded([sequence for _, sequence in best], LENGTH) for best in expected]
    np.testing.assert_array_equal(tokens, of_sequences)
    of_scores = [[score for score, _ in best] for best in expected]
    np.testing.assert_allclose(scores, of_scores, rtol=1e-5, atol=1e-5)


def test_a_constant_added_to_all_logits_changes_nothing():
    """Neither how many hypotheses finish where the limit leaves room for few."""
    limit = np.array([1, 1, 2, 5])
    tables, bias = make_model(3, len(limit))
    (expected, expected_scores), *others = (
        search(tables, bias + level, limit, beam_size=4, alpha=0.6) for level in (0, -256, 256)
    )
    np.testing.assert_array_equal(np.isfinite(expected_scores[:2]).sum(axis=1), 1)
    for tokens, scores in others:
        np.testing.assert_array_equal(tokens, expected)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-3)


def test_early_stop_saves_steps():
    """A model that is sure of "3 eos" is asked for two tokens only."""
    tables, bias = np.zeros((LENGTH, VOCAB, VOCAB), np.float32), np.zeros((2, VOCAB), np.float32)
    tables[0, BOS, 3], tables[1, 3, EOS] = 20.0, 40.0
    calls = []
    step = counting(make_step(tables, bias), calls)
    search_by(step, bias, jnp.full((2,), LENGTH), 2, 0.6, 1)
    jax.effects_barrier()
    assert sorted(calls) == [0, 1]


@pytest.mark.parametrize("ends", [(EOS,), (EOS, 4)])
def test_greedy_takes_the_likeliest_token_at_each_place(ends):
    limit = np.array([5, 5, 5, 4, 2, 1, 0, 50])
    for seed in range(4):
        tables, bias = make_model(seed, len(limit))
        tokens = np.asarray(decode_greedily(tables, bias, limit, ends))
        for row, most in enumerate(np.minimum(limit, LENGTH)):
            sequence = []
            while len(sequence) < most and not {*ends} & {*sequence}:
                following = log_probs(tables, bias[row], sequence)
                sequence.append(EOS if len(sequence) + 1 == most else int(np.argmax(following)))
            np.testing.assert_array_equal(tokens[row], padded([sequence], LENGTH))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.7), (1.5, 4, 0.6), (1.0, 99, 0.01)],
)
def test_samples_follow_the_truncated_distribution(temperature, top_k, top_p):
    draws = 4000
    tables, bias = make_model(11, 1, scale=0.8)
    bias[0, EOS] = -30.0  # the second place then shows the conditional distribution
    logits = log_probs(tables, bias[0], ()) / temperature
    expected = np.exp(logits) / np.sum(np.exp(logits))
    order = np.argsort(-expected)
    expected[order[top_k or VOCAB :]] = 0.0
    expected /= expected.sum()
    while expected.sum() - expected[expected > 0].min() >= top_p:  # the least likely may go
        expected[np.argmin(np.where(expected > 0, expected, 2.0))] = 0.0
    expected /= expected.sum()

    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    tokens = draw(tables, bias, np.array([2]), keys_of(3, 1, draws), **settings)
    frequencies = np.bincount(tokens[0, :, 0], minlength=VOCAB) / draws
    assert np.all(frequencies[expected == 0] == 0)
    np.testing.assert_allclose(frequencies, expected, atol=5 * math.sqrt(0.25 / draws))
    assert np.all(tokens[0, :, 1] == EOS)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.9), (3, 0.9)])
def test_a_temperature_near_zero_takes_the_likeliest(top_k, top_p):
    """Wherever the logits lie, and whatever is cut off."""
    vocab_size = 5  # which blocks do not divide
    logits = np.random.default_rng(0).normal(size=(3, 64, vocab_size)).astype(np.float32)
    logits += np.array([-40.0, 0.0, 90.0], np.float32)[:, None, None]
    logits = logits.reshape(-1, vocab_size)
    keys = keys_of(0, len(logits))
    choose = decode.sampler(keys, temperature=1e-8, top_k=top_k, top_p=top_p)
    np.testing.assert_array_equal(jax.jit(choose)(logits, 0), logits.argmax(axis=1))


@pytest.mark.parametrize("vocab_size", [5, 64, 1000, 4097])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_the_likeliest_are_those_of_a_sort(vocab_size, k):
    """Where logits are equal, as many are here, it may be any of them, each once."""
    k = min(k, vocab_size)
    generator = np.random.default_rng(vocab_size)
    logits = np.round(generator.normal(size=(50, vocab_size)), 1).astype(np.float32)
    logits[0], logits[1, 3:] = 0.0, -np.inf
    values, ids = jax.jit(decode.likeliest, static_argnums=1)(logits, k)
    np.testing.assert_array_equal(values, -np.sort(-logits, axis=1)[:, :k])
    np.testing.assert_array_equal(values, np.take_along_axis(logits, np.asarray(ids), axis=1))
    assert all(len(set(row)) == k for row in ids.tolist())


def test_samples_of_a_large_vocabulary_follow_its_distribution():
    """Tokens of the same and of different blocks, the last and incomplete one among them."""
    draws, vocab_size = 20000, 1003
    logits = np.full(vocab_size, -20.0, np.float32)
    likely = np.array([0, 1, 31, 32, 500, vocab_size - 1])
    logits[likely] = np.log([0.3, 0.2, 0.1, 0.2, 0.15, 0.05])
    choose = decode.sampler(keys_of(0, draws), temperature=1.0, top_k=0, top_p=1.0)
    tokens = np.asarray(jax.jit(choose)(np.tile(logits, (draws, 1)), 3))
    assert tokens.min() >= 0 and tokens.max() < vocab_size
    frequencies = np.bincount(tokens, minlength=vocab_size) / draws
    expected = np.exp(logits) / np.sum(np.exp(logits))
    np.testing.assert_allclose(frequencies, expected, atol=5 * math.sqrt(0.25 / draws))


def test_places_of_a_sample_are_drawn_independently():
    """Neither of the places before them, nor of the other samples of their sentence."""
    tables, bias = np.zeros((LENGTH, VOCAB, VOCAB), np.float32), np.zeros((1, VOCAB), np.float32)
    bias[:, EOS] = -30.0
    draws = 2000
    tokens = np.asarray(draw(tables, bias, np.array([LENGTH]), keys_of(1, 1, draws)))[0]
    for one, other in [(tokens[:, 0], tokens[:, 1]), (tokens[:-1, 0], tokens[1:, 0])]:
        assert abs(np.mean(one == other) - 1 / (VOCAB - 1)) < 5 * math.sqrt(0.25 / draws)
