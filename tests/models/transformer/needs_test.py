"""What the arithmetic says of a Transformer's memory, against the model's own arrays."""

import dataclasses
import itertools

import jax
import pytest
from flax import linen as nn

from tests.models import tiny
from transformer_jax.models.transformer.needs import TransformerNeeds

# Wide enough that norms and biases hardly count.
WIDE = dict(vocab_size=99, d_model=256, num_heads=4, head_dim=48, d_ff=320)
VARIANTS = {
    "plain": dict(),
    "gated": dict(activation="swiglu", num_encoder_layers=5),
    "learned": dict(positions="learned", max_length=300, tied_embeddings="decoder"),
    "untied": dict(tied_embeddings="none", num_decoder_layers=1),
}


def _config(shape, **changes):
    return tiny.config(**(tiny.SHAPES[shape] | WIDE | changes))


def _total(needs):
    return sum(need.least for need in needs)


@pytest.mark.parametrize(
    ("shape", "variant"),
    list(itertools.product(["encoder_decoder", "decoder_only", "masked_tokens", "tags"], VARIANTS)),
)
def test_parameters_are_bounded_from_below_and_closely(shape, variant):
    config = _config(shape, **VARIANTS[variant])
    leaves = jax.tree.leaves(tiny.abstract_parameters(config))
    exact = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert 0.9 * exact < _total(TransformerNeeds(config).parameters()) <= exact


def test_weights_of_attention_count_where_the_kernel_holds_them():
    """As many as there are pairs of tokens, those of the memory included."""
    plain = _config("decoder_only", dtype="bfloat16", positions="relative")
    lengths = {"target": 64}

    def weights(config):
        found = TransformerNeeds(config).activations(2, lengths, training=True)
        return [need.least for need in found if need.name == "attention weights"]

    assert weights(plain) == [2 * plain.num_heads * 64 * 64 * 4]
    with_memory = dataclasses.replace(plain, memory_length=64)
    assert weights(with_memory) == [2 * weights(plain)[0]]
    others = dict(positions="sinusoidal", head_dim=48)
    for kernel in ("cudnn", "splash"):
        assert not weights(dataclasses.replace(plain, attention_kernel=kernel, **others))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ["encoder_decoder", "decoder_only"])
def test_the_decoding_cache_is_what_start_makes(shape, dtype):
    """For 2 hypotheses of each of 3 prompts: `start` makes it for one, and its source's part."""
    config = _config(shape, dtype=dtype)
    model, rows, prompt, length = tiny.model(config), 3, 9, 5
    inputs = jax.ShapeDtypeStruct((rows, prompt), "int32")
    batch = {f"inputs{end}": inputs for end in ("", "_segment_ids", "_positions")}
    params = nn.unbox(tiny.abstract_parameters(config))

    def start(params, batch):
        return model.apply({"params": params}, batch, length, method="start")

    _, context, cache = jax.eval_shape(start, params, batch)

    def size(tree):
        large = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim > 3]
        return sum(leaf.size * leaf.dtype.itemsize for leaf in large)

    needs = TransformerNeeds(config).decoding(rows, 2, prompt, 4 * length, room=length, beam=False)
    assert needs[0].least == 2 * size(cache) + size(context)
