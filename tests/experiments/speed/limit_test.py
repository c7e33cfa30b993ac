"""The operations of a work are those of the products in the program that does it."""

import jax
import pytest

from experiments.speed import limit
from tests.experiments.speed import tiny
from transformer_jax.inspection.flops import product_flops

LONGER = {"data.max_source_length": 10, "data.row_source_length": 10}


@pytest.mark.parametrize("changes", [LONGER, tiny.DECODER], ids=["encoder_decoder", "decoder_only"])
def test_a_step_takes_three_times_the_products_of_the_forward_pass(changes, tmp_path):
    run = tiny.run(changes, tmp_path)

    def forward(params, batch):
        return run.outputs(params, batch, None, ())[0].arrays()

    traced = jax.jit(forward).trace(run.abstract_state.params, run.abstract_batch())
    assert limit.step(tiny.config(changes)) == 3 * product_flops(traced)


def test_decoding_takes_the_products_of_one_pass_over_what_is_decoded():
    """But for attention, which sees half of the places; and beams share a sentence's encoder."""
    wide = {"model.d_model": 512, "model.num_heads": 8, "model.d_ff": 2048}
    config = tiny.config(tiny.SOURCE | wide | {"decode.method": "greedy"})
    assert limit.decode(config, 6) == pytest.approx(limit.step(config) / 3, rel=0.01)
    beams = tiny.config(tiny.SOURCE | wide | {"decode.beam_size": 4})
    assert 2 < limit.decode(beams, 6) / limit.decode(config, 6) < 4
