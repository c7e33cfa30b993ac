"""What the check of a parameterisation trains, says and returns: sizes, and slopes of them."""

import re
from typing import Any

import numpy as np
import pytest

from tests.inspection.models import POST_LN, make, observe_function
from tests.models import tiny
from transformer_jax.config.load import load, replace
from transformer_jax.configs import default
from transformer_jax.tools import coordinate_check

MUP = {"model.parameterization": "mup", "model.base_width": 64}
COMPLETEP = MUP | {"model.parameterization": "completep", "model.base_depth": 6}


@pytest.mark.parametrize(
    ("changes", "grows", "status", "words"),
    [
        ({}, "d_model", 1, "Not flat: x +0.50."),
        (MUP, "d_model", 1, "Not flat: x +0.50."),
        (MUP, "num_layers", 0, "Not flat: x +0.50. ('mup' does not follow depth.)"),
        (COMPLETEP, "num_layers", 1, "Not flat: x +0.50."),
        (COMPLETEP, "nothing", 0, "Flat within 0.05 from step 8 on."),
    ],
)
def test_what_grows_decides(monkeypatch, capsys, changes, grows, status, words):
    trained = []

    def train(config, workdir, changes, seeds):
        larger = replace(config, changes)
        trained.append(larger)
        scale = larger.model[grows] / config.model[grows] if grows != "nothing" else 1.0
        return seeds * [{"x": np.full(11, scale**0.5)}]

    monkeypatch.setattr(coordinate_check, "_train", train)
    slow = {"optimizer.burn_in_steps": 20, "optimizer.layer_warm_ups": (("decoder/*", 1, 2, 9),)}
    config = load(default.__file__, changes | slow)
    code = coordinate_check.check_parameterization(config, None)
    assert code == status and words in capsys.readouterr().out.splitlines()
    for larger in trained:
        model = larger.model
        assert model.head_dim == 64 and model.d_model == 64 * model.num_heads
        assert model.d_ff == 4 * model.d_model
        assert larger.train.steps == config.train.steps  # of which momenta of AdEMAMix are made
        assert larger.optimizer.schedule == "constant"
        assert larger.optimizer.burn_in_steps == 0 and larger.optimizer.layer_warm_ups == ()
        # Vaswani et al. 2017, equation 3; of the base's width, where the row does the rest.
        width = 64 if changes else model.d_model
        assert larger.optimizer.learning_rate == pytest.approx((width * 4000) ** -0.5)
    sizes = {(larger.model.d_model, larger.model.num_layers) for larger in trained}
    assert sizes == {(512 * n, 6) for n in (1, 2, 4, 8)} | {(512, 6 * n) for n in (1, 2, 4, 8)}


def test_a_family_that_shows_nothing_is_refused():
    config = load(default.__file__, {"model.family": "recurrent"})
    with pytest.raises(ValueError, match="model.family='recurrent' shows nothing"):
        coordinate_check.check_parameterization(config, None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["standard", "mup"])
def test_mup_stays_flat_where_standard_grows(cache, capsys, monkeypatch, name):
    """At four times the width. Of few seeds, which differ in parameters and data, slopes are
    rougher than the check's own; logits may shrink."""
    trained, train = [], coordinate_check._train
    monkeypatch.setattr(
        coordinate_check, "_train", lambda *a, **b: trained.append(train(*a, **b)) or trained[-1]
    )
    sizes = {"d_model": 32, "num_heads": 2, "d_ff": 128, "num_layers": 2}
    sizes |= {"tied_embeddings": "none", "parameterization": name}
    sizes |= {"base_width": 32} if name == "mup" else {}
    changes: dict[str, Any] = {f"model.{key}": value for key, value in sizes.items()}
    changes |= {"data.cache_dir": cache, "data.batch_size": 16}
    config = load("configs/language_model.py", changes)
    few: Any = {"kinds": ("width",), "scales": (1, 4), "seeds": 2}
    status = coordinate_check.check_parameterization(config, None, **few)
    for one, other in trained:
        assert np.all(one["decoder input"] != other["decoder input"])
    lines = re.findall(r"^(.+?)((?: +[+-](?:nan|\d\.\d\d)){5})$", capsys.readouterr().out, re.M)
    late = {key: float(slopes.split()[-1]) for key, slopes in lines}
    assert len(late) == 6 and np.isfinite(list(late.values())).all()
    if name == "mup":
        assert max(late.values()) < 0.1
        assert min(slope for key, slope in late.items() if not key.endswith("logits")) > -0.1
    else:
        assert status == 1
        assert late["change of decoder input"] > 0.25 and late["logits"] > 0.25


@pytest.mark.long
def test_sizes_are_means_over_real_tokens():
    batch = tiny.packed_batch()
    before, after = (tiny.random_parameters(POST_LN, seed) for seed in (0, 1))
    sizes = coordinate_check.sizes(make(POST_LN), before, after, batch)
    look = observe_function(POST_LN)
    (old_outputs, olds), (outputs, news) = look(before, batch), look(after, batch)
    real = batch["targets_segment_ids"] > 0
    pairs = {"logits": (old_outputs.arrays(), outputs.arrays(), real)}
    for stack, activations in news.items():
        real = activations.real
        pairs[f"{stack} input"] = olds[stack].inputs[0], activations.inputs[0], real
        pairs[f"{stack} output"] = olds[stack].final, activations.final, real
    expected = {}
    for name, (old, new, real) in pairs.items():
        expected[name] = np.mean(np.abs(np.asarray(new)[real]))
        expected[f"change of {name}"] = np.mean(np.abs(np.asarray(new - old)[real]))
    assert sizes.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(sizes[name], value, rtol=1e-5, err_msg=name)


def test_slopes_are_the_powers():
    scales, powers = (1, 2, 4, 8), np.array([0.0, -0.5, 1.25])
    sizes = [
        [{"x": scale**powers * (1 + 0.1 * seed), "nothing": np.zeros(3)} for seed in range(3)]
        for scale in scales
    ]
    slopes = coordinate_check.slopes(scales, sizes)
    np.testing.assert_allclose(slopes["x"], powers, atol=1e-12)
    np.testing.assert_array_equal(slopes["nothing"], 0.0)  # before the first change, and frozen
    for seed in sizes[2]:
        seed["x"] = np.array([0.0, np.nan, 1.0])  # a 0 among others has no slope
    assert np.isnan(coordinate_check.slopes(scales, sizes)["x"][:2]).all()


@pytest.mark.parametrize(
    ("name", "slopes", "expected"),
    [
        ("decoder output", [9.0] * 8 + [0.04, -0.05, 0.0], None),
        ("decoder output", [0.0] * 8 + [0.04, -0.07, 0.06], -0.07),
        ("change of decoder output", [0.0] * 9 + [0.2, 0.1], 0.2),
        ("logits", [0.0] * 8 + [-0.5, -0.3, -0.2], None),
        ("change of logits", [0.0] * 8 + [0.1, 0.06, 0.0], 0.1),
        ("decoder input", [0.0] * 10 + [np.nan], np.nan),
    ],
)
def test_what_grows_from_the_eighth_step_on_is_told(name, slopes, expected):
    growth = coordinate_check.grown({name: np.array(slopes)})
    np.testing.assert_equal(growth, {} if expected is None else {name: expected})
