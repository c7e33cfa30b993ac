"""Runs that differ in their residual scheme alone see the same batches."""

import itertools

import numpy as np
import pytest

from configs import default
from tests.tasks.small import CHANGES, TINY
from transformer_jax.config.build import build
from transformer_jax.config.load import load


@pytest.mark.parametrize("residual", ["admin", "sub_ln"])
def test_schemes_see_the_same_batches(made, residual):
    run, _ = made("causal_lm")
    source = run.data.settings.source
    places = {"data.dir": source.dir, "data.cache_dir": source.cache_dir}
    changes = TINY | CHANGES["causal_lm"] | places | {"model.residual": residual}
    other = build(load(default.__file__, changes))
    streams, others = run.data.train_streams(), other.data.train_streams()
    assert streams.fingerprint == others.fingerprint
    for expected, found in itertools.islice(zip(streams, others, strict=True), 5):
        assert expected.keys() == found.keys()
        for name, rows in expected.items():
            np.testing.assert_array_equal(found[name], rows)
