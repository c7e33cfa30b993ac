"""Generation with pure functions in the place of a model: at once, and piece by piece."""

import dataclasses
import itertools
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import defaults
from tests.evaluation.fakes import BOS, EOS, PAD, counting, own_history, padded
from transformer_jax.evaluation import generate as evaluate
from transformer_jax.evaluation.decoder import Decoder, DecodeSettings

VOCAB = 12
BEAM = defaults.settings(DecodeSettings, "decode", beam_size=3, extra_length=2)
GREEDY = dataclasses.replace(BEAM, method="greedy")
SOURCES = [[3, 4, 5, EOS], [9, EOS], [7, 7, 8, 6, 3, EOS], [EOS], [4, 11, EOS]]


def prompts(rows, length):
    return {
        "inputs": padded(rows, length),
        "inputs_segment_ids": padded([[1] * len(row) for row in rows], length),
        "inputs_positions": padded([range(len(row)) for row in rows], length),
    }


def batch_of(numbers, length):
    """The numbered sources, -1 for a row of padding, and targets that decoding must not read."""
    rows = [SOURCES[number] if number >= 0 else [] for number in numbers]
    targets = np.zeros((len(rows), length + numbers[0]), np.int32)
    return prompts(rows, length) | {"targets": targets}, np.array(numbers)


class History(NamedTuple):
    """A cache, of all that was read."""

    tokens: Any

    def enlarged(self, by):
        return History(jnp.pad(self.tokens, [(0, 0), (0, by)]))


