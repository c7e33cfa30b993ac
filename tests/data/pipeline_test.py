import collections
import itertools
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from transformer_jax.data import pipeline
from transformer_jax.data.pipeline import Masking, TokenArrays, TrainStreams, batch_keys
from transformer_jax.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, train_tokenizer

BYTES = train_tokenizer("bytes", [], 0)
OBJECTIVES = ("translation", "causal_lm", "masked_lm", "classification", "tagging")
MASKING = Masking(mask_rate=0.15, mask_id=150)


def own(*columns):
    """The keys of columns with segment ids and positions of their own."""
    return {f"{name}{kind}" for name in columns for kind in ("", "_segment_ids", "_positions")}


KEYS = {
    "translation": own("inputs", "targets"),
    "causal_lm": own("targets"),
    "masked_lm": own("inputs") | {"targets"},
    "classification": own("inputs") | {"labels"},
    "tagging": own("inputs") | {"labels"},
}


def make_arrays(n, objective="translation", *, shortest=3, longest=9, seed=0):
    """n different examples of random ids; the second token of each column tells its number."""
    draw = np.random.default_rng(seed)

    def column(lengths):
        rows = [
            [BOS_ID, 4 + i, *draw.integers(4, 99, length - 3), EOS_ID]
            for i, length in enumerate(lengths)
        ]
        return np.concatenate(rows).astype(np.int32), np.cumsum([0, *lengths])

    lengths = draw.integers(shortest, longest + 1, n)
    names = pipeline._BATCH_COLUMNS[objective]
    sides = [
        column(lengths if name == "labels" else draw.permutation(lengths)) for name in names[1:]
    ]
    tokens, offsets = zip(column(lengths), *sides, strict=True)
    name = f"{n}, {objective}, {shortest}, {longest}, {seed}"
    return TokenArrays(
        dict(zip(names, tokens, strict=True)), dict(zip(names, offsets, strict=True)), 0, name
    )


@pytest.fixture(autouse=True)
def few_bins(monkeypatch):
    monkeypatch.setattr(pipeline, "PACKING_BINS", 8)  # two batches: small tests pass many refills


def make_streams(arrays, *, packing, **changes):
    length = 20 if packing else 9
    lengths = dict.fromkeys(arrays.columns, length)
    settings: dict[str, Any] = dict(batch_size=8, streams=2, lengths=lengths, seed=3)
    return TrainStreams(arrays, packing=packing, **(settings | changes))


def masking_of(objective):
    return MASKING if objective == "masked_lm" else None


def unmasked(batch):
    """The batch before it was masked, as far as the targets tell."""
    original = np.where(batch["targets"] != PAD_ID, batch["targets"], batch["inputs"])
    return {name: values for name, values in batch.items() if name != "targets"} | {
        "inputs": original
    }


def unpack(batch, row):
    """The examples of a row, told apart by segment ids; positions and padding are checked."""
    examples = []
    sides = [name for name in ("inputs", "targets") if f"{name}_segment_ids" in batch]
    last = batch[f"{sides[0]}_segment_ids"][row].max()
    for segment in range(1, last + 1):
        example = {}
        for side in sides:
            cells = np.flatnonzero(batch[f"{side}_segment_ids"][row] == segment)
            np.testing.assert_array_equal(np.diff(cells), 1)
            np.testing.assert_array_equal(batch[f"{side}_positions"][row, cells], range(len(cells)))
            example[side] = batch[side][row, cells].tolist()
            if "labels" in batch:
                example["labels"] = batch["labels"][row, cells].tolist()
        examples.append(example)
    for side in sides:
        assert batch[f"{side}_segment_ids"][row].max() == last
        padding = batch[f"{side}_segment_ids"][row] == 0
        assert (batch[side][row, padding] == PAD_ID).all()
        assert (batch[f"{side}_positions"][row, padding] == 0).all()
        if "labels" in batch:
            assert (batch["labels"][row, padding] == 0).all()
    return examples


