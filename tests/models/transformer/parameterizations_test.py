"""Parameterisations: what each parameter gets, what changes nothing, and what trains alike."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from tests.defaults import make_optimizer
from tests.models import tiny
from tests.stepwise import stepwise
from transformer_jax.models.family import roles
from transformer_jax.models.layers.parameter import Boxed, Share
from transformer_jax.models.transformer import initialisation, parameterizations
from transformer_jax.models.transformer.config import branch_multiplier
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS, Growth, share

ROWS = {name: row for name, row in PARAMETERIZATIONS.items() if row}
KEY = jax.random.key(0)
WIDTH, LAYERS = tiny.SIZES["d_model"], tiny.SIZES["num_encoder_layers"]
APART = dict(tied_embeddings="none")

# By row and kind of parameter: exponents of the width on deviation, multiplier, learning rate and
# epsilon (Yang et al. 2021, table 8; Everett et al. 2024, tables 1 and 4).
WIDTHS = {
    "standard_by_layer": dict(
        embedding=(0, 0, 0, -0.5), hidden=(-0.5, 0, -1, -0.5), output=(-0.5, 0, -1, 0)
    ),
    "ntk": dict(
        embedding=(0, 0, 0, -0.5), hidden=(0, -0.5, -0.5, -1), output=(0, -0.5, -0.5, -0.5)
    ),
    "mup": dict(embedding=(0, 0, 0, -1), hidden=(-0.5, 0, -1, -1), output=(0, -1, 0, -1)),
    "mean_field": dict(
        embedding=(0, 0, 0, -1), hidden=(0, -0.5, -0.5, -1.5), output=(0, -1, 0, -1)
    ),
}
WIDTHS |= dict.fromkeys(("completep", "depth_mup"), WIDTHS["mup"])
# Dey et al. 2025, table 1.
ALPHAS = {"completep": 1.0, "depth_mup": 0.5}


def kind(path):
    """embedding, hidden, output, gain of a head; vector of a layer; other: vectors outside."""
    *_, module, name = path.split("/")
    if name in ("omega",) or module == "branch_scale":
        return "other"
    if name == "table" and "bias" not in module:
        return "embedding"
    if name in ("kernel", "labels"):
        return "output"
    if name in ("query", "key", "value", "distance", "output", "up", "down", "gate", "transform"):
        return "hidden"
    if module in ("query_norm", "key_norm", "value_norm", "stream_scale", "input_scale"):
        return "head"
    return "vector" if path.startswith(("encoder/", "decoder/")) else "other"


def sized(name, factor=1, layers=LAYERS, **changes):
    """The tiny model, so many times as wide and of so many layers, at the tiny one's base."""
    widths = {key: factor * tiny.SIZES[key] for key in ("d_model", "num_heads", "d_ff")}
    depths = dict(num_encoder_layers=layers, num_decoder_layers=layers)
    base = dict(base_width=WIDTH, base_depth=LAYERS) if name in ROWS else {}
    return tiny.config(**(widths | depths | base | APART | changes), parameterization=name)


def check_share(factors, name, group, width, depth, path):
    """That a parameter of this kind has the factors of the formulas."""
    draw, multiplier, rate, epsilon = WIDTHS[name].get(group, (0, 0, 0, 0))
    if group in ("vector", "head"):
        epsilon = WIDTHS[name]["embedding"][3] + (group == "head")
    alpha = ALPHAS.get(name, 0.0) if group != "other" else 0.0
    deep = depth if alpha else 1
    assert factors.deviation == pytest.approx(width**draw), path
    assert factors.multiplier == pytest.approx(width**multiplier), path
    assert factors.learning_rate == pytest.approx(width**rate * deep ** (alpha - 1)), path
    assert factors.epsilon == pytest.approx(width**epsilon * deep**-alpha), path


@pytest.mark.parametrize("name", ROWS)
def test_each_kind_of_parameter_has_the_factors_of_its_row(name):
    factor, layers = 4, 6
    changes = dict(architecture="decoder_only", residual="admin", qk_norm=True, positions="learned")
    config = sized(name, factor, layers, **changes, logits_bias=True)
    alpha, depth = ALPHAS.get(name, 0.0), layers / LAYERS
    kinds = set()
    for path, role in tiny.roles(config).items():
        kinds.add(group := kind(path))
        in_stack = path.startswith("decoder/")
        check_share(role.share, name, group, factor, depth if in_stack else 1, path)
    assert kinds == {"embedding", "hidden", "output", "head", "vector", "other"}
    branch = branch_multiplier(config, "decoder")
    assert branch == pytest.approx(depth**-alpha if alpha else 1)
    expected = [factor ** WIDTHS[name][role][1] for role in ("embedding", "hidden", "output")]
    expected[0] *= WIDTH**0.5
    assert config.multipliers == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("standard_by_layer", "decoder_only"), ("mup", "masked_tokens"), ("ntk", "tags")],
)
def test_draws_have_the_deviation_of_the_row(name, shape):
    """That of the other rows is a factor of `check_share`."""
    factor, checked = 4, set()
    sizes: Any = dict(vocab_size=200, positions="learned") | tiny.SHAPES[shape]
    small, large = (
        tiny.flat(tiny.initial_parameters(config))
        for config in (sized("standard", **sizes), sized(name, factor, **sizes))
    )
    for path, leaf in large.items():
        if (group := kind(path)) not in WIDTHS[name] or leaf.ndim < 2:
            continue
        checked.add(group)
        expected = np.std(small[path]) * factor ** WIDTHS[name][group][0]
        # The one of the small model is a sample, too.
        error = 4 * (0.5 / small[path].size + 0.5 / leaf.size) ** 0.5
        assert abs(np.std(leaf) / expected - 1) < error, path
    assert checked == {"embedding", "hidden", "output"}


