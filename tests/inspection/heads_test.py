"""Where heads look, what the stream is like, single kernels and losses by place: slow NumPy."""

import itertools
import math
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.defaults import loss_settings
from tests.inspection.models import ADMIN, LOSS, PRE_LN, forward_pass, make
from tests.models import tiny
from transformer_jax.inspection import heads, kernels, losses, stream
from transformer_jax.inspection.kernels import is_kernel
from transformer_jax.inspection.measures import PROBES, Step
from transformer_jax.tasks import TASKS


@pytest.fixture(scope="module")
def decoder() -> Any:
    return jax.device_get(forward_pass(ADMIN)[2]["decoder"])


def texts(segments: np.ndarray) -> list[tuple[int, list[Any]]]:
    """The row and the places of each text of a packed batch."""
    return [
        (row, list(np.flatnonzero(segments[row] == number)))
        for row in range(len(segments))
        for number in sorted(set(segments[row]) - {0})
    ]


def shares(decoder, keys_of) -> np.ndarray:
    """The mean weight of queries on what `keys_of` names, of those that it names anything for."""
    weights, masses = decoder.weights["self_attention"], []
    for row, places in texts(decoder.segments):
        for at, query in enumerate(places):
            if keys := [places[key] for key in keys_of(row, places, at)]:
                masses.append(np.sum(weights[:, row, :, query][..., keys], axis=-1))
    assert len(masses) > 4
    return np.mean(masses, axis=0)


def test_shares_of_heads_are_those_of_plain_loops(decoder):
    tokens = np.asarray(heads.read_tokens(tiny.packed_batch(), "decoder"))

    def copies(row, places, at):
        token = tokens[row, places[at]]
        return [key for key in range(at) if tokens[row, places[key]] == token]

    expected = {
        heads.sink_mass: shares(decoder, lambda row, places, at: [0] if at else []),
        heads.previous_token: shares(decoder, lambda row, places, at: [at - 1] if at else []),
    }
    for measure, value in expected.items():
        np.testing.assert_allclose(measure(decoder), value, rtol=1e-5)
    # Few tokens occur twice in a text: each third is made alike, but for what begins a text.
    tokens = np.where(tokens < 0, tokens, tokens % 3)
    few = jnp.asarray(tokens)
    duplicates = shares(decoder, copies)
    np.testing.assert_allclose(heads.duplicate_token(decoder, few), duplicates, rtol=1e-5)
    followed = shares(decoder, lambda *text: [key + 1 for key in copies(*text)])
    np.testing.assert_allclose(heads.prefix_match(decoder, few), followed, rtol=1e-5)


def test_values_of_first_tokens_and_what_weights_lack_of_1(decoder):
    norms = decoder.value_norm["self_attention"]
    places = [(row, text) for row, text in texts(decoder.segments)]
    first = np.mean([norms[:, row, :, text[0]] for row, text in places], axis=0)
    others = np.mean([norms[:, row, :, at] for row, text in places for at in text[1:]], axis=0)
    np.testing.assert_allclose(heads.value_ratio(decoder), first / others, rtol=1e-5)
    lacking = {"self_attention": 0.75 * decoder.weights["self_attention"]}
    mass = heads.off_by_one_mass(decoder._replace(weights=lacking), "self_attention")
    np.testing.assert_allclose(mass, 0.25, rtol=1e-5)


def test_the_rate_of_sinks_counts_heads_and_texts(decoder):
    weights, above = decoder.weights["self_attention"], []
    for row, places in texts(decoder.segments):
        if len(places) > 1:
            above.append(np.mean(weights[:, row, :, places[1:], places[0]], axis=0) > heads.SINK)
    np.testing.assert_allclose(heads.sink_rate(decoder), np.mean(above, axis=(0, 2)), rtol=1e-6)
    assert 0 < np.mean(above) < 1


