"""What a model writes: translations and continuations of batches of prompts, or piece by piece."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from transformer_jax.data.prepare.recipe import Batch, NumberedBatch
from transformer_jax.devices.memory import checked
from transformer_jax.devices.mesh import constrain
from transformer_jax.evaluation import search
from transformer_jax.evaluation.by_batch import fetch_examples
from transformer_jax.evaluation.decoder import Decoder
from transformer_jax.evaluation.search import Beams, Hypotheses
from transformer_jax.models.family import Params


def generate(
    decoder: Decoder, params: Params, batches: Sequence[NumberedBatch], key: Key[Array, ""]
) -> list[list[list[int]]]:
    """Translations or continuations: `decode.num_samples` of each example, as token ids.

    The ids come without what ends them, the examples in the order of their numbers. Rows of padding
    are not decoded. Compiled once per shape of the inputs, also over several calls with equal
    decoders. `decode.stop` is not looked at: `cut_at_stop` cuts the texts.

    Args:
      batches: of scoring or of prompts; only `inputs` keys are read.
      key: for sampling. Every sample of an example draws by the example's number and its own,
        whatever its batch.
    """

    def decode(batch: Batch, numbers: Int[np.ndarray, "B"]) -> Int[Array, "B R T"]:
        inputs, limit, length, keys = _prompts(decoder, batch, numbers, key)
        return decode_batch(params, inputs, limit, keys, decoder=decoder, rooms=rooms_of(length))

    def before_end(ids: list[int]) -> list[int]:
        ends = (place for place, i in enumerate(ids) if i in decoder.ends)
        return ids[: next(ends, 0)]  # no end: the limit was 0

    samples = fetch_examples("Decoding", decode, batches)
    return [[before_end(ids) for ids in rows.tolist()] for rows in samples]


def stream(
    decoder: Decoder,
    params: Params,
    batch: NumberedBatch,
    key: Key[Array, ""],
    decode: Callable[[list[int]], str],
) -> Iterator[tuple[int, str]]:
    """What `generate` makes of one batch, cut at `decode.stop`, as (row, new text) when it comes.

    Not by beam search, which does not know its first token before its last.

    Sample r of the batch's row b is row b * num_samples + r. Text is held back while what follows
    may still change it: half of a character, or what may be the beginning of a stop text. A row
    of which nothing comes yields nothing.

    Args:
      decode: text of token ids. That of the first few is the beginning of that of all, but for
        U+FFFD in the place of half a character.
    """
    settings = decoder.settings
    prompts = _prompts(decoder, *batch, key)
    length = prompts.length
    context, hypotheses = _begin(
        decoder, params, prompts.inputs, prompts.limit, room=length, length=length
    )
    ended = np.repeat(prompts.limit < 1, settings.num_samples)
    ids: list[list[int]] = [[] for _ in ended]
    offsets = [0] * len(ended)  # characters
    while not ended.all():
        hypotheses = _extend(params, context, hypotheses, prompts.keys, decoder=decoder)
        newest = np.asarray(hypotheses.last).tolist()
        for row in np.flatnonzero(~ended).tolist():
            ended[row] = newest[row] in decoder.ends
            if not ended[row]:
                ids[row].append(newest[row])
            text = decode(ids[row])
            if not ended[row]:
                text = text.rstrip("\ufffd")
            cut = cut_at_stop(text, settings.stop)
            ended[row] |= cut != text
            if not ended[row]:
                cut = _without_beginning_of_stop(cut, settings.stop)
            if len(cut) > offsets[row]:
                yield row, cut[offsets[row] :]
                offsets[row] = len(cut)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the stop text that is complete first; of several, the longest."""
    places = [(text.index(end) + len(end), text.index(end)) for end in stop if end in text]
    return text[: min(places)[1]] if places else text


def _without_beginning_of_stop(text: str, stop: Sequence[str]) -> str:
    """The text without the longest end that may be the beginning of a stop text."""
    sizes = [size for end in stop for size in range(1, len(end)) if text.endswith(end[:size])]
    return text[: len(text) - max(sizes, default=0)]


