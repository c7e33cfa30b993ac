"""The table of draws: deviations of every row, against formulas written down apart from it."""

import math

import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.transformer.draws import DRAWS

D, F, L = 64, 160, 3
SIZES = dict(
    d_model=D, num_heads=4, head_dim=16, d_ff=F, vocab_size=900, tied_embeddings="none",
    num_encoder_layers=L, num_decoder_layers=L,
)  # fmt: skip


def expected(name: str) -> dict[str, object]:
    """By row: embedding; queries, keys, values; gate or hidden; what a gate multiplies; outputs of
    attention; of the feed-forward; logits. Callables are of the layer, from 1."""
    fan = lambda inputs: inputs**-0.5  # noqa: E731
    square, oblong = (math.sqrt(2 / (D + size)) for size in (D, F))
    deep = 0.02 / math.sqrt(2 * L)
    layered = lambda layer: 0.02 / math.sqrt(2 * layer)  # noqa: E731
    small, wang = math.sqrt(2 / (5 * D)), 2 / (L * math.sqrt(D))
    ending = (2 * L * D) ** -0.5
    by_layer = [lambda layer, h=h: 1 / math.sqrt(2 * h * layer) for h in (D, F)]
    columns = "embedding inward hidden gated outward down logits".split()
    table = {
        "normal": [0.02] * 7,
        "gpt2": [0.02, 0.02, 0.02, 0.02, deep, deep, 0.02],
        "mitchell": [fan(D), fan(D), fan(D), fan(D), *by_layer, fan(D)],
        "llama": [1.0, 0.02, 0.02, deep, deep, deep, fan(D)],
        "llama_depth": [1.0, 0.02, 0.02, layered, layered, layered, fan(D)],
        "fan_in": [fan(D), fan(D), fan(D), fan(D), fan(D), fan(F), fan(D)],
        "normalized": [fan(D), fan(D), fan(D), fan(D), ending, ending, fan(D)],
        "small": [small, small, small, small, wang, wang, small],
        "speedrun": [0.8, fan(D), 0.4 * fan(D), 0.4 * fan(D), 0.0, 0.0, 0.001],
        "xavier": [fan(D), square, oblong, oblong, square, oblong, math.sqrt(2 / (D + 900))],
    }
    return dict(zip(columns, table[name], strict=True))


PLACES = {
    "query": "inward", "key": "inward", "value": "inward", "output": "outward", "gate": "hidden",
    "down": "down", "kernel": "logits", "table": "embedding",
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_each_kernel_of_each_layer_has_its_deviation(name):
    gated = list(DRAWS).index(name) % 2 == 0 or name.startswith("llama")
    shape = "encoder_decoder" if name == "gpt2" else "decoder_only"
    config = tiny.config(
        "pre_ln", **tiny.SHAPES[shape], **SIZES, init=name, activation="swiglu" if gated else "gelu"
    )
    wanted, checked = expected(name), 0
    for path, kernel in tiny.flat(tiny.initial_parameters(config)).items():
        leaf = path.split("/")[-1]
        if leaf == "up":
            place = "gated" if gated else "hidden"
        elif leaf in PLACES and "positions" not in path:
            place = PLACES[leaf]
        else:
            continue
        for layer, draw in enumerate(kernel if path.startswith(("enc", "dec")) else [kernel], 1):
            deviation = wanted[place]
            deviation = deviation(layer) if callable(deviation) else deviation
            # A normal sample's deviation has a standard error of 1 / sqrt(2 n).
            assert np.std(draw) == pytest.approx(deviation, rel=5 / math.sqrt(2 * draw.size)), path
            checked += 1
    assert checked >= (6 + gated) * L + 2


def test_a_row_draws_alike_but_for_a_factor_and_gains_come_on_top():
    plain, scaled = (
        tiny.flat(
            tiny.initial_parameters(
                tiny.config("ds_init", architecture="decoder_only", **SIZES, init=name)
            )
        )
        for name in ("xavier", "normal")
    )
    for path in ("decoder/feed_forward/up", "decoder/self_attention/value", "embedding/table"):
        ratio = scaled[path] / np.where(plain[path] == 0, 1, plain[path])
        np.testing.assert_allclose(ratio, ratio.ravel()[0], rtol=1e-4)
    up = scaled["decoder/feed_forward/up"]
    np.testing.assert_allclose(np.std(up[2]) / np.std(up[0]), 3**-0.5, rtol=0.05)
