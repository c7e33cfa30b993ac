"""Norms of gradients of a model that was drawn; what slopes of made-up norms are held to be."""

import jax
import numpy as np
import pytest

from experiments.harness import lab
from experiments.initial_gradients import measure, report
from tests.experiments import tiny
from tests.experiments.harness.runs import finished
from transformer_jax.config.build import build


@pytest.mark.long
def test_norms_are_of_the_gradients_of_the_last_layers_matrices(tmp_path, compiled_once):
    config = tiny.config(tmp_path, 4, {"model.residual": "post_ln", "model.num_layers": 2})
    (row,) = measure.measure(config, tmp_path, layers=[2], draws=1)
    (key,) = jax.random.split(jax.random.key(config.seed), 1)
    batch_key, key = jax.random.split(key)
    run = build(config)
    batch = lab.random_batch(batch_key, run.model.config.vocab_size, measure.ROWS, measure.LENGTH)

    @jax.jit
    def gradient(key):
        params = lab.draw(run, key, batch)
        return jax.grad(lambda params: lab.mean_loss(run, run.model, params, batch))(params)

    layers = gradient(key)["decoder"]["feed_forward"]
    assert (row["layers"], row["draw"]) == (2, 0)
    for name in ("up", "down"):
        assert row[name] == pytest.approx(float(np.linalg.norm(layers[name][1])), rel=1e-4)


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
