"""Hidden spans: put back they give the text; rate, lengths and places are as T5 draws them."""

import collections
import itertools

import numpy as np
import pytest

from tests.tasks.small import beside, score
from transformer_jax.data.prepare.recipe import Drawing, Limits
from transformer_jax.data.prepare.tokenizer import EOS_ID, train_tokenizer
from transformer_jax.tasks.span_corruption import SENTINELS, TASK, Spans

RECIPE = TASK.recipe
FIRST = 1000  # of the sentinels
SPANS = Spans(0.15, 3.0, tuple(range(FIRST, FIRST + 100)), EOS_ID)


def corrupted(length, seed=0, spans=SPANS):
    text = np.arange(10, 10 + length, dtype=np.int32)
    return text, spans({"text": text}, np.random.default_rng(seed))


def put_back(inputs, targets):
    """The text, whose hidden spans stand behind their sentinels in the targets."""
    assert inputs[-1] == targets[-1] == EOS_ID
    hidden = collections.defaultdict(list)
    for token in targets[:-1].tolist():
        if token >= FIRST:
            sentinel = token
            assert sentinel not in hidden
            hidden[sentinel] = []
        else:
            hidden[sentinel].append(token)
    text = [hidden.pop(token) if token >= FIRST else [token] for token in inputs[:-1].tolist()]
    assert not hidden
    return list(itertools.chain.from_iterable(text))


@pytest.mark.parametrize("length", [2, 3, 7, 20, 511])
@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_the_spans_put_back_are_the_text(length, rate):
    for seed in range(20):
        text, example = corrupted(length, seed, Spans(rate, 3.0, SPANS.sentinels, EOS_ID))
        assert put_back(example["inputs"], example["targets"]) == text.tolist()
        numbers = [token for token in example["inputs"].tolist() if token >= FIRST]
        assert numbers == list(range(FIRST, FIRST + len(numbers)))  # in order, from the first
        assert example["inputs"][0] == text[0]  # T5's mask begins with a token that is shown


def test_a_text_of_one_token_hides_nothing():
    text, example = corrupted(1)
    assert example["inputs"].tolist() == [*text.tolist(), EOS_ID]


def test_rate_and_lengths_are_as_asked_for():
    length, runs = 500, 400
    masks = np.stack([SPANS.mask(length, np.random.default_rng(seed)) for seed in range(runs)])
    assert set(masks.sum(axis=1).tolist()) == {75}  # 15 %
    starts = masks & ~np.pad(masks, ((0, 0), (1, 0)))[:, :-1]
    assert set(starts.sum(axis=1).tolist()) == {25}  # of 3 tokens on average
    # Lengths of spans: 75 divided into 25 parts at random, P(k) = C(74 - k, 23) / C(74, 24).
    ends = masks & ~np.pad(masks, ((0, 0), (0, 1)))[:, 1:]
    lengths = np.flatnonzero(ends.ravel()) - np.flatnonzero(starts.ravel()) + 1
    ones = np.mean(lengths == 1)
    assert abs(ones - 24 / 74) < 4 * np.sqrt(24 / 74 * 50 / 74 / len(lengths))


@pytest.mark.parametrize("length", [5, 12, 40])
def test_masks_are_drawn_as_t5_draws_them(length):
    """random_spans_noise_mask: segment lengths by shuffled starts, shown and hidden in turn."""

    def segments(total, count, rng):
        starts = rng.permutation(np.arange(total - 1) < count - 1)
        return np.bincount(np.cumsum(np.pad(starts, (1, 0))), minlength=count)

    def mask(rng):
        noise = int(np.clip(np.round(length * 0.4), 1, length - 1))
        count = max(int(np.round(noise / 2.0)), 1)
        parts = np.stack([segments(length - noise, count, rng), segments(noise, count, rng)], 1)
        starts = np.zeros(length, int)
        starts[np.cumsum(parts.ravel())[:-1]] = 1
        return np.cumsum(starts) % 2 == 1

    spans, runs = Spans(0.4, 2.0, SPANS.sentinels, EOS_ID), 1000
    rng, other = np.random.default_rng(0), np.random.default_rng(1)
    ours = np.mean([spans.mask(length, rng) for _ in range(runs)], axis=0)
    theirs = np.mean([mask(other) for _ in range(runs)], axis=0)
    assert np.abs(ours - theirs).max() < 5 * np.sqrt(0.5 / runs)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(201, 30, "drop"), "max_target_length=30 cannot hold 30 hidden .* set it to 41"),
        (Limits(3000, 3000, "drop"), "max_source_length=3000 makes 150 spans"),
    ],
)
def test_too_many_spans_and_too_short_targets_are_refused(limits, message):
    tokenizer = train_tokenizer("bytes", [], 0, RECIPE.extra_tokens)
    assert RECIPE.corrupt is not None
    with pytest.raises(ValueError, match=message):
        RECIPE.corrupt(tokenizer, Drawing(0.15, 3.0, limits, training=True))


def test_samples_show_what_the_model_puts_behind_each_sentinel(models):
    run, params = models("span_corruption")
    scores, samples = score(run, params, run.data.split("test"))
    assert scores == {} and samples
    for source, target, _ in samples:
        assert SENTINELS[0] in source and SENTINELS[0] in target


def test_text_to_text_can_start_from_all_parameters_of_span_corruption(models, tmp_path):
    run, _ = models("span_corruption")
    run.data.tokenizer.save(tmp_path / "tokenizer.json")
    changes = {"task.name": "text_to_text", "checkpoint.init_from": str(tmp_path)}
    tuned = beside(run, changes)
    assert tuned.data.tokenizer.fingerprint == run.data.tokenizer.fingerprint
    shapes = {path: role.shape for path, role in tuned.roles.items()}
    assert shapes == {path: role.shape for path, role in run.roles.items()}
