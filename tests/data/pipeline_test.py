import collections
import dataclasses
import itertools
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from transformer_jax.data import pipeline
from transformer_jax.data.pipeline import TokenArrays, TrainStreams
from transformer_jax.data.tokenizer import EOS_ID, PAD_ID, train_tokenizer

BYTES = train_tokenizer("bytes", [], 0)
SIDES = ("inputs", "targets")
KEYS = {f"{side}{kind}" for side in SIDES for kind in ("", "_segment_ids", "_positions")}


def make_arrays(n, *, longest=9, seed=0):
    """n different examples: random tokens and, at the start of each side, the example's number."""
    draw = np.random.default_rng(seed)

    def side():
        rows = [
            [4 + i, *draw.integers(4, 99, draw.integers(0, longest - 1)), EOS_ID] for i in range(n)
        ]
        offsets = np.cumsum([0, *map(len, rows)])
        return np.concatenate(rows).astype(np.int32), offsets

    return TokenArrays(*side(), *side(), too_long=0, fingerprint=f"{n}, {longest}, {seed}")


@pytest.fixture(autouse=True)
def few_bins(monkeypatch):
    monkeypatch.setattr(pipeline, "PACKING_BINS", 8)  # two batches: small tests pass many refills


def make_streams(arrays, *, packing, **changes):
    length = 20 if packing else 9
    settings = dict(batch_size=8, streams=2, source_length=length, target_length=length, seed=3)
    return TrainStreams(arrays, packing=packing, **(settings | changes))


def unpack(batch, row):
    """The examples of a row, told apart by segment ids; positions and padding are checked."""
    examples = []
    last = batch["inputs_segment_ids"][row].max()
    for segment in range(1, last + 1):
        example = {}
        for side in SIDES:
            cells = np.flatnonzero(batch[f"{side}_segment_ids"][row] == segment)
            np.testing.assert_array_equal(np.diff(cells), 1)
            np.testing.assert_array_equal(batch[f"{side}_positions"][row, cells], range(len(cells)))
            example[side] = batch[side][row, cells].tolist()
        examples.append(example)
    for side in SIDES:
        assert batch[f"{side}_segment_ids"][row].max() == last
        padding = batch[f"{side}_segment_ids"][row] == 0
        assert (batch[side][row, padding] == PAD_ID).all()
        assert (batch[f"{side}_positions"][row, padding] == 0).all()
    return examples


def numbers(batch, rows, arrays):
    """Which examples stand in the rows; each is compared with the arrays, token by token."""
    found = []
    for row in rows:
        for example in unpack(batch, row):
            number = example["inputs"][0] - 4
            assert {side: tokens.tolist() for side, tokens in arrays[number].items()} == example
            found.append(number)
    return found


def assert_same(batch, other):
    assert batch.keys() == other.keys()
    for key in batch:
        np.testing.assert_array_equal(batch[key], other[key], err_msg=key)


def padded_order(arrays, streams, batches):
    """The shuffled order: with one example a row, the streams' rows are its examples in turn."""
    dealt = [[] for _ in range(2)]
    for batch in itertools.islice(streams, batches):
        for stream in range(2):
            dealt[stream] += numbers(batch, range(4 * stream, 4 * stream + 4), arrays)
    return [number for pair in zip(*dealt, strict=True) for number in pair]