class Copier:
    """A "model" that prefers to copy its source; counts how often it is traced.

    After the source's row it goes on with the token params["end"].
    """

    config = types.SimpleNamespace(longest_row=None)

    def __init__(self):
        self.traces = 0

    def apply(self, variables, *arguments, method):
        return getattr(self, method)(variables["params"], *arguments)

    def start(self, params, batch, max_length):
        self.traces += 1
        assert set(batch) == {"inputs", "inputs_segment_ids", "inputs_positions"}
        size = (batch["inputs"].shape[0], max_length)
        first = jnp.full(batch["inputs"].shape[:1], BOS)
        return first, batch["inputs"], History(jnp.zeros(size, jnp.int32))

    def step(self, params, context, cache, tokens, index, ancestors):
        source = jnp.pad(context, ((0, 0), (0, BEAM.extra_length)), constant_values=params["end"])
        wanted = jnp.repeat(source[:, index], tokens.shape[0] // context.shape[0])
        logits = params["scale"] * jax.nn.one_hot(wanted, VOCAB)
        return logits, History(cache.tokens.at[:, index].set(tokens))


def sure(end=EOS, scale=20.0):
    return {"scale": jnp.float32(scale), "end": jnp.int32(end)}


class Reader(Copier):
    """A language "model": all of the prompt and all that follows it decide on the next token."""

    def start(self, params, batch, max_length):
        _, inputs, cache = super().start(params, batch, max_length)
        real = batch["inputs_segment_ids"]
        last = jnp.take_along_axis(inputs, jnp.sum(real, axis=1, keepdims=True) - 1, axis=1)
        bias = jnp.sum(params["prompt"][inputs] * real[..., None], axis=1)
        return last[:, 0], bias, cache

    def step(self, params, context, cache, tokens, index, ancestors):
        history = cache.tokens.at[:, index].set(tokens)
        mask = (jnp.arange(history.shape[-1]) <= index)[None, :, None]
        places = params["places"][jnp.arange(mask.size), own_history(history, ancestors)]
        logits = jnp.where(mask, places, 0.0).sum(1)
        return logits + jnp.repeat(context, len(tokens) // len(context), 0), History(history)


def reader(seed, scale=1.0):
    random = np.random.default_rng(seed)
    prompt = scale * random.normal(size=(VOCAB, VOCAB))
    places = scale * random.normal(size=(16, VOCAB, VOCAB))
    return {"prompt": jnp.asarray(prompt), "places": jnp.asarray(places)}


COPIER, READER = Copier(), Reader()  # those whose traces nobody counts


def of_source(tokens, extra_length, most_positions):
    """A limit: as many tokens as the prompt has, and some more."""
    return tokens + extra_length


def decoder(model: Any, settings, limit: Any = of_source, never=()) -> Decoder:
    return Decoder(model=model, settings=settings, ends=(EOS,), pad=PAD, never=never, limit=limit)


def generate(model, batches, *, params=None, settings=BEAM, key=0, limit=of_source):
    text_decoder = decoder(model, settings, limit)
    return evaluate.generate(text_decoder, params or sure(), batches, jax.random.key(key))


def pieces_of(model, batch, decode, *, params=None, settings=GREEDY, key=0, limit=of_source):
    """The pieces of text of each row that `stream` gives."""
    pieces = [[] for _ in range(len(batch[1]) * settings.num_samples)]
    text_decoder, key = decoder(model, settings, limit), jax.random.key(key)
    for row, text in evaluate.stream(text_decoder, params or sure(), batch, key, decode):
        pieces[row].append(text)
    return pieces


def letters(ids):
    return "".join("abcdefghijkl"[i] for i in ids)


def test_each_shape_of_inputs_is_compiled_once_over_all_calls():
    """Whose decoders are equal: each call makes its own. Results are in the examples' order."""
    model = Copier()
    batches = [batch_of([2, 0, 4], 6), batch_of([3, 1, -1], 4), batch_of([1, 3, 4], 4)]
    assert generate(model, batches[:2]) == [[source[:-1]] for source in SOURCES]
    assert model.traces == 2
    generate(model, batches, params=sure(scale=10.0))
    assert model.traces == 2
    generate(model, [batch_of([0, 1, 2], 6)], settings=dataclasses.replace(BEAM, beam_size=2))
    assert model.traces == 3
    for batch in batches:
        pieces_of(model, batch, letters)
    assert model.traces == 5


def test_what_is_never_written_makes_room_for_the_next_likeliest():
    def written(never):
        text_decoder, batches = decoder(READER, GREEDY, never=never), [batch_of([0, 1, 2, 3, 4], 6)]
        texts = evaluate.generate(text_decoder, reader(1), batches, jax.random.key(0))
        return {i for (ids,) in texts for i in ids}

    likeliest = written(())
    assert likeliest and not likeliest & written(tuple(likeliest)) and written(tuple(likeliest))


@pytest.mark.parametrize("settings", [BEAM, GREEDY])
def test_a_result_is_as_long_as_its_own_prompt_allows(settings):
    """A model that never ends its sentence is cut at the limit, eos included."""
    rows = [[3, 3, 3], [3], [3, 3]]
    batch = prompts(rows, 3)
    batch["inputs"][batch["inputs"] == PAD] = 5
    numbered = (batch, np.arange(3))
    limits = [
        of_source,
        lambda tokens, *_: 6 - tokens,  # longest after the shortest prompt
        lambda tokens, *_: 5 * (tokens - 1) // 2,  # nothing after a prompt of one token
        lambda tokens, *_: 0 * tokens,
    ]
    run = {"params": sure(end=5), "settings": settings, "limit": lambda *of_row: limit(*of_row)}
    for limit in limits:
        expected = [max(limit(len(row), BEAM.extra_length, None) - 1, 0) for row in rows]
        results = generate(COPIER, [numbered], **run)
        assert [len(ids) for (ids,) in results] == expected
        if settings.method == "greedy":
            pieces = pieces_of(COPIER, numbered, letters, **run)
            assert [len("".join(row)) for row in pieces] == expected


@pytest.mark.parametrize("method", ["beam", "sample"])  # a greedy text grows as a sample does
def test_room_that_is_made_as_it_is_needed_changes_nothing(method):
    settings = dataclasses.replace(BEAM, method=method, num_samples=2 if method == "sample" else 1)
    batch, numbers = batch_of([0, 1, 2, 3, 4], 6)
    inputs = {name: rows for name, rows in batch.items() if name.startswith("inputs")}
    limit = np.array([16, 3, 0, 7, 12])
    keys = jax.random.split(jax.random.key(0), len(numbers) * settings.num_samples)

    def decoded(*rooms):
        calls = []
        text_decoder = decoder(counted(Reader, calls), settings)
        tokens = evaluate.decode_batch(
            reader(3, 0.5), inputs, limit, keys, decoder=text_decoder, rooms=rooms
        )
        jax.effects_barrier()
        return np.asarray(tokens), sorted(calls)

    expected, calls = decoded(16)
    assert len(calls) > 4
    tokens, steps = decoded(2, 3, 16)
    np.testing.assert_array_equal(tokens, expected)
    assert steps == calls


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 1000])
def test_rooms_double_up_to_the_length(length):
    rooms = evaluate.rooms_of(length)
    assert rooms[-1] == length and rooms[0] == min(length, 32)
    assert all(room * 2 == larger for room, larger in zip(rooms[:-2], rooms[1:-1], strict=True))
    assert all(larger <= 2 * room for room, larger in itertools.pairwise(rooms))


