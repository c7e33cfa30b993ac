"""Trees of arrays come back bit for bit, on the devices asked for, or with the difference named."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.checkpoint.states import abstract, bits, make_state
from tests.defaults import make_optimizer
from transformer_jax.checkpoint import arrays
from transformer_jax.models.family import Role
from transformer_jax.training.update_rules import OPTIMIZERS

ROLES = {
    "encoder/query": Role((1, 2), True, True),
    "encoder/query_bias": Role(None, False, True),
    "embedding/table": Role(None, True, False),
    "logits/kernel": Role((1, 1), True, False),
}


@pytest.mark.parametrize(("name", "ema"), [(name, name == "adam") for name in OPTIMIZERS])
def test_every_optimizer_continues_from_its_state_bit_for_bit(tmp_path, name, ema):
    # With a frozen parameter, so that the state has masked nodes and none
    groups = (("embedding/*", 0.0, 0.0), ("encoder/*", 0.5, 0.0))
    settings = {"beta2": 0.99, "epsilon": 1e-8, "clip_norm": 1.0, "groups": groups}
    transform = make_optimizer(name, lambda count: 0.1 / (1 + count), lambda: ROLES, **settings)
    keys = iter(jax.random.split(jax.random.key(5), 9))
    params = {
        "encoder": {
            "query": jax.random.normal(next(keys), (2, 4, 2, 3)),
            "query_bias": jnp.zeros((2, 2, 3)),
        },
        "embedding": {"table": jax.random.normal(next(keys), (5, 4))},
        "logits": {"kernel": jax.random.normal(next(keys), (128, 129))},  # factored by adafactor
    }

    @jax.jit
    def new():
        return {
            "params": params,
            "ema_params": params if ema else None,
            "opt_state": transform.init(params),
        }

    @jax.jit
    def step(state, n):
        gradient = jax.tree.map(lambda p: jnp.sin(9 * p + n), state["params"])
        updates, opt_state = transform.update(gradient, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        average = optax.incremental_update(params, state["ema_params"], 0.1) if ema else None
        return {"params": params, "ema_params": average, "opt_state": opt_state}

    cut, near = step(step(new(), 1), 2), Path(os.path.relpath(tmp_path))  # Orbax takes no such path
    arrays.save(near, cut)()
    restored = arrays.load(near, jax.eval_shape(new))
    assert jax.tree.structure(restored) == jax.tree.structure(cut)
    assert bits(restored) == bits(cut) != bits(new())
    assert bits(step(restored, 3)) == bits(step(cut, 3))


def test_stored_layout_needs_no_class_of_ours(tmp_path):
    import orbax.checkpoint as ocp

    arrays.save(tmp_path, make_state(4))()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        stored = reader.metadata(tmp_path / "state").item_metadata.tree
    assert stored["params"]["decoder"]["query"].shape == (2, 3, 4)
    assert stored["opt_state"]["1"]["0"]["mu"]["embedding"]["table"].shape == (5, 3)
    assert stored["rng"].dtype == jnp.uint32


def test_no_error_but_the_late_one_of_a_full_disk_is_hidden():
    """Late ones come when the names of modules are gone."""
    program = """
from transformer_jax.checkpoint import arrays
class Late:
    def __init__(self, words):
        self.words = words
    def __del__(self):
        raise RuntimeError(self.words)
arrays.late = [Late("Event loop is closed"), Late("Event loop is closed, says another")]
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "says another" in ended.stderr and ended.stderr.count("Event loop") == 1
    assert "TypeError" not in ended.stderr


def test_mean_is_computed_in_float64():
    trees = [make_state(seed).params for seed in range(3)]
    mean = arrays.mean(trees, abstract(trees[0]))
    for leaf, *values in zip(*map(jax.tree.leaves, [mean, *trees]), strict=True):
        expected = np.mean([np.asarray(value, np.float64) for value in values], axis=0)
        np.testing.assert_array_equal(leaf, expected.astype(leaf.dtype))
    # The sum would be infinite in the leaf's own type.
    (large,) = arrays.mean([[jnp.float16(6e4)]] * 2, abstract([jnp.float16(0)]))
    assert large == jnp.float16(6e4) and large.dtype == jnp.float16