def test_every_epoch_has_every_example_once_in_a_new_order():
    n = 21  # neither a multiple of the streams nor of the batch
    arrays = make_arrays(n)
    order = padded_order(arrays, make_streams(arrays, packing=False), batches=8)
    epochs = [order[start : start + n] for start in range(0, 3 * n, n)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    again = padded_order(arrays, make_streams(arrays, packing=False), batches=8)
    other = padded_order(arrays, make_streams(arrays, packing=False, seed=4), batches=8)
    assert again == order != other


def test_packed_rows_hold_the_examples_of_the_shuffled_order():
    arrays = make_arrays(50)
    order = padded_order(arrays, make_streams(arrays, packing=False), batches=100)
    packed = make_streams(arrays, packing=True)
    seen = [collections.Counter(), collections.Counter()]
    for _ in range(4):  # a stream empties its bins after PACKING_BINS rows, four to a batch
        for batch in itertools.islice(packed, pipeline.PACKING_BINS // 4):
            for stream in range(2):
                seen[stream].update(numbers(batch, range(4 * stream, 4 * stream + 4), arrays))
        for stream in range(2):
            assert seen[stream] == collections.Counter(order[stream::2][: seen[stream].total()])
    assert min(count.total() for count in seen) > 4 * pipeline.PACKING_BINS  # several to a row


@pytest.mark.parametrize("packing", [True, False])
def test_batches_have_their_shape_and_type(packing):
    streams = make_streams(make_arrays(30), packing=packing, source_length=24, target_length=16)
    for batch in itertools.islice(streams, 5):
        assert set(batch) == KEYS
        for key, values in batch.items():
            assert values.shape == (8, 24 if key.startswith("inputs") else 16)
            assert values.dtype == np.int32


@pytest.mark.parametrize("packing", [True, False])
def test_restored_streams_continue_exactly_from_every_point(packing):
    arrays = make_arrays(30)
    streams = make_streams(arrays, packing=packing)
    states, batches = [], []
    for _ in range(9):
        states.append(json.dumps(streams.get_state()))
        batches.append(next(streams))
    states.append(json.dumps(streams.get_state()))
    used = make_streams(arrays, packing=packing)
    for step in [*range(9), 3]:
        used.set_state(json.loads(states[step]))
        assert json.dumps(used.get_state()) == states[step]
        for later in range(step, min(step + 3, 9)):
            assert_same(next(used), batches[later])
            assert json.dumps(used.get_state()) == states[later + 1]


def test_states_do_not_depend_on_the_other_streams():
    arrays = make_arrays(30)
    streams = make_streams(arrays, packing=True)
    for _ in range(7):
        next(streams)
    alone = make_streams(arrays, packing=True)
    state = alone.get_state() | {"1": streams.get_state()["1"]}
    alone.set_state(state)
    batch, expected = next(alone), next(streams)
    np.testing.assert_array_equal(batch["inputs"][4:], expected["inputs"][4:])


@pytest.mark.parametrize("packing", [True, False])
def test_resuming_reads_no_more_at_a_late_step_than_at_an_early_one(packing):
    reads = []

    class Counting(TokenArrays):
        def __getitem__(self, index):
            reads.append(index)
            return super().__getitem__(index)

    arrays = Counting(**vars(make_arrays(30)))
    streams = make_streams(arrays, packing=packing)
    next(streams)
    first = len(reads)
    for _ in range(40):
        next(streams)
    state = streams.get_state()
    resumed = make_streams(arrays, packing=packing)
    reads.clear()
    resumed.set_state(state)
    next(resumed)
    assert len(reads) <= 2 * first


def test_the_fingerprint_of_streams_covers_what_decides_the_batches():
    arrays = make_arrays(10)
    settings: dict[str, Any] = dict(
        batch_size=8, streams=2, packing=True, source_length=20, target_length=20, seed=0
    )
    changes = [
        {},
        {"batch_size": 4},
        {"streams": 4},
        {"packing": False},
        {"source_length": 21},
        {"target_length": 21},
        {"seed": 1},
        {"arrays": make_arrays(11)},
    ]
    made = [TrainStreams(**({"arrays": arrays} | settings | change)) for change in changes]
    assert len({streams.fingerprint for streams in made}) == len(changes)
    assert TrainStreams(arrays, **settings).fingerprint == made[0].fingerprint


def test_streams_refuse_what_does_not_fit():
    arrays = make_arrays(10)
    with pytest.raises(ValueError, match="data.batch_size=9 .* data.streams=2"):
        make_streams(arrays, packing=True, batch_size=9)
    longest = int(np.diff(arrays.inputs_offsets).max())
    with pytest.raises(ValueError, match=f"{longest} tokens in 'inputs'.* only {longest - 1}"):
        make_streams(arrays, packing=True, source_length=longest - 1)
    with pytest.raises(ValueError, match="states of 2 streams, but data.streams=4"):
        states = make_streams(arrays, packing=True).get_state()
        make_streams(arrays, packing=True, streams=4).set_state(states)


EXAMPLES = {
    "source": ["ab", "", "abcdef", "a", "abcd"],
    "target": ["x", "y", "z", "0123456", "wxyz"],
}
LIMITS = dict(max_source_length=5, max_target_length=6)


def test_tokens_end_with_eos_and_too_long_examples_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(pipeline, "_CHUNK", 2)  # several chunks, the last one not full
    arrays = pipeline.tokenise(EXAMPLES, BYTES, **LIMITS, too_long="drop")
    kept = [0, 1, 4]  # 4: exactly as long as the limit on the source, with eos
    assert arrays.too_long == 2
    assert len(arrays) == len(kept)
    for i, example in enumerate(kept):
        for side, column in (("inputs", "source"), ("targets", "target")):
            assert arrays[i][side].tolist() == [
                *BYTES.encode([EXAMPLES[column][example]])[0],
                EOS_ID,
            ]
    assert arrays.inputs.dtype == arrays.targets.dtype == np.int32


def test_in_evaluation_too_long_examples_are_truncated_and_counted():
    arrays = pipeline.tokenise(EXAMPLES, BYTES, **LIMITS, too_long="truncate")
    assert arrays.too_long == 2
    assert [BYTES.decode(arrays[i]["inputs"]) for i in range(5)] == ["ab", "", "abcd", "a", "abcd"]
    assert [BYTES.decode(arrays[i]["targets"]) for i in range(5)] == [
        "x",
        "y",
        "z",
        "012345",
        "wxyz",
    ]
    assert all(arrays[i]["inputs"][-1] == EOS_ID for i in range(5))
    # A target that is cut does not end there, and must not be scored as if it did.
    assert [arrays[i]["targets"][-1] == EOS_ID for i in range(5)] == [True, True, True, False, True]


@pytest.mark.parametrize("examples", [EXAMPLES, {"source": [], "target": []}])
def test_no_example_left(examples):
    with pytest.raises(ValueError, match="no example is left of .*data.max_source_length=1"):
        pipeline.tokenise(
            examples, BYTES, max_source_length=1, max_target_length=1, too_long="drop"
        )


def test_cached_tokens_are_made_once_and_mapped(tmp_path, monkeypatch):
    made = pipeline.tokenise(EXAMPLES, BYTES, **LIMITS, too_long="drop")
    pipeline.cached_tokens(EXAMPLES, BYTES, **LIMITS, too_long="drop", cache_dir=tmp_path)
    monkeypatch.delattr(pipeline, "tokenise")  # so only the cache can answer
    cached = pipeline.cached_tokens(EXAMPLES, BYTES, **LIMITS, too_long="drop", cache_dir=tmp_path)
    for field in dataclasses.fields(TokenArrays):
        np.testing.assert_array_equal(getattr(cached, field.name), getattr(made, field.name))
    assert not cached.inputs.flags.writeable
    assert [p.name for p in (tmp_path / "tokens").iterdir() if p.is_dir()] == [made.fingerprint]


def test_the_fingerprint_of_tokens_covers_what_made_them():
    swapped = {"source": EXAMPLES["target"], "target": EXAMPLES["source"]}
    words = train_tokenizer("words", ["ab"], 9)
    variants: list[tuple[Any, ...]] = [
        (EXAMPLES, BYTES, LIMITS, "drop"),
        (swapped, BYTES, LIMITS, "drop"),
        (EXAMPLES, words, LIMITS, "drop"),
        (EXAMPLES, BYTES, LIMITS, "truncate"),
        (EXAMPLES, BYTES, LIMITS | {"max_source_length": 6}, "drop"),
        (EXAMPLES, BYTES, LIMITS | {"max_target_length": 7}, "drop"),
    ]
    made = [
        pipeline.tokenise(examples, tokenizer, **limits, too_long=too_long)
        for examples, tokenizer, limits, too_long in variants
    ]
    assert len({arrays.fingerprint for arrays in made}) == len(variants)


def test_cached_tokenizer_is_trained_once(tmp_path, monkeypatch):
    trained = pipeline.cached_tokenizer("bpe", EXAMPLES, 40, cache_dir=tmp_path)
    assert trained.decode(trained.encode(["abcd wxyz"])[0]) == "abcd wxyz"
    monkeypatch.delattr(pipeline, "train_tokenizer")
    cached = pipeline.cached_tokenizer("bpe", EXAMPLES, 40, cache_dir=tmp_path)
    assert cached.fingerprint == trained.fingerprint


@pytest.mark.parametrize("n", [1, 16, 53])
def test_eval_batches_have_every_example_once_in_few_shapes(n):
    arrays = make_arrays(n, longest=70)
    batches = pipeline.eval_batches(arrays, batch_size=8)
    assert len(batches) == -(-n // 8)
    seen = []
    for batch, index in batches:
        assert set(batch) == KEYS
        assert all(len(values) == 8 and values.dtype == np.int32 for values in batch.values())
        real = np.flatnonzero(index >= 0)
        assert numbers(batch, real, arrays) == index[real].tolist()
        assert not any(values[index < 0].any() for values in batch.values())
        seen += index[real].tolist()
    assert sorted(seen) == list(range(n))
    shapes = {(batch["inputs"].shape, batch["targets"].shape) for batch, _ in batches}
    lengths = {targets for _, targets in shapes}
    assert len(shapes) == len(lengths)
    longest = np.diff(arrays.targets_offsets).max()
    assert {length for _, length in lengths} <= {8, 16, 24, 32, 48, 64, longest}


def test_source_batches_are_eval_batches_without_targets():
    arrays = make_arrays(21, longest=70)
    sources = [arrays[i]["inputs"].tolist() for i in range(len(arrays))]
    same = dataclasses.replace(arrays, targets=arrays.inputs, targets_offsets=arrays.inputs_offsets)
    pairs = zip(
        pipeline.source_batches(sources, batch_size=8),
        pipeline.eval_batches(same, batch_size=8),
        strict=True,
    )
    for (batch, index), (expected, expected_index) in pairs:
        assert_same(batch, {key: expected[key] for key in KEYS if key.startswith("inputs")})
        np.testing.assert_array_equal(index, expected_index)
    assert pipeline.source_batches([], batch_size=8) == []


def test_no_jax_backend_is_started():
    """Streams run in processes and threads beside the trainer, which must own the devices."""
    code = """
import numpy as np
from transformer_jax.data import pipeline
tokens, offsets = np.array([4, 1], np.int32), np.array([0, 2])
arrays = pipeline.TokenArrays(tokens, offsets, tokens, offsets, 0, "")
settings = dict(batch_size=2, streams=2, source_length=4, target_length=4, seed=0)
for packing in (True, False):
    next(pipeline.TrainStreams(arrays, packing=packing, **settings))
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