def test_draws_by_inputs_alone_have_the_deviation_of_the_row():
    """Of convolutions, whose first one reads pixels, and of DETR's heads, of which one tells 4."""
    images: Any = dict(inputs="patches", stem="conv", patch_size=4, grid=(1, 1))
    images |= dict(architecture="encoder_set", positions="sincos_2d", num_labels=91)
    places = {f"inputs_{name}": jnp.ones((1, 1), int) for name in ("segment_ids", "positions")}
    batch = places | {"inputs": jnp.zeros((1, 1, 48), jnp.uint8), "grid": jnp.ones((1, 1, 4), int)}

    def draws(factor):
        model = tiny.model(sized("mup", factor, **images))
        return tiny.flat(nn.unbox(initialisation.initialise(model, KEY, batch)))

    small, large = draws(4), draws(16)
    powers = {
        "stem/conv_0": 0,
        "stem/conv_1": -0.5,
        "stem/projection": -0.5,
        "box_head/first": -0.5,
    }
    powers |= {"box_head/labels": 0, "box_head/boxes": 0}
    for name, power in powers.items():
        (path,) = (path for path in small if path.endswith(name))
        ratio = np.std(large[path]) / np.std(small[path]) / 4**power
        assert abs(ratio - 1) < 4 * (1 / small[path].size) ** 0.5, (path, ratio)


@functools.cache
def programs(config):
    """What draws a model's parameters, and what computes its logits."""
    batch = tiny.read_by(config, tiny.packed_batch())
    params = tiny.nn.unbox(tiny.abstract_parameters(config))
    draw = functools.partial(initialisation.initialise, tiny.model(config))
    logits = functools.partial(tiny.logits, config)
    return str(jax.make_jaxpr(draw)(KEY, batch)), str(jax.make_jaxpr(logits)(params, batch))


@pytest.mark.parametrize("name", ROWS)
def test_at_the_base_nothing_changes(name):
    shape = tiny.SHAPES["decoder_only"]
    plain, based = sized("standard", **shape), sized(name, **shape)
    for role in tiny.roles(based).values():
        assert role.share == Share()
    assert based.multipliers == plain.multipliers
    assert programs(based) == programs(plain) != programs(sized("ntk", **shape, base_width=1))


@pytest.mark.parametrize(("shape", "residual", "positions"), tiny.TURNS)
def test_every_parameter_has_one_share(shape, residual, positions):
    """Of each row, as its kind has it; and what has no role would be told."""
    sizes = tiny.SHAPES[shape] | dict(residual=residual, positions=positions, qk_norm=True)
    boxes = tiny.flat(
        tiny.abstract_parameters(sized("standard", **sizes)), lambda leaf: isinstance(leaf, Boxed)
    )
    for name, row in ROWS.items():
        for path, box in boxes.items():
            stacked = isinstance(box, Boxed) and "layers" in box.names
            group = kind(path)
            if group in ("vector", "head") and not stacked:  # what all layers share
                group = "other"
            factors = share(row, box, parameterizations.Ratios(2.0, 3.0))
            check_share(factors, name, group, 2, 3 if stacked else 1, path)
    box = next(box for box in boxes.values() if box.role)
    with pytest.raises(ValueError, match="has no role"):
        share(ROWS["mup"], box.replace(role=None), parameterizations.Ratios())


@pytest.mark.parametrize(
    ("shape", "name"), [("encoder_decoder", "ntk"), ("masked_tokens", "ntk"), ("tags", "mup")]
)
def test_multipliers_are_those_of_parameters(shape, name):
    config = sized(name, 2, **tiny.SHAPES[shape])
    plain = sized("standard", 2, **tiny.SHAPES[shape], embedding_scale=config.multipliers.embedding)
    params, batch = tiny.random_parameters(config), tiny.packed_batch()

    def scaled(path, leaf):
        group = kind("/".join(key.key for key in path))
        return leaf * getattr(config.multipliers, group) if group in ("hidden", "output") else leaf

    expected = tiny.apply_function(plain)(jax.tree_util.tree_map_with_path(scaled, params), batch)
    logits = tiny.apply_function(config)(params, batch)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(tiny.apply_function(plain)(params, batch), expected, rtol=1e-2)


