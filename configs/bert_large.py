"""BERT large (Devlin et al. 2019): the architecture and optimizer of its pre-training.

    ./launch.sh train --config=configs/bert_large.py --workdir=runs/bert_large

It differs from the paper as configs/bert_base.py does: in data, vocabulary, draws and biases, and
in having one training objective instead of two. No attention weights are dropped, since the splash
kernel drops none, and a step takes twice as long without it.

For a TPU v5e-16. Not run yet: no time, no score. Preflight (22 November 2026, libtpu 0.0.42): a
training step needs 7.85 of 15.75 GiB per chip and takes at least 94.9 ms, at 94% of all FLOPs.
"""

from transformer_jax.configs import bert_base, default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = bert_base.get_config(arg)
    config.data.streams = 16
    config.model.num_layers = 24
    config.model.d_model = 1024
    config.model.num_heads = 16
    config.model.d_ff = 4096
    config.model.attention_dropout_rate = 0.0
    config.model.attention_kernel = "splash"
    config.model.remat = "dots"

    config.mesh.topology = "v5e-16"
    config.mesh.data = 1
    config.mesh.fsdp = -1
    return config