def counted(model, calls):
    """A model that adds the index of each step that it takes to the calls."""
    instance = model()
    instance.step = counting(instance.step, calls)
    return instance


def test_rows_of_padding_do_not_prolong_decoding():
    """The padding's "model" never ends, so that decoding it would take every step there is."""
    batch, numbers = batch_of([1, -1, -1], 6)
    batch["inputs"][1:], batch["inputs_segment_ids"][1:] = 5, 1
    runs = [
        lambda model, numbers: generate(model, [(batch, numbers)], settings=GREEDY),
        lambda model, numbers: pieces_of(model, (batch, numbers), letters),
    ]
    for run in runs:
        calls = []
        run(counted(Copier, calls), np.array([0, -1, -1]))
        jax.effects_barrier()
        assert sorted(calls) == [0, 1]
        run(counted(Copier, calls), np.array([0, 1, 2]))
        jax.effects_barrier()
        assert len(calls) > 4


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_samples_depend_on_the_example_their_number_and_the_key_alone(top_p):
    vague = sure(scale=1.0)
    one_way = [batch_of([2, 0, 4], 6), batch_of([3, 1, -1], 6)]
    another = [batch_of([4, -1, 3], 6), batch_of([1, 2, 0], 6)]

    def samples(batches, num_samples, key):
        changes = dict(method="sample", num_samples=num_samples, top_p=top_p)
        settings = dataclasses.replace(BEAM, **changes)
        return generate(COPIER, batches, params=vague, settings=settings, key=key)

    first = samples(one_way, 3, 1)
    assert samples(another, 3, 1) == first
    assert samples(one_way, 3, 2) != first
    assert [row[:2] for row in first] == samples(one_way, 2, 1)
    assert all(row.count(row[0]) < 3 for row in first if any(row))
    twins = [(batch_of([2, 2, -1], 6)[0], np.array([0, 1, -1]))]  # two with the same prompt
    one, other = samples(twins, 3, 1)
    assert one != other


# A few stop texts of one or several tokens that "sampled" text of 12 letters often has in it.
STOPS = [(), ("d",), ("ab", "b", "cde"), tuple(a + b for a in "aceg" for b in "bdfhjkl")]


@pytest.mark.parametrize(
    ("method", "num_samples", "stops"), [("greedy", 1, STOPS), ("sample", 4, STOPS[2:])]
)
def test_a_stream_gives_what_generate_gives(method, num_samples, stops):
    settings = dataclasses.replace(BEAM, method=method, num_samples=num_samples)

    def limit(tokens, *_):
        return 3 * (tokens - 1)  # the fourth may say nothing at all

    for seed in range(2):
        run = {"params": reader(seed, 0.5), "key": seed, "limit": limit}
        batch, numbers = batch_of([0, 1, 2, 3, 4], 6)
        whole = generate(READER, [(batch, numbers)], settings=settings, **run)
        for stop in stops:
            run["settings"] = dataclasses.replace(settings, stop=stop)
            texts = [evaluate.cut_at_stop(letters(ids), stop) for row in whole for ids in row]
            streamed = pieces_of(READER, (batch, numbers), letters, **run)
            assert ["".join(row) for row in streamed] == texts
            assert all(all(row) for row in streamed)
            # In another order, with rows of padding
            rows = [4, -1, 2, -1, 0]
            streamed = pieces_of(READER, batch_of(rows, 6), letters, **run)
            expected = [texts[row * num_samples :][:num_samples] for row in rows]
            expected[1] = expected[3] = [""] * num_samples
            assert ["".join(row) for row in streamed] == sum(expected, [])
            assert len({len(text) for text in texts}) > 1