def test_branches_over_depth_are_those_of_depth_scaled():
    sizes: Any = dict(layers=4, architecture="encoder_only")
    config = sized("completep", residual="pre_ln", **sizes)
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    scheme = sized("standard", residual="depth_scaled", **sizes)
    logits, expected = (tiny.apply_function(c)(params, batch) for c in (config, scheme))
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    plain = tiny.apply_function(sized("standard", residual="pre_ln", **sizes))(params, batch)
    assert not np.allclose(plain, expected, rtol=1e-2)


# Table 8 by the symmetry of Adam, as tables 3 and 9 have it; epsilons are the gradients' exponents.
BY_SYMMETRY = {
    "table_3": dict(output=Growth(draw=-1.0, learning_rate=(-1.0, 0.0))),
    "table_9": dict(
        embedding=Growth(-0.5, 0.5, (-0.5, 0.0), (-0.5, 0.0)),
        output=Growth(-0.5, -0.5, (-0.5, 0.0), (-0.5, 0.0)),
    ),
}


@functools.cache
def trajectory(name, row):
    """Logits before each of 4 steps of Adam, whose epsilon and decay matter, at 4 times the base.

    row: of the table, so that what a test puts into it is known by its content.
    """
    changes: Any = dict(base_width=WIDTH // 4) if name in ROWS else {}
    config = sized(name, 1, 1, architecture="decoder_only", residual="pre_ln", **changes)
    batch = tiny.read_by(config, tiny.packed_batch())
    boxed = tiny.init_function(config)(KEY, batch)
    side = tiny.side_of_logits(config)
    transform = make_optimizer(
        "adamw_independent",
        6e-3,
        lambda: roles(boxed),
        learning_rate=6e-3,
        beta2=0.95,
        epsilon=1e-3,
        weight_decay=0.01,
    )

    @jax.jit
    def step(params, state):
        def loss(params):
            logits = tiny.logits(config, params, batch)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch[side])
            return jnp.sum(losses * (batch[f"{side}_segment_ids"] > 0)), logits

        gradients, logits = jax.grad(loss, has_aux=True)(params)
        updates, state = transform.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, logits

    params = nn.unbox(boxed)
    state, history = transform.init(params), []
    for _ in range(4):
        params, state, logits = step(params, state)
        history.append(logits)
    return np.stack(history)


@pytest.mark.long
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mup", "table_3"),
        ("mup", "table_9"),
        ("mup", "mean_field"),
        ("ntk", "standard_by_layer"),
    ],
)
def test_what_the_symmetry_of_adam_makes_one_trains_alike(monkeypatch, one, other):
    """With a decay that is independent of the learning rate."""
    for name, changes in BY_SYMMETRY.items():
        row = parameterizations.dataclasses.replace(ROWS["mup"], **changes)
        monkeypatch.setitem(PARAMETERIZATIONS, name, row)
    monkeypatch.setitem(ROWS, other, PARAMETERIZATIONS[other])
    logits, expected, standard = (
        trajectory(name, PARAMETERIZATIONS[name]) for name in (other, one, "standard")
    )
    np.testing.assert_allclose(logits, expected, rtol=2e-3, atol=2e-4)
    assert np.abs(expected[-1] - expected[0]).max() > 0.1
    assert not np.allclose(standard, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.long
def test_admin_is_profiled_on_the_draws_that_it_trains_from():
    """Multipliers of what is drawn larger leave the variances as they are: omega too. And a second
    profile of the same parameters is the first one."""
    schemes: Any = dict(encoder_residual="deepnorm", decoder_residual="admin")
    config, plain = sized("ntk", base_width=WIDTH // 2, **schemes), sized("standard", **schemes)
    params = tiny.initial_parameters(config)
    leaves, expected = (tiny.flat(p) for p in (params, tiny.initial_parameters(plain)))
    omegas = [path for path in leaves if path.endswith("omega")]
    assert omegas
    for path in omegas:
        np.testing.assert_allclose(leaves[path], expected[path], rtol=1e-4, err_msg=path)
    model, batch = tiny.model(config), tiny.packed_batch()
    profile = functools.partial(model.apply, deterministic=True, mutable="params")
    _, again = stepwise(profile)(
        {"params": initialisation._without_omegas(params)},
        batch,
        rngs={"params": jax.random.key(7)},
    )
    again = tiny.flat(nn.unbox(again["params"]))
    for path in omegas:
        np.testing.assert_allclose(again[path], leaves[path], rtol=1e-4, err_msg=path)