def test_the_stream_is_that_of_plain_loops(decoder):
    real = decoder.segments > 0
    firsts = [(row, places[0]) for row, places in texts(decoder.segments)]
    others = [(row, at) for row, places in texts(decoder.segments) for at in places[1:]]
    peak_first, peak_others = stream.peak_share(decoder)
    measured = {
        "max": stream.max_activation(decoder),
        "ratio": stream.absmax_ratio(decoder),
        "kurtosis": stream.kurtosis(decoder),
        "rank": stream.effective_rank(decoder),
        "peak_first": peak_first,
        "peak_others": peak_others,
        "norm": stream.norm_ratio(decoder),
    }
    assert {len(values) for values in measured.values()} == {len(decoder.outputs)}
    for number, hidden in enumerate(decoder.outputs):
        tokens = hidden[real].astype(np.float64)
        rows = [abs(hidden[row][real[row]]) for row in range(len(hidden)) if real[row].any()]
        peaks = {k: np.mean([max(hidden[at] ** 2) / sum(hidden[at] ** 2) for at in v])
                 for k, v in (("first", firsts), ("others", others))}  # fmt: skip
        norms = [np.mean([np.linalg.norm(hidden[at]) for at in v]) for v in (firsts, others)]
        values = np.linalg.svd(tokens - tokens.mean(axis=0), compute_uv=False) ** 2
        shares = values / values.sum()
        for name, value in {
            "max": abs(tokens).max(),
            "ratio": np.mean([row.max() / np.median(row) for row in rows]),
            "kurtosis": np.mean(tokens**4) / np.mean(tokens**2) ** 2,
            "rank": math.exp(-sum(p * math.log(p) for p in shares if p > 0)),
            "peak_first": peaks["first"],
            "peak_others": peaks["others"],
            "norm": norms[0] / norms[1],
        }.items():
            np.testing.assert_allclose(measured[name][number], value, rtol=2e-4, err_msg=name)


@pytest.fixture(scope="module")
def step() -> Step:
    before = tiny.random_parameters(PRE_LN)
    after = jax.tree.map(lambda leaf: leaf + 0.01 * jnp.sin(99 * leaf), before)
    return Step(make(PRE_LN), LOSS, tiny.roles(PRE_LN), before, after, tiny.packed_batch())


def test_kernels_are_measured_one_by_one(step):
    change = jax.tree.map(jnp.subtract, step.after, step.before)
    leaves = jax.device_get(tiny.flat(step.before))
    names = {name for name in leaves if is_kernel(step.roles[name])}
    norms = kernels.norms(step.before, step.roles)
    ranks = kernels.stable_ranks(step.before, step.roles)
    same = kernels.cosines(step.before, step.before, step.roles)
    between = kernels.cosines(change, step.before, step.roles)
    assert norms.keys() == ranks.keys() == same.keys() == names
    assert {"decoder/feed_forward/up", "decoder/self_attention/output"} <= names
    for name in names:
        inputs = (step.roles[name].matrix or (1, 0))[0]
        for layer, kernel in enumerate(leaves[name]):
            matrix = kernel.reshape(math.prod(kernel.shape[:inputs]), -1)
            singular = np.linalg.svd(matrix, compute_uv=False)
            np.testing.assert_allclose(norms[name][layer], np.linalg.norm(matrix), rtol=1e-5)
            exact = np.sum(singular**2) / singular[0] ** 2
            assert exact * 0.999 <= ranks[name][layer] <= exact * 1.3, name
            moved = np.sin(99 * matrix)
            cosine = np.sum(moved * matrix) / np.linalg.norm(moved) / np.linalg.norm(matrix)
            np.testing.assert_allclose(between[name][layer], cosine, atol=2e-3)
        np.testing.assert_allclose(same[name], 1, rtol=1e-5)
    # Where one singular value stands out, it is exact: here 2 beside 1s.
    up = "decoder/feed_forward/up"
    before: Any = step.before
    array = np.stack([np.eye(16, 24) + np.eye(16, 24) * (np.arange(24) == 0)] * 2)
    stack = before["decoder"] | {"feed_forward": before["decoder"]["feed_forward"] | {"up": array}}
    singled = kernels.stable_ranks(before | {"decoder": stack}, step.roles)
    np.testing.assert_allclose(singled[up], (15 + 4) / 4, rtol=1e-3)


def test_losses_by_place_and_by_layer(step):
    outputs, batch = step.outputs, step.batch
    each = losses.of_tokens(outputs, batch, LOSS)
    assert each is not None
    logits = np.asarray(outputs.arrays(), np.float64)
    expected = np.log(np.sum(np.exp(logits), axis=-1))
    expected -= np.take_along_axis(logits, np.asarray(batch["targets"])[..., None], -1)[..., 0]
    real = np.asarray(batch["targets_segment_ids"]) > 0
    np.testing.assert_allclose(each[real], expected[real], rtol=1e-4)
    assert np.all(np.isnan(each[~real]))
    places = np.asarray(batch["targets_positions"])
    by_place = np.asarray(losses.by_place(each, jnp.asarray(places)))
    for number, (low, high) in enumerate(itertools.pairwise([0, 1, 2, 4, 8])):
        bucket = each[real & (places >= low) & (places < high)]
        np.testing.assert_allclose(by_place[number], np.mean(bucket) if bucket.size else np.nan)
    # The last sublayer's stream gives the model's own logits.
    lens = PROBES["lens"](step)["decoder"]
    np.testing.assert_allclose(lens[-1], np.nanmean(each), rtol=1e-5)
    assert len(lens) == len(step.stacks["decoder"].outputs)
    np.testing.assert_array_equal(
        np.where(real, losses.places(batch["targets_segment_ids"]), 0), np.where(real, places, 0)
    )
    # A row that goes on with a text, and the next one.
    assert losses.places(jnp.asarray([[3, 3, 3, 1, 1]])).tolist() == [[0, 1, 2, 0, 1]]
    far = np.arange(2**14 + 1)[None]  # of which a float's logarithm takes some for less
    by_place = losses.by_place(jnp.asarray(far, jnp.float32), jnp.asarray(far))
    expected = [0, *((2**n + 2 ** (n + 1) - 1) / 2 for n in range(14)), 2**14]
    np.testing.assert_allclose(by_place, expected, rtol=1e-5)
    rows = np.arange(64, dtype=np.float64)[None]
    score = losses.in_context_score(jnp.asarray(-rows), jnp.asarray(rows, int))
    assert score == np.mean(-rows[0, 56:]) - np.mean(-rows[0, 4:8])