def stream_of(texts, decode, token_of, stop=()):
    """Pieces of each text by a model that says it token by token; "$" in a text is eos."""
    rows = [[token_of[symbol] for symbol in text] for text in texts]
    batch = prompts(rows, max(map(len, rows))), np.arange(len(rows))
    return pieces_of(COPIER, batch, decode, settings=dataclasses.replace(GREEDY, stop=stop))


def test_text_comes_at_once_but_for_the_beginning_of_a_stop_text():
    token_of = dict(zip("$abcdefghi", range(EOS, VOCAB), strict=False))
    symbols = {token: symbol for symbol, token in token_of.items()}

    def pieces(texts, stop):
        return stream_of(texts, lambda ids: "".join(symbols[i] for i in ids), token_of, stop)

    assert pieces(["bcd$", "$", "c$"], ()) == [["b", "c", "d"], [], ["c"]]
    streams = pieces(["abcdef$", "abcef$", "abbcbc$", "bcd$", "dab$", "bdc$"], ("bcd", "d"))
    assert streams == [["a"], ["a", "bce", "f"], ["a", "b", "bc", "bc"], [], [], ["b"]]


def test_half_a_character_is_never_shown():
    bytes_of = dict(enumerate("aé😀".encode(), start=3))
    token_of = {"$": EOS} | {byte: token for token, byte in bytes_of.items()}

    def pieces(*texts, stop=()):
        def decode(ids):
            return bytes(bytes_of[i] for i in ids).decode(errors="replace")

        return stream_of([[*text, "$"] for text in texts], decode, token_of, stop)

    # What is no character is shown as soon as it can become none, at the latest at the end.
    half = "😀".encode()[:3]
    streams = pieces("aé😀a".encode(), half + b"a", b"a" + half)
    assert streams == [["a", "é", "😀", "a"], ["\ufffda"], ["a", "\ufffd"]]
    assert pieces("aéa😀".encode(), stop=("a😀",)) == [["aé"]]
    assert pieces("a😀é".encode(), stop=("a\ufffd", "éa")) == [["a😀", "é"]]


def test_a_stop_text_saves_steps():
    calls = []
    model = counted(Copier, calls)
    settings = dataclasses.replace(GREEDY, stop=(letters([7, 7, 8]), letters([9])))
    batch = batch_of([1, 2, -1], 6)
    assert pieces_of(model, batch, letters, params=sure(end=5), settings=settings) == [[]] * 3
    jax.effects_barrier()
    assert sorted(calls) == [0, 1, 2]


def test_a_text_is_cut_before_the_stop_text_that_is_complete_first():
    random = np.random.default_rng(0)

    def random_text(most):
        return "".join(random.choice([*"abc"], size=random.integers(1, most + 1)))

    def slow(text, stop):
        for size in range(1, len(text) + 1):
            ends = [len(end) for end in stop if text[:size].endswith(end)]
            if ends:
                return text[: size - max(ends)]
        return text

    cut = 0
    for _ in range(500):
        text, stop = random_text(12), tuple(random_text(4) for _ in range(3))
        assert evaluate.cut_at_stop(text, stop) == slow(text, stop)
        cut += evaluate.cut_at_stop(text, stop) != text
    assert 100 < cut < 500
    assert evaluate.cut_at_stop(text, ()) == text
