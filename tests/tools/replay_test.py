"""The first non-finite tensor of a step is where an overflow was put, whatever comes after it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.defaults import loss_settings
from tests.models import tiny
from tests.training.tiny import compiled_step, make_settings, make_states
from transformer_jax.models.family import parameter_name, with_memory
from transformer_jax.models.memory import shapes
from transformer_jax.tasks import TASKS
from transformer_jax.tools import replay

LOSS = TASKS["translation"].bound_loss(loss_settings(0.0))
SGD: optax.GradientTransformation = optax.sgd(0.1)
MOST = float(np.finfo(np.float32).max)
PRE_LN = tiny.config("pre_ln", tied_embeddings="none")


def make_state(params, optimizer: optax.GradientTransformation = SGD) -> Any:
    states = make_states(init=lambda *_: params, optimizer=optimizer)
    return states.create(jax.random.key(0), {})


def make_batch(config, rows=2):
    pairs = tiny.sentences(*[(5, 4)] * rows)
    return tiny.read_by(config, tiny.pack([[pair] for pair in pairs]))


def examined(params, batch=None, *, optimizer: Any = SGD, accumulation_steps=1):
    """The tensors of a step of PRE_LN."""
    settings = make_settings(accumulation_steps=accumulation_steps)
    state = make_state(params, optimizer)
    model, batch = tiny.model(PRE_LN), batch or make_batch(PRE_LN)
    return replay.tensors(model, LOSS, optimizer, settings, state, batch)


def culprit(*arguments, **others):
    """The name of the first tensor of a step that is not finite, without its counts."""
    name = replay.first_non_finite(examined(*arguments, **others))
    return name and name.partition(" (")[0]


def changed(params, path, change):
    """The parameters with change(leaf) at the path."""

    def at(keys, leaf):
        name = parameter_name(keys)
        return change(np.array(leaf)) if name == path else leaf

    return jax.tree_util.tree_map_with_path(at, params)


def of_layer(layer, change):
    """The change of one layer of a leaf."""

    def changed(leaf):
        leaf[layer - 1] = change(leaf[layer - 1])
        return leaf

    return changed


def large(leaf):
    return 1e25 * leaf


# The first tensor that is not finite, and which parameters are changed so that it is.
OVERFLOWS = {
    "parameter encoder/feed_forward/up_bias": {
        "encoder/feed_forward/up_bias": of_layer(2, lambda leaf: np.nan * leaf)
    },
    "decoder/layer 1/self_attention/input": {
        "target_embedding/table": lambda table: 0 * table + MOST
    },
    "encoder/layer 2/self_attention/largest attention logits": {
        f"encoder/self_attention/{name}": of_layer(2, large) for name in ("query", "key")
    },
    "decoder/layer 1/cross_attention/largest attention logits": {
        f"decoder/cross_attention/{name}": of_layer(1, large) for name in ("query", "key")
    },
    "decoder/layer 2/feed_forward/branch": {
        f"decoder/feed_forward/{name}": of_layer(2, large) for name in ("up", "down")
    },
    # Both branches are finite, their sum is not.
    "encoder/layer 2/feed_forward/output": {
        f"encoder/{name}": of_layer(2, lambda leaf: 0.6 * MOST * np.eye(16)[0])
        for name in ("self_attention/output_bias", "feed_forward/down_bias")
    },
    "encoder/output": {"encoder_norm/scale": lambda scale: 0 * scale + MOST},
    "logits": {"logits/kernel": lambda kernel: 0 * kernel + MOST},
    # Logits are small; on the way back the large factor comes first.
    "gradient of decoder/layer 2/feed_forward/output": {
        "decoder_norm/scale": lambda scale: 0 * scale + np.float32(1e-37),
        "decoder_norm/bias": lambda bias: 0 * bias,
        "logits/kernel": lambda kernel: np.sign(kernel) * MOST,
    },
}


@pytest.mark.long
@pytest.mark.parametrize("expected", OVERFLOWS)
def test_an_overflow_is_found_where_it_was_put(expected):
    params = tiny.random_parameters(PRE_LN)
    for path, change in OVERFLOWS[expected].items():
        params = changed(params, path, change)
    assert culprit(params) == expected


def test_of_micro_batches_the_one_that_overflows_is_named():
    """Only its rows hold the token whose embedding is too large for the norm above."""
    batch = {name: rows.copy() for name, rows in make_batch(PRE_LN, rows=4).items()}
    rare = 22
    batch["inputs"][batch["inputs"] == rare] = 5
    batch["inputs"][2, 0] = rare

    table = of_layer(rare + 1, lambda row: 0 * row + MOST)
    params = changed(tiny.random_parameters(PRE_LN), "source_embedding/table", table)
    expected = "encoder/layer 1/self_attention/input"
    assert culprit(params, batch, accumulation_steps=2) == f"micro-batch 2 of 2: {expected}"


@pytest.mark.long
def test_an_update_that_overflows_is_named_after_its_parameter():
    """The optimizer overflows where a gradient is larger than those of the first parameter."""
    params, what = tiny.random_parameters(PRE_LN), "mean gradient of parameter "

    def update(updates, params):
        bound = 1.5 * jnp.abs(jax.tree.leaves(updates)[0]).max()
        return jax.tree.map(lambda g: jnp.where(jnp.abs(g) > bound, jnp.inf, g), updates)

    parts = list(examined(params, optimizer=optax.stateless(update)))
    largest = {
        name.removeprefix(what): np.abs(leaf).max() for name, leaf in parts if name.startswith(what)
    }
    bound = 1.5 * largest[next(iter(largest))]
    first = next(path for path in largest if largest[path] > bound)
    assert (replay.first_non_finite(parts) or "").startswith(f"update of parameter {first} (")


def assert_of_the_step(config, state, batch):
    """That the training step has the loss, gradient and new parameters of its parts, returned."""
    model, settings = tiny.model(config), make_settings(accumulation_steps=2)
    parts = dict(replay.tensors(model, LOSS, SGD, settings, state, batch))
    step = compiled_step(
        state,
        settings,
        loss=LOSS,
        apply=functools.partial(with_memory, model),
        optimizer=SGD,
        schedule=lambda count: jnp.float32(0.1),
    )
    after, metrics = step(state, batch)
    np.testing.assert_allclose(parts["mean loss"], metrics["loss"], rtol=1e-5)
    np.testing.assert_allclose(parts["gradient norm"], metrics["gradient_norm"], rtol=1e-4)
    for path, leaf in tiny.flat(after.params).items():
        np.testing.assert_allclose(parts[f"new parameter {path}"], leaf, rtol=1e-4, atol=1e-5)
    return parts


@pytest.mark.long
def test_the_parts_of_a_model_with_memory_are_of_what_it_has_read():
    config = tiny.config(architecture="decoder_only", positions="relative", memory_length=3)
    batch = make_batch(config)
    batch["targets_positions"] = batch["targets_positions"] + 2 * (batch["targets_segment_ids"] > 0)
    rng, abstract = np.random.default_rng(0), shapes(config, len(batch["targets"]), None)
    memory: Any = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)).astype(leaf.dtype), abstract
    )
    memory |= {"real": jnp.ones_like(memory["real"]), "last": jnp.full_like(memory["last"], 5)}
    state = dataclasses.replace(make_state(tiny.random_parameters(config)), memory=memory)
    assert_of_the_step(config, state, batch)


@pytest.mark.long
def test_the_parts_are_those_of_the_training_step():
    """Gradients, updates and new parameters, under dropout and cut into micro-batches."""
    config = dataclasses.replace(PRE_LN, dropout_rate=0.3, attention_dropout_rate=0.1)
    state, batch = make_state(tiny.random_parameters(config)), make_batch(config)
    parts = assert_of_the_step(config, state, batch)
    first, second = "micro-batch 1 of 2: ", "micro-batch 2 of 2: "
    names = [name.removeprefix(first) for name in parts if name.startswith(first)]
    assert names == [name.removeprefix(second) for name in parts if name.startswith(second)]
    outputs = [name for name in names if "/layer" in name and name.endswith("/output")]
    forward = [name for name in outputs if not name.startswith("gradient")]
    assert len(forward) == 2 * 2 + 2 * 3
    assert outputs == forward + [f"gradient of {name}" for name in reversed(forward)]
    dropped = [parts[f"micro-batch {n} of 2: encoder/layer 1/feed_forward/branch"] for n in (1, 2)]
    assert not np.array_equal(dropped[0] == 0, dropped[1] == 0)
