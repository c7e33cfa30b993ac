"""cuDNN's kernel, which needs a GPU: as far as a machine without one allows."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from tests.models.layers.splash_test import case, loss_and_gradients, plain
from transformer_jax.models.layers.kernels.cudnn import cudnn_attention


@pytest.mark.parametrize("causal", [True, False])
def test_its_arguments_mean_the_plain_formula(causal):
    """By JAX's own products in the kernel's place, which take the same arguments."""

    def products(queries, keys, values, segments):
        mask = segments.pairs()
        return cudnn_attention(queries, keys, values, mask, implementation="xla")

    arguments = case(130, 130 if causal else 70, causal)
    actual = loss_and_gradients(products, *arguments)
    expected = loss_and_gradients(plain, *arguments)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_it_lowers_to_the_kernel_for_cuda(monkeypatch):
    """JAX asks the machine for its cuDNN and GPU alone, which are made up here."""
    from jax._src.cudnn import fused_attention_stablehlo as internal

    monkeypatch.setattr(internal, "check_cudnn_version", lambda: 91100)
    monkeypatch.setattr(internal, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(internal, "is_cuda_compute_capability_equal", lambda capability: False)
    heads = jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16)
    mask = jax.ShapeDtypeStruct((2, 64, 64), jnp.bool_)

    def loss(queries, keys, values, mask):
        return jnp.sum(cudnn_attention(queries, keys, values, mask).astype(jnp.float32))

    lower = functools.partial(jax.jit(jax.grad(loss, (0, 1, 2))).trace, heads, heads, heads, mask)
    text = lower().lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaScaleBias" in text


def test_it_takes_bfloat16_and_heads_of_some_sizes_alone():
    config = functools.partial(tiny.config, attention_kernel="cudnn", d_model=64)
    with pytest.raises(ValueError, match="model.dtype='float32': set it to 'bfloat16'"):
        config(head_dim=32)
    for head_dim in (8, 32, 128):
        assert config(dtype="bfloat16", head_dim=head_dim).head_dim == head_dim
    for head_dim in (4, 20, 136):
        with pytest.raises(ValueError, match=f"head_dim={head_dim} .* multiple of 8 from 8 to 128"):
            config(dtype="bfloat16", head_dim=head_dim)