def numbers(batch, rows, arrays):
    """Which examples stand in the rows; each is compared with the arrays, token by token."""
    found = []
    for row in rows:
        for example in unpack(batch, row):
            number = next(iter(example.values()))[1] - 4
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


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_packed_rows_hold_the_examples_of_the_shuffled_order(objective):
    """So every epoch has every example once, whichever columns it has."""
    arrays = make_arrays(120, objective)
    order = padded_order(arrays, make_streams(arrays, packing=False), batches=100)
    packed = make_streams(arrays, packing=True, masking=masking_of(objective))
    seen = [collections.Counter(), collections.Counter()]
    for _ in range(4):  # a stream empties its bins after PACKING_BINS rows, four to a batch
        for batch in itertools.islice(packed, pipeline.PACKING_BINS // 4):
            batch = unmasked(batch) if objective == "masked_lm" else batch
            for stream in range(2):
                seen[stream].update(numbers(batch, range(4 * stream, 4 * stream + 4), arrays))
        for stream in range(2):
            assert seen[stream] == collections.Counter(order[stream::2][: seen[stream].total()])
    assert min(count.total() for count in seen) > 4 * pipeline.PACKING_BINS  # several to a row


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_batches_have_their_shape_and_type(objective, packing):
    lengths = {"inputs": 24, "targets": 16, "labels": 24}
    arrays = make_arrays(30, objective)
    masking = masking_of(objective)
    streams = make_streams(arrays, packing=packing, lengths=lengths, masking=masking)
    for batch in itertools.islice(streams, 5):
        assert set(batch) == set(batch_keys(objective)) == KEYS[objective]
        for key, values in batch.items():
            along_inputs = not key.startswith("targets") or objective == "masked_lm"
            assert values.shape == (8, 24 if along_inputs else 16)
            assert values.dtype == np.int32


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_restored_streams_continue_exactly_from_every_point(objective, packing):
    arrays = make_arrays(90, objective)

    def make():
        return make_streams(arrays, packing=packing, masking=masking_of(objective))

    streams = make()
    states, batches = [], []
    for _ in range(9):
        states.append(json.dumps(streams.get_state()))
        batches.append(next(streams))
    states.append(json.dumps(streams.get_state()))
    used = make()
    for step in [*range(9), 3]:
        used.set_state(json.loads(states[step]))
        assert json.dumps(used.get_state()) == states[step]
        for later in range(step, min(step + 3, 9)):
            assert_same(next(used), batches[later])
            assert json.dumps(used.get_state()) == states[later + 1]


def test_masks_differ_between_epochs_streams_and_seeds():
    """Eight examples a batch, one a row: each batch is an epoch of the same eight."""
    arrays = make_arrays(8, "masked_lm", shortest=60, longest=60)

    def epochs(**changes):
        lengths = {"inputs": 60}
        streams = make_streams(arrays, packing=False, lengths=lengths, masking=MASKING, **changes)
        masks = []
        for batch in itertools.islice(streams, 4):
            order = numbers(unmasked(batch), range(8), arrays)
            assert sorted(order) == list(range(8))
            masks.append((batch["targets"] != PAD_ID)[np.argsort(order)])
        return masks

    masks = epochs()
    for one, other in itertools.combinations(masks, 2):
        assert (one != other).any(axis=1).all()  # of every example
    np.testing.assert_array_equal(masks, epochs())
    assert (np.array(masks) != epochs(seed=4)).any()

    same = TokenArrays(
        {"inputs": np.tile(np.r_[BOS_ID, np.full(58, 7), EOS_ID], 8).astype(np.int32)},
        {"inputs": np.arange(9) * 60},
        0,
        "eight times the same",
    )
    batch = next(make_streams(same, packing=False, lengths={"inputs": 60}, masking=MASKING))
    assert len(np.unique(batch["targets"], axis=0)) == 8  # in both streams


def test_every_packed_example_has_a_masked_token():
    arrays = make_arrays(30, "masked_lm")
    streams = make_streams(arrays, packing=True, masking=Masking(mask_rate=0.0, mask_id=150))
    for batch in itertools.islice(streams, 5):
        for row in range(8):
            segments = batch["inputs_segment_ids"][row]
            masked = segments[batch["targets"][row] != PAD_ID]
            assert masked.tolist() == list(range(1, segments.max() + 1))


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

    arrays = Counting(**vars(make_arrays(90)))
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


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_hosts_have_the_rows_of_one_that_reads_all_and_any_number_of_them_goes_on(packing, seed):
    draw = np.random.default_rng(seed)
    arrays = make_arrays(60)
    settings: dict[str, Any] = dict(packing=packing, batch_size=8, streams=4)
    alone = make_streams(arrays, **settings)
    states = alone.get_state()
    for hosts in (3, 1, 2):
        # Any device may hold any row, and two devices the same one.
        first, second = draw.permuted(np.arange(8) % hosts), draw.integers(hosts, size=8)
        wanted = [np.flatnonzero((first == host) | (second == host)) for host in range(hosts)]
        read = [make_streams(arrays, **settings, rows=rows.tolist()) for rows in wanted]
        for streams in read:
            streams.set_state(json.loads(json.dumps(states)))
        for _ in range(5):
            batch = next(alone)
            for streams, rows in zip(read, wanted, strict=True):
                own_batch = next(streams)
                assert own_batch.keys() == batch.keys()
                for name, values in own_batch.items():
                    assert values.shape == batch[name].shape
                    np.testing.assert_array_equal(values[rows], batch[name][rows])
        found = [streams.get_state() for streams in read]
        for state, rows in zip(found, wanted, strict=True):
            assert set(state) == {str(row // 2) for row in rows}  # and no other stream was read
        states = dict(collections.ChainMap(*found))
        assert states == alone.get_state()


def test_the_streams_that_hosts_could_share_are_named(monkeypatch):
    told = []
    monkeypatch.setattr(pipeline.logging, "warning", lambda text, *values: told.append(values))
    arrays = make_arrays(20)
    for rows, number in (([0, 1], None), ([2, 3, 6, 7], None), ([2], 8), ([0, 1, 2], 8), ([4], 8)):
        make_streams(arrays, packing=True, streams=4, rows=rows)
        assert [values for values in told if values] == ([(4, number)] if number else [])
        told.clear()
    make_streams(arrays, packing=True, streams=1, rows=[4, 5, 6, 7])
    assert told == [(1, 2)]


def test_the_fingerprint_of_streams_covers_what_decides_the_batches():
    arrays = make_arrays(10)
    lengths = {"inputs": 20, "targets": 20}
    settings: dict[str, Any] = dict(batch_size=8, streams=2, packing=True, lengths=lengths, seed=0)
    changes = [
        {},
        {"batch_size": 4},
        {"streams": 4},
        {"packing": False},
        {"lengths": lengths | {"inputs": 21}},
        {"lengths": lengths | {"targets": 21}},
        {"seed": 1},
        {"masking": Masking(mask_rate=0.15, mask_id=150)},
        {"masking": Masking(mask_rate=0.2, mask_id=150)},
        {"masking": Masking(mask_rate=0.15, mask_id=151)},
        {"arrays": make_arrays(11)},
    ]
    made = [TrainStreams(**({"arrays": arrays} | settings | change)) for change in changes]
    assert len({streams.fingerprint for streams in made}) == len(changes)
    assert TrainStreams(arrays, **settings).fingerprint == made[0].fingerprint


def test_streams_refuse_what_does_not_fit():
    arrays = make_arrays(10)
    with pytest.raises(ValueError, match="data.batch_size=9 .* data.streams=2"):
        make_streams(arrays, packing=True, batch_size=9)
    longest = int(np.diff(arrays.offsets["inputs"]).max())
    with pytest.raises(ValueError, match=f"{longest} tokens in 'inputs'.* only {longest - 1}"):
        make_streams(arrays, packing=True, lengths={"inputs": longest - 1, "targets": longest})
    with pytest.raises(ValueError, match="states of 2 streams, but data.streams=4"):
        states = make_streams(arrays, packing=True).get_state()
        make_streams(arrays, packing=True, streams=4).set_state(states)


EXAMPLES = {
    "source": ["ab", "", "abcdef", "a", "abcd"],
    "target": ["x", "y", "z", "0123456", "wxyz"],
    "text": ["one two", "three", "a longer one", "b", ""],
    "label": ["good", "bad", "bad", "good", "bad"],
    "words": [["one", "two"], ["three"], ["a", "longer", "one"], ["b"], []],
    "tags": [["N", "N"], ["N"], ["D", "A", "N"], ["A"], []],
}
LABELS = {"classification": ("bad", "good"), "tagging": ("A", "D", "N")}
LIMITS = dict(max_source_length=5, max_target_length=6)
ROOMY = dict(max_source_length=20, max_target_length=20)


def tokenise(objective="translation", *, tokenise=pipeline.tokenise, **changes):
    settings: dict[str, Any] = dict(
        examples=EXAMPLES,
        tokenizer=BYTES,
        objective=objective,
        labels=LABELS.get(objective, ()),
        too_long="drop",
        **LIMITS,
    )
    return tokenise(**(settings | changes))


def test_tokens_end_with_eos_and_too_long_examples_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(pipeline, "_CHUNK", 2)  # several chunks, the last one not full
    arrays = tokenise()
    kept = [0, 1, 4]  # 4: exactly as long as the limit on the source, with eos
    assert arrays.too_long == 2
    assert len(arrays) == len(kept)
    for i, example in enumerate(kept):
        for side, column in (("inputs", "source"), ("targets", "target")):
            assert arrays[i][side].tolist() == [
                *BYTES.encode([EXAMPLES[column][example]])[0],
                EOS_ID,
            ]
    assert {column.dtype for column in arrays.columns.values()} == {np.dtype(np.int32)}


def test_in_evaluation_too_long_examples_are_truncated_and_counted():
    arrays = tokenise(too_long="truncate")
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


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_chunks_change_nothing(objective, monkeypatch):
    at_once = tokenise(objective, **ROOMY)
    monkeypatch.setattr(pipeline, "_CHUNK", 2)
    in_chunks = tokenise(objective, **ROOMY)
    assert len(at_once) == len(in_chunks) > 3
    for i in range(len(at_once)):
        assert_same(at_once[i], in_chunks[i])


@pytest.mark.parametrize("examples", [EXAMPLES, {"source": [], "target": []}])
def test_no_example_left(examples):
    with pytest.raises(ValueError, match="no example is left of .*data.max_source_length=1"):
        tokenise(examples=examples, max_source_length=1, max_target_length=1)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_cached_tokens_are_made_once_and_mapped(objective, tmp_path, monkeypatch):
    def cached():
        return tokenise(objective, tokenise=pipeline.cached_tokens, cache_dir=tmp_path, **ROOMY)

    made = tokenise(objective, **ROOMY)
    cached()
    monkeypatch.delattr(pipeline, "tokenise")  # so only the cache can answer
    arrays = cached()
    assert (arrays.too_long, arrays.fingerprint) == (made.too_long, made.fingerprint)
    assert list(arrays.columns) == list(made.columns)  # their order decides that of batches
    assert_same(arrays.columns, made.columns)
    assert_same(arrays.offsets, made.offsets)
    assert not any(column.flags.writeable for column in arrays.columns.values())
    assert [p.name for p in (tmp_path / "tokens").iterdir() if p.is_dir()] == [made.fingerprint]


def test_the_fingerprint_of_tokens_covers_what_made_them():
    swapped = {"source": EXAMPLES["target"], "target": EXAMPLES["source"]}
    words = train_tokenizer("words", ["ab"], 9)
    variants: list[dict[str, Any]] = [
        {},
        {"examples": swapped},
        {"tokenizer": words},
        {"too_long": "truncate"},
        {"max_source_length": 6},
        {"max_target_length": 7},
        {"objective": "causal_lm"},
        {"objective": "masked_lm"},
        {"objective": "classification", "labels": ("bad", "good")},
        {"objective": "classification", "labels": ("good", "bad")},
    ]
    made = [tokenise(**variant) for variant in variants]
    assert len({arrays.fingerprint for arrays in made}) == len(variants)
    beside = EXAMPLES | {"number": [1, 2, 3, 4, 5]}  # a column that the objective does not read
    assert tokenise(examples=beside).fingerprint == made[0].fingerprint


def test_cached_tokenizer_is_trained_once(tmp_path, monkeypatch):
    texts = [*EXAMPLES["source"], *EXAMPLES["target"]]
    trained = pipeline.cached_tokenizer("bpe", texts, 40, False, cache_dir=tmp_path)
    assert trained.decode(trained.encode(["abcd wxyz"])[0]) == "abcd wxyz"
    masked = pipeline.cached_tokenizer("bpe", texts, 40, True, cache_dir=tmp_path)
    assert masked.mask_id is not None
    monkeypatch.delattr(pipeline, "train_tokenizer")
    cached = pipeline.cached_tokenizer("bpe", texts, 40, False, cache_dir=tmp_path)
    assert cached.fingerprint == trained.fingerprint != masked.fingerprint


@pytest.mark.parametrize("n", [1, 16, 53])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_eval_batches_have_every_example_once_in_few_shapes(objective, n):
    arrays = make_arrays(n, objective, longest=70)
    batches = pipeline.eval_batches(arrays, batch_size=8, masking=masking_of(objective))
    assert len(batches) == -(-n // 8)
    seen = []
    for batch, index in batches:
        assert set(batch) == KEYS[objective]
        assert all(len(values) == 8 and values.dtype == np.int32 for values in batch.values())
        real = np.flatnonzero(index >= 0)
        original = unmasked(batch) if objective == "masked_lm" else batch
        assert numbers(original, real, arrays) == index[real].tolist()
        assert not any(values[index < 0].any() for values in batch.values())
        seen += index[real].tolist()
    assert sorted(seen) == list(range(n))
    names = list(arrays.columns)
    shapes = {tuple(batch[name].shape[1] for name in names) for batch, _ in batches}
    lengths = {last for *_, last in shapes}
    assert len(shapes) == len(lengths)
    longest = np.diff(arrays.offsets[names[-1]]).max()
    assert lengths <= {8, 16, 24, 32, 48, 64, longest}


def test_masks_of_an_evaluation_belong_to_the_examples():
    arrays = make_arrays(21, "masked_lm", shortest=30, longest=40)

    def masks(batch_size):
        batches = pipeline.eval_batches(arrays, batch_size=batch_size, masking=MASKING)
        return {
            number: tuple(np.flatnonzero(batch["targets"][row]))
            for batch, index in batches
            for row, number in enumerate(index)
            if number >= 0
        }

    assert masks(8) == masks(5)  # rows of other widths, in other company
    assert len(set(masks(8).values())) == 21


@pytest.mark.parametrize("objective", ["causal_lm", "classification"])
def test_prompt_batches_are_eval_batches_of_lists(objective):
    arrays = make_arrays(21, objective, longest=70)
    prompts = [{k: v.tolist() for k, v in arrays[i].items()} for i in range(len(arrays))]
    longest = max(len(tokens) for prompt in prompts for tokens in prompt.values())
    pairs = zip(
        pipeline.prompt_batches(prompts, batch_size=8, max_length=longest),
        pipeline.eval_batches(arrays, batch_size=8),
        strict=True,
    )
    for (batch, index), (expected, expected_index) in pairs:
        assert_same(batch, expected)
        np.testing.assert_array_equal(index, expected_index)
    assert pipeline.prompt_batches([], batch_size=8, max_length=70) == []


def test_prompts_of_many_lengths_have_few_shapes():
    def width(length):
        ((batch, _),) = pipeline.prompt_batches(
            [{"inputs": [4] * length}], batch_size=1, max_length=20
        )
        return batch["inputs"].shape[1]

    assert [width(length) for length in (1, 8, 9, 16, 17, 20)] == [8, 8, 16, 16, 20, 20]


def test_no_jax_backend_is_started():
    """Streams run in processes and threads beside the trainer, which must own the devices."""
    code = """
import numpy as np
from transformer_jax.data import pipeline
tokens, offsets = np.array([4, 1], np.int32), np.array([0, 2])
arrays = pipeline.TokenArrays({"inputs": tokens}, {"inputs": offsets}, 0, "")
settings = dict(batch_size=2, streams=2, lengths={"inputs": 4}, seed=0)
masking = pipeline.Masking(mask_rate=0.15, mask_id=9)
for packing in (True, False):
    next(pipeline.TrainStreams(arrays, packing=packing, masking=masking, **settings))
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