class _Prompts(NamedTuple):
    """What generation reads of a batch; R samples of each prompt."""

    inputs: dict[str, Int[np.ndarray, "B S"]]
    limit: Int[np.ndarray, "B"]  # 0 in rows of padding
    length: int  # at least every limit of a prompt in this shape, so one shape compiles once
    keys: Key[Array, "N"]


def _prompts(
    decoder: Decoder, batch: Batch, numbers: Int[np.ndarray, "B"], key: Key[Array, ""]
) -> _Prompts:
    inputs = {name: np.asarray(rows) for name, rows in batch.items() if name.startswith("inputs")}
    segments = inputs["inputs_segment_ids"]
    limits = np.where(numbers >= 0, decoder.most_written(np.sum(segments != 0, axis=1)), 0)
    length = decoder.longest(segments.shape[1])
    num_samples = decoder.settings.num_samples
    keys = _keys_of_samples(key, np.maximum(numbers, 0).astype(np.uint32), num_samples)
    return _Prompts(inputs, limits.astype(np.int32), length, keys)


@functools.partial(jax.jit, static_argnames="num_samples")
def _keys_of_samples(
    key: Key[Array, ""], numbers: Int[Array, "B"], num_samples: int
) -> Key[Array, "N"]:
    fold_in = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    keys = fold_in(key, numbers)
    return jax.vmap(fold_in, in_axes=(0, None))(keys, jnp.arange(num_samples)).reshape(-1)


def decode_batch(
    params: Params,
    inputs: Mapping[str, Int[Array | np.ndarray, "B S"]],
    limit: Int[Array | np.ndarray, "B"],
    keys: Key[Array, "N"],
    *,
    decoder: Decoder,
    rooms: Sequence[int],
) -> Int[Array, "B R T"]:
    """The tokens of each row's samples, or of its best hypothesis.

    rooms: for how many tokens the cache has room, at first and then where these were not enough;
      the last are all. `rooms_of` gives them. With one room this can be compiled as a whole.
    """
    context, state = _begin(decoder, params, inputs, limit, room=rooms[0], length=rooms[-1])
    for room, larger in itertools.zip_longest(rooms, rooms[1:]):
        state, done = _advance(params, context, state, keys, decoder=decoder, until=room)
        if larger is None or bool(done):
            break
        state = _enlarge(state, larger - room)
    if isinstance(state, Beams):
        return _whole(state.finished_tokens)
    return _whole(state.tokens.reshape(-1, decoder.settings.num_samples, rooms[-1]))


def rooms_of(length: int) -> tuple[int, ...]:
    """32, 64, 128 ... up to `length` tokens: most sentences end long before their limit.

    What a step costs grows with the room that it looks at. Each room is compiled when it is
    first entered.
    """
    rooms = (32 << power for power in itertools.count())
    return (*itertools.takewhile(lambda room: room < length, rooms), length)


_begin = jax.jit(Decoder.begin, static_argnames=("self", "room", "length"))


# What is extended is donated, or each call would copy the cache.
@functools.partial(
    checked, what="decoding", settings="evaluate.batch_size, decode.beam_size or decode.num_samples"
)
@functools.partial(jax.jit, static_argnames=("decoder", "until"), donate_argnames="state")
def _advance(
    params: Params,
    context: Any,
    state: Hypotheses | Beams,
    keys: Key[Array, "N"],
    *,
    decoder: Decoder,
    until: int,
) -> tuple[Any, Bool[Array, ""]]:
    """The state when all sentences are done or have so many tokens, and whether all are done."""
    end = search.advance(state, decoder.extension(params, context, keys), until)
    return end, constrain(jnp.all(end.done))


@functools.partial(jax.jit, static_argnames="by")
def _enlarge(state: Hypotheses | Beams, by: int) -> Any:
    return state._replace(cache=state.cache.enlarged(by))


_whole = jax.jit(constrain)


# As above; of one token, whose text is wanted at once.
@functools.partial(jax.jit, static_argnames="decoder", donate_argnames="hypotheses")
def _extend(
    params: Params, context: Any, hypotheses: Hypotheses, keys: Key[Array, "N"], *, decoder: Decoder
) -> Hypotheses:
    extended = decoder.extension(params, context, keys)(hypotheses)
    return extended._replace(last=constrain(extended.last))
