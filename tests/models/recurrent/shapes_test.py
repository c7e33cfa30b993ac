"""Whole models against slow NumPy, and what their parameters start from."""

import functools

import jax
import numpy as np
import pytest

from tests.models import reference as batches
from tests.models import tiny
from tests.models.recurrent import reference
from transformer_jax.models.recurrent.config import RECURRENCES

assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["rnnsearch", "rnnencdec", "gnmt", "lstmn", "gru", "lstm"])
def test_logits_equal_slow_numpy(name):
    """Of each example of packed rows."""
    architecture = "decoder_only" if name in ("gru", "lstm") else ""
    config = tiny.recurrent(name, architecture)
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    found = batches.by_example(batch, "targets", tiny.apply_function(config)(params, batch))
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    sources = batches.by_example(batch, "inputs", batch["inputs"])
    targets = batches.by_example(batch, "targets", batch["targets"])
    for logits, source, target in zip(found, sources, targets, strict=True):
        read = np.append(config.bos_id, target[:-1])
        assert_close(logits, reference.LOGITS[name](params, source, read))


@pytest.mark.parametrize("name", ["rnnsearch", "gru", "gnmt", "lstmn"])  # all cells
def test_kernels_of_states_start_orthogonal_and_the_forget_gate_open(name):
    config = tiny.recurrent(name)
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
