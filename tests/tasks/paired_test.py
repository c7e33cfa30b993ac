"""Runs that differ in their residual scheme alone see the same batches."""

import itertools

import numpy as np
import pytest

from tests.tasks.small import LANGUAGE_MODEL, beside


@pytest.mark.parametrize("residual", ["admin", "sub_ln"])
def test_schemes_see_the_same_batches(made, residual):
    run, _ = made("causal_lm")
    other = beside(run, LANGUAGE_MODEL | {"model.residual": residual})
    streams, others = run.data.train_streams(), other.data.train_streams()
    assert streams.fingerprint == others.fingerprint
    for expected, found in itertools.islice(zip(streams, others, strict=True), 5):
        assert expected.keys() == found.keys()
        for name, rows in expected.items():
            np.testing.assert_array_equal(found[name], rows)
