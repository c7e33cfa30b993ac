"""The norm of a gradient by differences of losses; what slopes of made-up norms are held to be."""

import functools

import jax
import numpy as np
import pytest

from experiments.harness import lab
from experiments.initial_gradients import measure, report
from tests.experiments import tiny
from tests.experiments.harness.runs import finished
from transformer_jax.config.build import build


@pytest.mark.long
def test_the_norm_is_how_fast_the_loss_changes_along_the_last_matrix(tmp_path, compiled_once):
    config = tiny.config(tmp_path, 4, {"model.residual": "post_ln", "model.num_layers": 2})
    (row,) = measure.measure(config, tmp_path, layers=[2], draws=1)
    (key,) = jax.random.split(jax.random.key(config.seed), 1)
    batch_key, key = jax.random.split(key)
    run = build(config)
    batch = lab.random_batch(batch_key, run.model.config.vocab_size, measure.ROWS, measure.LENGTH)
    params = jax.jit(functools.partial(lab.draw, run))(key, batch)
    layer = params["decoder"]["feed_forward"]

    def loss(down):
        moved = params["decoder"] | {"feed_forward": layer | {"down": down}}
        return lab.mean_loss(run, run.model, params | {"decoder": moved}, batch)

    # Both ways along the gradient of the last layer alone.
    down, both = np.array(layer["down"]), jax.jit(jax.value_and_grad(loss))
    direction = np.array(both(down)[1])
    direction[:-1] = 0
    direction *= 0.05 / np.linalg.norm(direction)
    change = both(down + direction)[0] - both(down - direction)[0]
    assert (row["layers"], row["draw"]) == (2, 0)
    assert row["down"] == pytest.approx(float(change) / 0.1, rel=0.02)


@pytest.mark.parametrize(
    ("exponent", "noise", "said"),
    [
        (-0.5, 0.01, report.HELD),
        (-0.45, 0.01, report.HELD),
        (-0.3, 0.01, report.CONTRADICTED),
        (-0.42, 0.2, report.UNDECIDED),
    ],
)
def test_a_slope_is_held_against_what_is_foretold(exponent, noise, said, tmp_path, undrawn):
    rng = np.random.default_rng(0)
    rows = [
        {"layers": n, "draw": draw, "down": n**exponent * np.exp(rng.normal() * noise), "up": 1.0}
        for draw in range(4)
        for n in (6, 12, 24)
    ]
    slope = report.slope(rows, "down")
    assert abs(slope.value - exponent) < slope.half_width
    assert report.slope(rows, "up").value == pytest.approx(0)
    assert report.verdict(slope, -0.5) == said
    labels = {"architecture": "decoder_only", "scheme": "pre_ln"}
    runs = [finished(labels, rows), finished(labels | {"architecture": "encoder_only"}, rows)]
    assert f"| {said} |" in report.report(runs, tmp_path)
    numbers = report.results.read_json(tmp_path / "summary.json")
    assert numbers["slope/decoder_only/pre_ln/down"] == pytest.approx(slope.value, rel=1e-4)
