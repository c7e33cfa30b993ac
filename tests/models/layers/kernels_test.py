"""Attention kernels of other machines, run as XLA operations, against the plain formula."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tests.processes import on_eight_devices
from transformer_jax.models.layers.kernels import cudnn_attention
from transformer_jax.models.layers.kernels.splash import splash_attention
from transformer_jax.models.layers.masks import Segments

CAP = 0.8


def plain(queries, keys, values, segments, cap=None):
    logits = jnp.einsum("BTHK,BSHK->BHTS", queries, keys)
    logits = cap * jnp.tanh(logits / cap) if cap else logits
    weights = jax.nn.softmax(jnp.where(segments.pairs()[:, None], logits, -1e30))
    return jnp.einsum("BHTS,BSHK->BTHK", weights, values)


def case(query_length, key_length, causal, window=None, windowed=None):
    """Two rows of two examples each, then padding; the second row has more of it."""
    generator = np.random.default_rng(0)
    queries, keys, values = (
        jnp.asarray(generator.normal(size=(2, length, 2, 8)), jnp.float32)
        for length in (query_length, key_length, key_length)
    )

    def segments(length):
        place, end = np.arange(length)[None], np.array([[length - 3], [length // 2]])
        return jnp.asarray(np.where(place < end, 1 + (place >= length // 3), 0), jnp.int32)

    windowed = None if windowed is None else jnp.asarray(windowed)
    shared = Segments(segments(query_length), segments(key_length), causal, window, windowed)
    return queries, keys, values, shared


def loss_and_gradients(attention, queries, keys, values, segments):
    """The loss of the outputs at real tokens, weighted unevenly, and its gradients."""
    real = (segments.queries > 0)[..., None, None]
    weights = jnp.asarray(np.random.default_rng(1).normal(size=queries.shape), jnp.float32)

    def loss(*arrays):
        return jnp.sum(jnp.where(real, attention(*arrays, segments) * weights, 0.0))

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(queries, keys, values)


def splash(queries, keys, values, segments):
    return splash_attention(queries, keys, values, segments, interpret=True)


def capped(queries, keys, values, segments):
    return splash_attention(queries, keys, values, segments, CAP, interpret=True)


def cudnn(queries, keys, values, segments):
    """JAX's own products in the kernel's place, which take the same arguments."""
    return cudnn_attention(queries, keys, values, segments.pairs(), implementation="xla")


@pytest.mark.parametrize(
    ("kernel", "pairs"),
    [
        (splash, (256, 256, True)),
        (splash, (130, 70, False)),
        (splash, (256, 256, True, 100)),
        (splash, (384, 384, False, 70)),
        *((splash, (256, 256, True, 100, windowed)) for windowed in (True, False)),
        (capped, (130, 130, True)),
        (cudnn, (131, 131, True)),
        (cudnn, (130, 71, False)),
    ],
)
def test_equals_the_plain_formula_of_every_real_token(kernel, pairs):
    """Several blocks; or lengths that are filled up to blocks, with queries and keys apart; with a
    window, or one that a number on the device asks for."""
    arguments = case(*pairs)
    actual = loss_and_gradients(kernel, *arguments)
    cap = CAP if kernel is capped else None
    expected = loss_and_gradients(functools.partial(plain, cap=cap), *arguments)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_what_a_padded_query_gets_is_finite():
    out = splash(*case(128, 128, True))
    assert np.all(np.isfinite(out))


_UNDER_A_MESH = """
import jax
from tests.models.layers import kernels_test as s
from transformer_jax.devices import mesh as sharding

mesh = sharding.make_mesh((2, 1, 2, 2), jax.devices())
places = (256, 256, True, 100, False), (256, 256, False, 100, True), (256, 128, False)
for pairs in places:
    arguments = s.case(*pairs)
    expected = s.loss_and_gradients(s.plain, *arguments)
    with sharding.use(mesh):
        actual = s.loss_and_gradients(s.splash, *arguments)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        s.np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.long
def test_rows_heads_and_queries_cut_over_a_mesh_change_nothing():
    on_eight_devices("-c", _UNDER_A_MESH)


def test_cudnn_attention_lowers_to_the_kernel_for_cuda(monkeypatch):
    """JAX asks the machine for its cuDNN and GPU alone, which are made up here."""
    from jax._src.cudnn import fused_attention_stablehlo as internal

    monkeypatch.setattr(internal, "check_cudnn_version", lambda: 91100)
    monkeypatch.setattr(internal, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(internal, "is_cuda_compute_capability_equal", lambda capability: False)
    heads = jax.ShapeDtypeStruct((2, 63, 4, 64), jnp.bfloat16)
    mask = jax.ShapeDtypeStruct((2, 63, 63), jnp.bool_)

    def loss(queries, keys, values, mask):
        return jnp.sum(cudnn_attention(queries, keys, values, mask).astype(jnp.float32))

    lower = functools.partial(jax.jit(jax.grad(loss, (0, 1, 2))).trace, heads, heads, heads, mask)
    text = lower().lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaScaleBias" in text