DECODER, ENCODER = {"architecture": "decoder_only"}, {"architecture": "encoder_only"}
# What stands between the stream and the logits, by its task; of which the lens says nothing.
LOOKED_AT = {
    "residual_dual": ("causal_lm", DECODER | {"residual": "residual_dual"}, False),
    "masked_tokens": ("masked_lm", ENCODER, False),
    "a norm without parameters": ("causal_lm", DECODER | {"norm": "layer_norm_plain"}, True),
    **{
        f"{head}, {pooling}": (task, ENCODER | dict(head=head, num_labels=5, pooling=pooling), same)
        for head, task, pooling, same in (
            ("tags", "tagging", "mean", True),
            ("classes", "classification", "first", True),
            ("classes", "classification", "mean", False),
            ("classes", "classification", "pooler", False),
        )
    },
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_the_last_lens_is_the_models_own_loss_or_there_is_none(name):
    task, changes, same = LOOKED_AT[name]
    config = tiny.config(**({"residual": "pre_ln"} | changes))
    loss, params = TASKS[task].bound_loss(loss_settings()), tiny.random_parameters(config)
    batch = dict(tiny.read_by(config, tiny.packed_batch()))
    if config.architecture == "encoder_only":
        real = np.asarray(batch["inputs_segment_ids"]) > 0
        first = real & (np.asarray(batch["inputs_positions"]) == 0)
        batch["targets"] = np.where(real, batch["inputs"], 0)
        batch["labels"] = np.where(first if config.head == "classes" else real, 3, 0)
    step = Step(make(config), loss, tiny.roles(config), params, params, batch)
    lens, each = PROBES["lens"](step), losses.of_tokens(step.outputs, step.batch, loss)
    if not same:
        assert lens == {}
        return
    assert each is not None
    ((_, means),) = lens.items()
    np.testing.assert_allclose(means[-1], np.nanmean(each), rtol=1e-5)


def test_noise_is_that_of_gradients_row_by_row(monkeypatch):
    """Of a loss that is linear in the parameters rows' gradients are known: x itself."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 3)).astype(np.float32) + 1

    def summed_loss(model, loss, params, batch):
        return jnp.sum((batch["n"] @ batch["x"]) * params["w"]), jnp.sum(batch["n"])

    monkeypatch.setattr(losses, "summed_loss", summed_loss)
    nothing: Any = types.SimpleNamespace(with_totals=lambda batch: batch)

    @jax.jit
    def noise_of(means, weights):
        batch = {"x": means, "n": weights.astype(jnp.float32)}
        return losses.noise(nothing, nothing, {"w": jnp.zeros(3)}, batch)

    # Of tokens that all deviate alike, rows of few and of many of them say the same of a batch.
    traces, squares = [], []
    for _ in range(200):
        weights = rng.choice([0, 2, 60], 64)
        spread = 1 / np.sqrt(np.maximum(weights, 1))[:, None]
        noise = noise_of(1 + spread * rng.normal(size=(64, 3)), weights)
        tokens = np.sum(weights)  # of a batch, whose mean has a variance of 3 / tokens
        traces.append(noise["trace"] * tokens / 64 / 3)
        squares.append(noise["square"])
    np.testing.assert_allclose(np.mean(traces), 1, rtol=0.1)
    np.testing.assert_allclose(np.mean(squares), 3, rtol=0.05)

    noise = noise_of(rows, np.full(6, 7))
    covariance = np.cov(rows.T, ddof=1)
    np.testing.assert_allclose(noise["trace"], np.trace(covariance), rtol=1e-5)
    mean = rows.mean(axis=0)
    np.testing.assert_allclose(noise["square"], mean @ mean - np.trace(covariance) / 6, rtol=1e-4)
