"""Greedy decoding, sampling and beam search with a cached step; each is pure and runs under jit.

Letters: B sentences, K hypotheses of a sentence (the beam), R results of a sentence, N = B * R or
B * K rows of the step, V vocabulary, T static length. The cache is any pytree whose leaves have
shape (N, ...), rows of one sentence adjacent; what belongs to a sentence alone is closed over by
the step and never copied. It comes for B rows and is repeated here.

The rows of a beam's cache stay where they are: what a hypothesis has read lies scattered over the
rows of its sentence, and `ancestors` says where. So no step copies the cache.

Every hypothesis ends with eos and has at most `limit` tokens, eos included: the last place that a
limit leaves can only be eos, at the probability that the model gives it. So a beam's score is the
log probability of a whole sequence, and a sentence's result depends on no other row of its batch. A
limit of 0 decodes nothing. What is read before anything is decoded, `first`, is in no result.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

# The log probability of what cannot be. Finite, so that no inf - inf makes a NaN.
IMPOSSIBLE = -1e9

Cache = PyTree[Shaped[Array, "N ..."]]
# ancestors[b, k, t]: the row of sentence b, from 0, that read what hypothesis k has at place t
Ancestors = Int[Array, "B K T"]
# (cache, tokens (N,), number of tokens decoded before (), ancestors) -> (logits (N, V), cache). A
# row without ancestors continues itself.
NextLogits = Callable[[Cache, Array, Array, Ancestors | None], tuple[Array, Cache]]
# (logits (N, V), number of tokens decoded before ()) -> tokens (N,)
ChooseFn = Callable[[Array, Array], Array]


def greedy(logits: Float[Array, "N V"], index: Int[Array, ""]) -> Int[Array, "N"]:
    """The likeliest token of each row."""
    return likeliest(logits, 1)[1][:, 0]


def likeliest(logits: Float[Array, "N V"], k: int) -> tuple[Float[Array, "N k"], Int[Array, "N k"]]:
    """`lax.top_k`, without sorting the vocabulary; also several times faster than argmax on CPU.

    The k best tokens lie in the k blocks whose best tokens are best.
    """
    rows, vocab_size = logits.shape
    # About as many blocks as there are candidates in the end
    size = 1 << max(3, round(math.log2(vocab_size / k) / 2))
    count = vocab_size // size
    if count <= 2 * k:
        return lax.top_k(logits, k)
    whole = size * count
    blocks = logits[:, :whole].reshape(rows, count, size)
    _, best = lax.top_k(jnp.max(blocks, axis=-1), k)
    ids = (best[:, :, None] * size + jnp.arange(size)[None, None]).reshape(rows, -1)
    of_best = jnp.take_along_axis(blocks, best[:, :, None], axis=1).reshape(rows, -1)
    rest = jnp.broadcast_to(jnp.arange(whole, vocab_size)[None], (rows, vocab_size - whole))
    candidates = jnp.concatenate([of_best, logits[:, whole:]], axis=1)
    values, indices = lax.top_k(candidates, k)
    return values, jnp.take_along_axis(jnp.concatenate([ids, rest], axis=1), indices, axis=1)


def sampler(keys: Key[Array, "N"], *, temperature: float, top_k: int, top_p: float) -> ChooseFn:
    """Draws tokens from the model's distribution, sharpened and cut off in this order:

    logits / temperature, then the `top_k` likeliest tokens (0: all), then of these the fewest whose
    share of the mass reaches `top_p` (nucleus sampling, Holtzman et al. 2020, arXiv 1904.09751).
    One key a row, so that a draw does not depend on the rest of the batch. With `top_p` below 1 and
    `top_k` 0 the vocabulary is sorted at each place, which is slow on CPU.
    """
    categorical = jax.vmap(jax.random.categorical)

    def draw_of_all(step_keys: Array, logits: Array) -> Array:
        """A block by its mass, then one of its tokens: a noise for each token would cost more."""
        size = 1 << round(math.log2(logits.shape[-1]) / 2)
        missing = -logits.shape[-1] % size
        padded = jnp.pad(logits, [(0, 0), (0, missing)], constant_values=IMPOSSIBLE)
        blocks = padded.reshape(len(logits), -1, size)
        of_block, of_token = jnp.moveaxis(jax.vmap(jax.random.split)(step_keys), 1, 0)
        block = categorical(of_block, jax.nn.logsumexp(blocks, axis=-1))
        within = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
        return block * size + categorical(of_token, within)

    def draw(logits: Array, index: Array) -> Array:
        step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, index)
        # So that none is large for a low temperature, and what is cut off stays below all others.
        logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature
        if top_k == 0 and top_p == 1:
            return draw_of_all(step_keys, logits)
        vocab_size = logits.shape[-1]
        logits, ids = likeliest(logits, min(top_k, vocab_size) if top_k else vocab_size)
        probabilities = jax.nn.softmax(logits)
        # The mass of the likelier tokens: 0 for the first, which therefore always stays.
        mass_before = jnp.cumsum(probabilities, axis=-1) - probabilities
        logits = jnp.where(mass_before < top_p, logits, IMPOSSIBLE)
        ranks = categorical(step_keys, logits)
        return jnp.take_along_axis(ids, ranks[:, None], axis=1)[:, 0]

    return draw


class Hypotheses(NamedTuple):
    """Growing hypotheses, one a row: token ids, eos and then padding at the end."""

    index: Int[Array, ""]  # tokens decoded so far
    cache: Cache
    limit: Int[Array, "N"]
    last: Int[Array, "N"]
    tokens: Int[Array, "N T"]
    done: Bool[Array, "N"]


def begin(
    first: Int[Array, "B"],
    cache: Cache,
    *,
    num_results: int,
    length: int,
    limit: Int[Array, "B"],
    pad: int,
) -> Hypotheses:
    """`num_results` empty hypotheses of each sentence, in adjacent rows.

    `length` is the static size, `limit` each sentence's own (at most `length`).
    """
    limit = jnp.repeat(jnp.minimum(limit, length), num_results)
    rows = limit.shape[0]
    return Hypotheses(
        index=jnp.int32(0),
        cache=_repeat(cache, num_results),
        limit=limit,
        last=jnp.repeat(first.astype(jnp.int32), num_results),
        tokens=jnp.full((rows, length), pad, jnp.int32),
        done=limit < 1,
    )


def extend(
    hypotheses: Hypotheses, step: NextLogits, choose: ChooseFn, *, ends: tuple[int, ...], pad: int
) -> Hypotheses:
    """Each hypothesis that is not done by one token, `last`; the others by padding.

    choose: `greedy`, or a `sampler`.
    """
    index, done = hypotheses.index, hypotheses.done
    logits, cache = step(hypotheses.cache, hypotheses.last, index, None)
    token = choose(logits.astype(jnp.float32), index).astype(jnp.int32)
    token = jnp.where(index + 1 >= hypotheses.limit, ends[0], token)
    token = jnp.where(done, pad, token)
    return hypotheses._replace(
        index=index + 1,
        cache=cache,
        last=token,
        tokens=hypotheses.tokens.at[:, index].set(token),
        done=done | jnp.isin(token, jnp.array(ends)),
    )


class Beams(NamedTuple):
    """Growing (alive) hypotheses and the best finished ones, each sorted best first.

    Where fewer than R hypotheses have finished, the rest is padding with the score -inf.
    """

    index: Int[Array, ""]  # tokens decoded so far
    cache: Cache
    ancestors: Ancestors
    limit: Int[Array, "B"]
    last: Int[Array, "B K"]
    tokens: Int[Array, "B K T"]
    log_probs: Float[Array, "B K"]
    finished_tokens: Int[Array, "B R T"]
    finished_scores: Float[Array, "B R"]
    done: Bool[Array, "B"]


def begin_beams(
    first: Int[Array, "B"],
    cache: Cache,
    *,
    beam_size: int,
    num_results: int,
    length: int,
    limit: Int[Array, "B"],
    pad: int,
) -> Beams:
    """Empty beams, of which one starts: the others of its sentence would be its copies.

    num_results: R, the results of each sentence. The rest as of `begin`.
    """
    batch_size = first.shape[0]
    limit = jnp.minimum(limit, length)
    log_probs = jnp.where(jnp.arange(beam_size) == 0, 0.0, IMPOSSIBLE).astype(jnp.float32)
    return Beams(
        index=jnp.int32(0),
        cache=_repeat(cache, beam_size),
        ancestors=jnp.zeros((batch_size, beam_size, length), jnp.int32),
        limit=limit,
        last=jnp.tile(first.astype(jnp.int32)[:, None], (1, beam_size)),
        tokens=jnp.full((batch_size, beam_size, length), pad, jnp.int32),
        log_probs=jnp.tile(log_probs, (batch_size, 1)),
        finished_tokens=jnp.full((batch_size, num_results, length), pad, jnp.int32),
        finished_scores=jnp.full((batch_size, num_results), -jnp.inf, jnp.float32),
        done=limit < 1,
    )


def extend_beams(
    beams: Beams, step: NextLogits, *, length_penalty: float, ends: tuple[int, ...]
) -> Beams:
    """Keeps the K likeliest growing hypotheses of each sentence, longer by one token.

    A hypothesis finishes when its eos is among the K best continuations of its sentence; the alive
    ones are refilled to K. So a beam of 1 without length penalty is greedy decoding. Its score is
    log P(hypothesis) / ((5 + tokens) / 6)^length_penalty (Wu et al. 2016, arXiv 1609.08144,
    equation 14, without the coverage term).

    A sentence stops, exactly, when no alive hypothesis can still beat its worst result: log
    probabilities only fall, so the best to hope for is today's with the most favourable length.
    Fewer results therefore stop sooner, and change nothing in those that are kept.
    """
    index, (batch_size, beam_size, _) = beams.index, beams.tokens.shape

    def penalised(log_probs: Array, tokens: Array) -> Array:
        return log_probs / ((5 + tokens.astype(jnp.float32)) / 6) ** length_penalty

    # Each row reads its hypothesis' newest token itself.
    ancestors = beams.ancestors.at[:, :, index].set(jnp.arange(beam_size)[None])
    logits, cache = step(beams.cache, beams.last.reshape(-1), index, ancestors)
    is_last = index + 1 == beams.limit
    log_probs, ids = _continuations(logits, is_last, beam_size, ends)

    # Of (E + 1) K candidates at most E K end (one a beam and eos), which leaves K to continue.
    width = ids.shape[-1]
    log_probs = (beams.log_probs[:, :, None] + log_probs).reshape(batch_size, -1)
    log_probs, candidates = lax.top_k(log_probs, (1 + len(ends)) * beam_size)
    ids = jnp.take_along_axis(ids.reshape(batch_size, -1), candidates, axis=1)
    parents = candidates // width
    tokens = _take_rows(beams.tokens, parents).at[:, :, index].set(ids)
    is_eos = jnp.isin(ids, jnp.array(ends))

    finishes = (is_eos & (log_probs > IMPOSSIBLE / 2))[:, :beam_size] & ~beams.done[:, None]
    # A strong negative penalty takes real scores below `IMPOSSIBLE`.
    scores = jnp.where(finishes, penalised(log_probs[:, :beam_size], index + 1), -jnp.inf)
    scores = jnp.concatenate([beams.finished_scores, scores], axis=1)
    finished_tokens = jnp.concatenate([beams.finished_tokens, tokens[:, :beam_size]], axis=1)
    finished_scores, best = lax.top_k(scores, beams.finished_scores.shape[1])

    alive_log_probs, alive = lax.top_k(jnp.where(is_eos, IMPOSSIBLE, log_probs), beam_size)
    # A positive penalty favours the longest hypothesis to come, any other the shortest.
    longest = beams.limit if length_penalty > 0 else index + 2
    hope = penalised(alive_log_probs[:, 0], longest)
    return beams._replace(
        index=index + 1,
        cache=cache,
        ancestors=_take_rows(ancestors, jnp.take_along_axis(parents, alive, axis=1)),
        last=jnp.take_along_axis(ids, alive, axis=1),
        tokens=_take_rows(tokens, alive),
        log_probs=alive_log_probs,
        finished_tokens=_take_rows(finished_tokens, best),
        finished_scores=finished_scores,
        done=beams.done | is_last | (hope <= finished_scores[:, -1]),
    )


def advance(start: Any, extend: Callable[[Any], Any], until: int) -> Any:
    """Extends until all sentences are done, or have so many tokens."""
    return lax.while_loop(lambda state: ~jnp.all(state.done) & (state.index < until), extend, start)


def _continuations(
    logits: Float[Array, "N V"], is_last: Bool[Array, "B"], beam_size: int, ends: tuple[int, ...]
) -> tuple[Float[Array, "B K W"], Int[Array, "B K W"]]:
    """Log probabilities and ids of each beam's W likeliest tokens: enough for K that are not eos.

    Where the place is the last, the first eos takes the first slot and the others are impossible.
    """
    logits = logits.astype(jnp.float32).reshape(is_last.shape[0], beam_size, -1)
    normaliser = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    by_row = logits.reshape(-1, logits.shape[-1])
    width = min(beam_size + len(ends), logits.shape[-1])
    beams = (is_last.shape[0], beam_size, width)
    values, ids = (array.reshape(beams) for array in likeliest(by_row, width))
    only_eos = jnp.full_like(values, IMPOSSIBLE).at[:, :, 0].set(logits[:, :, ends[0]])
    is_last = is_last[:, None, None]
    log_probs = jnp.where(is_last, only_eos, values) - normaliser
    return log_probs, jnp.where(is_last, ends[0], ids)


def _take_rows(tokens: Int[Array, "B J T"], rows: Int[Array, "B K"]) -> Int[Array, "B K T"]:
    return jnp.take_along_axis(tokens, rows[:, :, None], axis=1)


def _repeat(cache: Cache, times: int) -> Cache:
    """Each row so many times, side by side."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), cache)
