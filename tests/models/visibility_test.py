"""Who sees whom, read off gradients that are exactly zero, or are not."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.models import tiny

# Every shape with another kind of positions, and the schemes with a second stream.
TRANSFORMERS = dict(list(tiny.EVERY_SCHEME.items())[3:12] + list(tiny.EVERY_SCHEME.items())[-5:-3])
ALL = TRANSFORMERS | tiny.RECURRENT


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_zero_exactly_where_no_token_may_look(name):
    """d logits[t] / d embedding of the token in slot s, where every slot holds another token.

    A source token reaches all of its own example and nothing else, in the encoder and through
    what a decoder sees of it. A target token reaches the logits after it, in its own example.
    """
    config = dataclasses.replace(ALL[name], tied_embeddings="none", vocab_size=40)
    batch = tiny.packed_batch()
    for name in ("inputs", "targets"):
        batch[name] = 4 + np.arange(batch[name].size, dtype=np.int32).reshape(batch[name].shape)
    params = tiny.random_parameters(config)
    two = config.architecture == "encoder_decoder"
    tables = {
        name: f"{kind}_embedding" if two else "embedding"
        for name, kind in (("inputs", "source"), ("targets", "target"))
        if name in tiny.read_by(config, batch)
    }

    def jacobians(embeddings):
        def readings(embeddings):
            changed = params | {k: {"table": v} for k, v in embeddings.items()}
            logits = tiny.logits(config, changed, batch)
            projection = np.random.default_rng(1).normal(size=logits.shape[-1])
            return logits @ projection.astype(np.float32)

        return jax.jacrev(readings)(embeddings)

    embeddings = {name: params[name]["table"] for name in tables.values()}
    jacobian = jax.jit(jacobians)(embeddings)
    segments = batch[f"{tiny.side_of_logits(config)}_segment_ids"]
    for name, table in tables.items():
        influence = np.abs(jacobian[table]).max(axis=-1)  # of every token of the vocabulary
        seen = influence[..., batch[name]] > 0
        for row, t in zip(*np.nonzero(segments), strict=True):
            own = np.zeros(batch[name].shape, bool)
            own[row] = batch[f"{name}_segment_ids"][row] == segments[row, t]
            if name == "targets":
                own[:, t:] = False  # slot t holds what logits t are to predict
            np.testing.assert_array_equal(seen[row, t], own)
