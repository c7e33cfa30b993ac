"""Runs that differ in their residual scheme alone are paired: what they share is the same."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn

from configs import default
from tests.models import tiny
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


def test_they_draw_alike_and_drop_alike(runs):
    """Parameters of equal path, but for those that a scheme scales; and the entries of branches
    that are dropped under the same key, on the first batch."""
    trees, masks = {}, {}
    for residual, run in runs.items():
        batch = jax.tree.map(np.asarray, next(run.data.train_streams()))
        params = nn.unbox(tiny.exact_jit(run.init)(jax.random.key(run.seed), batch))
        trees[residual] = tiny.flat(params)
        apply = functools.partial(
            run.model.apply, deterministic=False, rngs={"dropout": jax.random.key(1)},
            mutable=["intermediates"],
        )  # fmt: skip
        seen = jax.jit(apply)({"params": params}, batch)[1]["intermediates"]["decoder"]
        masks[residual] = [
            np.asarray(seen[f"{kind}_residual"]["branch"]) != 0
            for kind in ("self_attention", "feed_forward")
        ]
    plain, admin, scaled = trees["post_ln"], trees["admin"], trees["sub_ln"]
    assert plain.keys() < admin.keys()
    for path in plain.keys():
        assert np.array_equal(plain[path], admin[path]), path
    common = [path for path in plain if "_residual" not in path]
    assert len(common) == 1 + 7 + 4
    for path in common:
        if path.split("/")[-1] in ("value", "output", "up", "down"):
            assert not np.array_equal(plain[path], scaled[path]), path
        else:
            assert np.array_equal(plain[path], scaled[path]), path
    for found in masks.values():
        for a, b in zip(found, masks["post_ln"], strict=True):
            assert 0 < np.mean(a) < 1
            np.testing.assert_array_equal(a, b)
