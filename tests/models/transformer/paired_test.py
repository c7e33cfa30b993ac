"""Runs that differ in their residual scheme alone are paired: what they share is the same."""

import numpy as np
import pytest

from configs import default
from transformer_jax.config.build import build
from transformer_jax.config.load import load

TINY = {
    "data.source": "text",
    "data.tokenizer.kind": "words",
    "data.max_target_length": 8,
    "data.row_target_length": 16,
    "data.batch_size": 4,
    "data.streams": 2,
    "model.architecture": "decoder_only",
    "model.num_layers": 2,
    "model.d_model": 8,
    "model.num_heads": 2,
    "model.d_ff": 16,
    "model.dropout_rate": 0.25,
}
BATCHES = 5


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By scheme, on the same text."""
    folder = tmp_path_factory.mktemp("text")
    for split, count in (("train", 40), ("validation", 5), ("test", 4)):
        words = ("abcd"[: 1 + n % 4] for n in range(count))
        (folder / split).write_text("".join(f"{split} {' '.join(line)}\n" for line in words))
    places = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}
    return {
        residual: build(load(default.__file__, TINY | places | {"model.residual": residual}))
        for residual in ("post_ln", "admin", "sub_ln")
    }


def batches(run):
    streams = run.data.train_streams()
    return streams.fingerprint, [next(streams) for _ in range(BATCHES)]


def test_they_see_the_same_batches(runs):
    fingerprint, expected = batches(runs["post_ln"])
    assert any(np.any(expected[0][name] != expected[1][name]) for name in expected[0])
    for run in runs.values():
        other, found = batches(run)
        assert other == fingerprint
        for a, b in zip(found, expected, strict=True):
            assert a.keys() == b.keys()
            assert all(np.array_equal(a[name], b[name]) for name in a)
