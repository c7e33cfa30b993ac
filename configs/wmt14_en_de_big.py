"""WMT 2014, English to German, big model of "Attention Is All You Need" (Vaswani et al., 2017).

    ./launch.sh train --config=configs/wmt14_en_de_big.py --workdir=runs/wmt14_en_de_big

The settings are those of the paper, which reports 28.4 BLEU on newstest2014 (tokenised, compound
words split); sacreBLEU on plain text gives lower figures for the same translations.

For a TPU v5e-8. Not run yet: no time, no score. Preflight (22 November 2026, libtpu 0.0.42): a
training step needs 3.86 of 15.75 GiB per chip and takes at least 21.6 ms, at 97% of all FLOPs.
"""

from transformer_jax.configs import default, wmt14_en_de_base


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = wmt14_en_de_base.get_config(arg)
    config.model.d_model = 1024
    config.model.num_heads = 16
    config.model.d_ff = 4096
    config.model.dropout_rate = 0.3
    config.model.embedding_dropout_rate = 0.3
    config.model.dtype = "bfloat16"
    config.model.attention_kernel = "splash"
    config.model.remat = "dots"

    config.mesh.topology = "v5e-8"
    config.mesh.data = 1
    config.mesh.fsdp = -1

    config.train.steps = 300_000
    config.checkpoint.keep_last = 20
    config.checkpoint.average_last = 20
    return config
