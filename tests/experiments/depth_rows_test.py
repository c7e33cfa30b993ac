"""Draws and depth rows: layers that are left out, rates by step, and what the lines say."""

import functools

import jax
import numpy as np
import pytest

from experiments.depth_rows import report
from experiments.draws import report as draws
from experiments.harness import lab, layers
from experiments.harness.trainings import Trainings
from tests.experiments import tiny
from transformer_jax.config.build import build

LAYERS = 3


def test_a_layer_that_is_left_out_is_one_whose_branches_end_in_zeros(tmp_path):
    shapes = {"model.num_layers": LAYERS, "optimizer.name": "adamw"}
    trainings = Trainings(build(tiny.config(tmp_path, 3, shapes)))
    *_, last = trainings.steps(0.02, 0)
    params, run, batch = last.state.params, trainings.run, last.batch
    look = jax.jit(lambda params: layers.look(run, params, batch))
    mean_loss = jax.jit(lambda params: lab.mean_loss(run, run.model, params, batch))
    losses_without = jax.jit(lambda params: layers.losses_without(run, params, batch))
    readings, drops = jax.device_get((look(params), losses_without(params)))
    whole = mean_loss(params)

    def ended(path, leaf, layer):
        last = path[-1].key.startswith(("output", "down"))  # of its branch, and the bias of that
        return leaf.at[layer].set(0) if last else leaf

    for layer in range(LAYERS):
        end = functools.partial(ended, layer=layer)
        decoder = jax.tree_util.tree_map_with_path(end, params["decoder"])
        changed = params | {"decoder": decoder}
        assert drops[layer] == pytest.approx(float(mean_loss(changed) - whole), abs=1e-6)
        others = jax.device_get(look(changed))
        assert others["branch"][layer] == 0 < readings["branch"][layer]
        assert others["angle"][layer] < 1e-3 < readings["angle"][layer]


def losses(**means):
    return {arm: [mean - 0.001, mean, mean + 0.001] for arm, mean in means.items()}


def rows(power, drop):
    return [
        {"seed": seed, "layer": n, "stream": n**power, "drop": drop}
        for seed in (1, 2)
        for n in range(1, 7)
    ]


def test_lines_on_depth():
    layers = {"pre_ln": rows(1.0, 0.01), "ln_scaling": rows(0.5, 0.03)}
    arms = losses(pre_ln=2.0, ln_scaling=1.95, dyt=2.0, derf=1.9, x0=1.97, post_ln=3.0)
    text, numbers = report._deep(arms, layers)
    assert text.count("**held**") == 4
    assert "Derf is not ahead of its norm twin*: **contradicted" in text
    assert numbers["ln_scaling/slope"] == pytest.approx(0.5)
    assert numbers["ln_scaling/last_third"] == pytest.approx(0.03)
    same = {"pre_ln": layers["pre_ln"], "ln_scaling": layers["pre_ln"]}
    text, _ = report._deep(arms | losses(ln_scaling=2.0), same)
    assert text.count("**contradicted**") == 4
    missing, _ = report._deep(losses(pre_ln=2.0), {})
    assert missing.count("**undecided**") == 3 and "contradicted" not in missing
    diverged = arms | {"ln_scaling": [np.nan] * 3}
    assert "LN scaling is better at 24 layers*: **undecided" in report._deep(diverged, layers)[0]


@pytest.mark.parametrize(
    ("shallow", "deep", "verdict"),
    [(0.05, 0.02, "held"), (0.02, 0.05, "contradicted"), (0.01, -0.05, "contradicted"),
     (0.001, 0.0, "undecided"), (0.05, None, "undecided")],
)  # fmt: skip
def test_the_line_on_x0(shallow, deep, verdict):
    numbers = {"shallow/x0/gain": shallow, "deep/x0/gain": deep}
    errors = {"shallow/x0/error": 0.001, "deep/x0/error": 0.001}
    assert f"**{verdict}**" in report.over_depths(numbers | errors)


def test_the_line_on_scaled_draws_and_ln_scaling():
    arms = {"pre_ln, normal": 2.0, "ln_scaling, normal": 1.9, "pre_ln, gpt2": 1.95}
    assert "**held**" in report._draws(losses(**arms, **{"ln_scaling, gpt2": 1.94}), {})[0]
    assert "**contradicted**" in report._draws(losses(**arms, **{"ln_scaling, gpt2": 1.8}), {})[0]
    assert "**undecided**" in report._draws(losses(**arms), {})[0]


def test_lines_on_draws():
    text, _ = draws.verdicts(losses(xavier=2.0, normal=2.0, gpt2=1.95), {})
    assert "its own rate*: **held**" in text and "scale the rate*: **contradicted**" in text
    text, _ = draws.verdicts(losses(xavier=2.0, normal=2.002, gpt2=2.001), {"xavier": 2.0})
    assert "its own rate*: **contradicted**" in text and "scale the rate*: **held**" in text
    text, _ = draws.verdicts(losses(xavier=2.0, normal=2.0, small=2.0), {}, whole=False)
    assert "its own rate*: **undecided**" in text and "scale" not in text
