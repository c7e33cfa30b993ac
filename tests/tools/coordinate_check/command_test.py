"""What the check of a parameterisation trains, says and returns."""

import re
from typing import Any

import numpy as np
import pytest

from transformer_jax.config.load import load, replace
from transformer_jax.configs import default
from transformer_jax.tools.coordinate_check import command

MUP = {"model.parameterization": "mup", "model.base_width": 64}
COMPLETEP = MUP | {"model.parameterization": "completep", "model.base_depth": 6}


def check(changes):
    config = load(default.__file__, changes)
    return config, command.check_parameterization(config, None)


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

    monkeypatch.setattr(command, "_train", train)
    slow = {"optimizer.burn_in_steps": 20, "optimizer.layer_warm_ups": (("decoder/*", 1, 2, 9),)}
    config, code = check(changes | slow)
    assert code == status and words in capsys.readouterr().out.splitlines()
    for larger in trained:
        model = larger.model
        assert model.head_dim == 64 and model.d_model == 64 * model.num_heads
        assert model.d_ff == 4 * model.d_model
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
        command.check_parameterization(config, None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["standard", "mup"])
def test_mup_stays_flat_where_standard_grows(cache, capsys, monkeypatch, name):
    """At four times the width. Of few seeds, which differ in parameters and data, slopes are
    rougher than the check's own; logits may shrink."""
    trained, train = [], command._train
    monkeypatch.setattr(
        command, "_train", lambda *a, **b: trained.append(train(*a, **b)) or trained[-1]
    )
    sizes = {"d_model": 32, "num_heads": 2, "d_ff": 128, "num_layers": 2}
    sizes |= {"tied_embeddings": "none", "parameterization": name}
    sizes |= {"base_width": 32} if name == "mup" else {}
    changes: dict[str, Any] = {f"model.{key}": value for key, value in sizes.items()}
    changes |= {"data.cache_dir": cache, "data.batch_size": 16}
    config = load("configs/language_model.py", changes)
    few: Any = {"kinds": ("width",), "scales": (1, 4), "seeds": 2}
    status = command.check_parameterization(config, None, **few)
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
