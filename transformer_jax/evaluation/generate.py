"""What a model writes: translations and continuations of batches of prompts, or piece by piece."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, Shaped

from transformer_jax.devices.memory import Checked
from transformer_jax.devices.mesh import constrain
from transformer_jax.evaluation import search as decoding
from transformer_jax.evaluation.by_batch import fetch
from transformer_jax.evaluation.search import Beams, DecodeSettings, Hypotheses

Batch = Mapping[str, Shaped[Array | np.ndarray, "B ..."]]
# A batch and the number of the example in each of its rows; -1 marks a row of padding.
NumberedBatch = tuple[Batch, Int[np.ndarray, "B"]]
# (params, inputs of a batch, room for tokens) -> (what is read first (B,), context, cache); the
# cache's method `enlarged` gives one with room for so many tokens more.
StartFn = Callable[[Any, dict[str, Any], int], tuple[Array, Any, Any]]
# (params, context, cache, tokens (N,), index (), ancestors or None) -> (logits (N, V), cache)
StepFn = Callable[[Any, Any, Any, Array, Array, Any], tuple[Array, Any]]
# tokens of prompts (B,) -> most tokens of what is generated from them, eos included (B,)
LimitFn = Callable[[Int[np.ndarray, "B"]], Int[np.ndarray, "B"]]


def generate(
    params: Any,
    batches: Iterable[NumberedBatch],
    *,
    start: StartFn,
    step: StepFn,
    settings: DecodeSettings,
    eos_ids: tuple[int, ...],
    pad_id: int,
    key: Key[Array, ""],
    limit: LimitFn,
) -> list[list[list[int]]]:
    """Translations or continuations: `settings.num_samples` of each example, as token ids.

    The ids come without eos, the examples in the order of their numbers. Rows of padding are not
    decoded. Compiled once per shape of the inputs, also over several calls, as long as `start` and
    `step` stay the same objects. `settings.stop` is not looked at: `cut_at_stop` cuts the texts.

    Args:
      eos_ids: that end a text; where the limit ends it, the first one stands.
      batches: as of pipeline's eval_batches or prompt_batches; only `inputs` keys are read.
      key: for sampling. Every sample of an example draws by the example's number and its own,
        whatever its batch.
      limit: most tokens by the number of tokens of the prompt; nothing is decoded where it is 0.
    """
    batches = list(batches)

    def decode(batch: Batch, numbers: Int[np.ndarray, "B"]) -> Int[Array, "B R T"]:
        prompts = _prompts(batch, numbers, settings, key, limit)
        return decode_batch(
            params,
            prompts.inputs,
            prompts.limit,
            prompts.keys,
            start=start,
            step=step,
            settings=settings,
            rooms=rooms_of(prompts.length),
            eos_ids=eos_ids,
            pad_id=pad_id,
        )

    def before_eos(ids: list[int]) -> list[int]:
        ends = (place for place, i in enumerate(ids) if i in eos_ids)
        return ids[: next(ends, 0)]  # no eos: the limit was 0

    results = {}
    for tokens, (_, numbers) in zip(fetch("Decoding", decode, batches), batches, strict=True):
        for rows, number in zip(tokens.tolist(), numbers.tolist(), strict=True):
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
    eos_ids: tuple[int, ...],
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
        settings=settings,
        room=prompts.length,
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
            eos_ids=eos_ids,
            pad_id=pad_id,
        )
        newest = np.asarray(hypotheses.last).tolist()
        for row in np.flatnonzero(~ended).tolist():
            ended[row] = newest[row] in eos_ids
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


def decode_batch(
    params: Any,
    inputs: Mapping[str, Int[Array | np.ndarray, "B S"]],
    limit: Int[Array | np.ndarray, "B"],
    keys: Key[Array, "N"],
    *,
    start: StartFn,
    step: StepFn,
    settings: DecodeSettings,
    rooms: Sequence[int],
    eos_ids: tuple[int, ...],
    pad_id: int,
) -> Int[Array, "B R T"]:
    """The tokens of each row's samples, or of its best hypothesis.

    rooms: for how many tokens the cache has room, at first and then where these were not enough;
      the last are all. `rooms_of` gives them. With one room this can be compiled as a whole.
    """
    context, state = _begin(
        params,
        inputs,
        limit,
        start=start,
        settings=settings,
        room=rooms[0],
        length=rooms[-1],
        pad_id=pad_id,
    )
    names = {"settings": settings, "eos_ids": eos_ids, "pad_id": pad_id}
    for room, larger in itertools.zip_longest(rooms, rooms[1:]):
        state, done = _checked_advance(params, context, state, keys, step=step, until=room, **names)
        if larger is None or bool(done):
            break
        state = _enlarge(state, larger - room)
    if isinstance(state, Beams):
        return _whole(state.finished_tokens)
    return _whole(state.tokens.reshape(-1, settings.num_samples, rooms[-1]))


def rooms_of(length: int) -> tuple[int, ...]:
    """32, 64, 128 ... up to `length` tokens: most sentences end long before their limit.

    What a step costs grows with the room that it looks at. Each room is compiled when it is
    first entered.
    """
    rooms = (32 << power for power in itertools.count())
    return (*itertools.takewhile(lambda room: room < length, rooms), length)


@functools.partial(jax.jit, static_argnames=("start", "settings", "room", "length", "pad_id"))
def _begin(
    params: Any,
    inputs: Mapping[str, Int[Array | np.ndarray, "B S"]],
    limit: Int[Array | np.ndarray, "B"],
    *,
    start: StartFn,
    settings: DecodeSettings,
    room: int,
    length: int,
    pad_id: int,
) -> tuple[Any, Hypotheses | Beams]:
    """The context of the prompts, and hypotheses without tokens."""
    first, context, cache = start(params, dict(inputs), room)
    sizes = {"length": length, "limit": jnp.asarray(limit), "pad_id": pad_id}
    if settings.method == "beam":
        beam_size, num_results = settings.beam_size, settings.num_samples
        beams = decoding.begin_beams(
            first, cache, beam_size=beam_size, num_results=num_results, **sizes
        )
        return context, beams
    return context, decoding.begin(first, cache, num_results=settings.num_samples, **sizes)


# What is extended is donated, or each call would copy the cache.
@functools.partial(
    jax.jit,
    static_argnames=("step", "settings", "until", "eos_ids", "pad_id"),
    donate_argnames="state",
)
def _advance(
    params: Any,
    context: Any,
    state: Hypotheses | Beams,
    keys: Key[Array, "N"],
    *,
    step: StepFn,
    settings: DecodeSettings,
    until: int,
    eos_ids: tuple[int, ...],
    pad_id: int,
) -> tuple[Any, Bool[Array, ""]]:
    """The state when all sentences are done or have so many tokens, and whether all are done."""
    next_logits = functools.partial(step, params, context)
    extend = _extension(next_logits, settings, keys, eos_ids, pad_id)
    end = decoding.advance(state, extend, until)
    return end, constrain(jnp.all(end.done))


_checked_advance = Checked(
    _advance, "decoding", "evaluate.batch_size, decode.beam_size or decode.num_samples"
)


@functools.partial(jax.jit, static_argnames="by")
def _enlarge(state: Hypotheses | Beams, by: int) -> Any:
    return state._replace(cache=state.cache.enlarged(by))


_whole = jax.jit(constrain)


# As above; of one token, whose text is wanted at once.
@functools.partial(
    jax.jit,
    static_argnames=("step", "settings", "eos_ids", "pad_id"),
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
    eos_ids: tuple[int, ...],
    pad_id: int,
) -> Hypotheses:
    next_logits = functools.partial(step, params, context)
    extended = _extension(next_logits, settings, keys, eos_ids, pad_id)(hypotheses)
    return extended._replace(last=constrain(extended.last))


def _extension(
    next_logits: decoding.StepFn,
    settings: DecodeSettings,
    keys: Key[Array, "N"],
    eos_ids: tuple[int, ...],
    pad_id: int,
) -> Callable[[Any], Any]:
    """What makes the hypotheses of `settings.method` longer by one token."""
    if settings.method == "beam":
        return functools.partial(
            decoding.extend_beams,
            step=next_logits,
            length_penalty=settings.length_penalty,
            eos_ids=eos_ids,
        )
    choose = decoding.greedy
    if settings.method == "sample":
        choose = decoding.sampler(
            keys,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
        )
    return functools.partial(
        decoding.extend, step=next_logits, choose=choose, eos_ids=eos_ids, pad_id=pad_id
    )
