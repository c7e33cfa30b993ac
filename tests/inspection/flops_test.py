"""FLOPs of products, against formulas."""

import jax
import jax.numpy as jnp

from tests.tools.preflight.small import PEAK, make
from transformer_jax.devices.mesh import use
from transformer_jax.inspection import flops
from transformer_jax.inspection.flops import model_flops, product_flops, seconds_at_peak


def test_model_flops_are_6_n_d_and_those_of_attention():
    """N: all kernels and, for the logits, the table; attention: 12 T H K a layer and token."""
    run = make({})
    leaves = jax.tree_util.tree_leaves_with_path(run.abstract_state.params)
    kernels = ("query", "key", "value", "output", "up", "down", "table")
    sizes = [leaf.size for path, leaf in leaves if path[-1].key in kernels]
    assert len(sizes) == len(kernels)
    tokens, length, width = 4 * 16, 16, 32
    expected = 6 * sum(sizes) * tokens + 12 * 3 * length * width * tokens
    assert model_flops(run) == expected


def test_seconds_at_peak_are_the_model_flops_over_what_all_devices_can_do(monkeypatch):
    run = make({})
    assert seconds_at_peak(run) is None  # a CPU's peak is not known
    monkeypatch.setattr(flops, "local_peak", lambda device: PEAK)
    assert seconds_at_peak(run) == model_flops(run) / (PEAK.flops * run.mesh.size)


def test_flops_of_a_step_count_every_layer_and_what_is_computed_again():
    def of(**changes):
        run = make({f"model.{name}": value for name, value in changes.items()})
        with use(run.mesh):
            arguments = run.abstract_state, run.abstract_batch()
            return product_flops(run.train_step().trace(*arguments))

    three, five = of(num_layers=3), of(num_layers=5)
    assert three == model_flops(make({}))
    a_layer = (five - three) / 2
    logits = three - 3 * a_layer
    assert logits == 6 * 64 * 32 * 4 * 16
    # The forward pass, a third of all, runs once more, but for each layer's last product.
    assert of(num_layers=3, remat="full") == three + a_layer - 3 * (2 * 48 * 32 * 4 * 16)


def test_flops_of_branches_are_those_of_the_largest():
    def branches(x):
        return jax.lax.cond(jnp.sum(x) > 0, lambda: x @ x @ x, lambda: x @ x)

    traced = jax.jit(branches).trace(jax.ShapeDtypeStruct((5, 5), "float32"))
    assert product_flops(traced) == 2 * 2 * 125
