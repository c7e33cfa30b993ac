"""Whole models against slow NumPy, and what their parameters start from."""

import dataclasses

import numpy as np
import pytest

from tests.models import reference as batches
from tests.models import tiny
from tests.models.recurrent import reference
from tests.models.tiny import assert_close
from transformer_jax.models.recurrent.config import RECURRENCES

# Those with two shapes as language models
MODELS = {name: tiny.recurrent(name, row.architectures[-1]) for name, row in RECURRENCES.items()}
OWN = dict(tied_embeddings="none", logits_bias=True, embedding_scale=0.5)
MODELS["scale and bias"] = tiny.recurrent("lstm", "decoder_only", **OWN)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_logits_equal_slow_numpy(config):
    """Of each example of packed rows."""
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    outputs = batches.by_example(batch, "targets", tiny.apply_function(config)(params, batch))
    for logits, expected in zip(outputs, reference.forward(params, batch, config), strict=True):
        assert_close(logits, expected)


def test_a_scale_draws_all_parameters_alike():
    """Uniformly within it, biases too, and none as another; what they are does not change."""
    scaled = tiny.recurrent("lstm", "decoder_only", logits_bias=True, d_model=64, init_scale=0.1)
    leaves = tiny.flat(tiny.initial_parameters(scaled))
    plain = dataclasses.replace(scaled, init_scale=None)
    assert tiny.roles(scaled) == tiny.roles(plain)
    draws = np.concatenate([np.ravel(leaf) for leaf in leaves.values()])
    assert len(np.unique(draws)) > 0.95 * len(draws) and np.abs(draws).max() <= 0.1
    # Of a uniform distribution: its quantiles, within five standard errors.
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        error = 5 * (share * (1 - share) / len(draws)) ** 0.5
        assert abs(np.mean(draws < 0.2 * share - 0.1) - share) < error
    assert all(np.abs(leaf).max() > 0.05 for leaf in leaves.values())


@pytest.mark.parametrize("name", ["rnnsearch", "gru", "lstm", "lstmn"])  # all cells
def test_kernels_of_states_start_orthogonal_and_the_forget_gate_open(name):
    config = tiny.recurrent(name, num_encoder_layers=1, num_decoder_layers=1)
    for path, leaf in tiny.flat(tiny.initial_parameters(config)).items():
        if path.endswith(("/recurrent", "/candidate")):
            gates = list(np.moveaxis(leaf, 1, 0))
            for number, kernel in enumerate(gates):
                assert_close(kernel @ kernel.T, np.eye(len(kernel)))
                assert not any(np.allclose(kernel, other) for other in gates[:number])
        elif path.endswith("bias"):
            expected = np.zeros(leaf.shape)
            if RECURRENCES[name].cell == "lstm" and leaf.ndim == 2:
                expected[1] = 1
            np.testing.assert_array_equal(leaf, expected)
