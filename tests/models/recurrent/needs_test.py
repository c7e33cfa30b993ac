"""What the arithmetic says of a recurrent model's memory, against the model's own arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from tests.models import tiny
from transformer_jax.models.recurrent.needs import RecurrentNeeds

# Wide enough that biases hardly count.
WIDE = dict(vocab_size=99, d_model=96)
LAYERS = (dict(), dict(num_encoder_layers=1, num_decoder_layers=2, tied_embeddings="none"))


@pytest.mark.parametrize("changes", LAYERS)
@pytest.mark.parametrize("name", tiny.RECURRENT)
def test_parameters_are_bounded_from_below_and_closely(name, changes):
    config = dataclasses.replace(tiny.RECURRENT[name], **WIDE, **changes)
    if config.architecture == "encoder_only":
        config = dataclasses.replace(config, head="tags", num_labels=2)
    leaves = jax.tree.leaves(tiny.abstract_parameters(config))
    exact = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    found = sum(need.least for need in RecurrentNeeds(config).parameters())
    assert 0.95 * exact < found <= exact


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["rnnsearch", "rnnencdec", "gnmt", "lstm", "lstmn"])
def test_the_decoding_cache_is_what_start_makes(name, dtype):
    """For 2 hypotheses of each of 3 prompts: `start` makes it for one, and its source's part."""
    shape = "" if name != "lstm" else "decoder_only"
    config = tiny.recurrent(name, shape, dtype=dtype)
    rows, prompt, length = 3, 9, 5
    inputs = jax.ShapeDtypeStruct((rows, prompt), "int32")
    batch = {f"inputs{end}": inputs for end in ("", "_segment_ids", "_positions")}
    params = nn.unbox(tiny.abstract_parameters(config))

    def start(params, batch):
        return tiny.model(config).apply({"params": params}, batch, length, method="start")

    _, context, cache = jax.eval_shape(start, params, batch)

    def size(tree):
        floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(x.size * x.dtype.itemsize for x in floats if x.ndim > 1)

    needs = RecurrentNeeds(config).decoding(rows, 2, prompt, 4 * length, room=length, beam=False)
    assert needs[0].least == 2 * size(cache) + size(context)
