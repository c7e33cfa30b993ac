"""T5 1.1 base (Shazeer 2020, and the release notes of T5): gated, with logits of their own.

    ./launch.sh train --config=configs/t5_1_1_base.py --workdir=runs/t5_1_1_base

It differs from the release as configs/t5_base.py does from the paper. T5 1.1 is trained without
dropout.

For a TPU v5e-8. Not run yet: no time, no score. Preflight (22 November 2026, libtpu 0.0.42): a
training step needs 13.05 of 15.75 GiB per chip and takes at least 67.4 ms, at 53% of all FLOPs.
"""

from transformer_jax.configs import default, t5_base


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = t5_base.get_config(arg)
    config.model.d_ff = 2048
    config.model.activation = "geglu_tanh"
    config.model.tied_embeddings = "inputs"
    config.model.dropout_rate = 0.0
    config.model.embedding_dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0
    config.model.feed_forward_dropout_rate = 0.0
    return config
