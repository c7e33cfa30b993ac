"""GPT-2, the largest of the four (Radford et al. 2019): 48 layers, d_model 1,600, context 1,024.

    ./launch.sh train --config=configs/gpt2_xl.py --workdir=runs/gpt2_xl

It differs from the paper as configs/gpt2.py does: in data, vocabulary, draws and biases. No
attention weights are dropped, since the splash kernel drops none, and a step takes twice as long
without it. The batch of 512 rows is the paper's; the learning rate is GPT-3's for this size (Brown
et al. 2020).

For a TPU v5e-64. Not run yet: no time, no score. Preflight (22 November 2026, libtpu 0.0.42): a
training step needs 14.73 of 15.75 GiB per chip and takes at least 501 ms, at 85% of all FLOPs.
"""

from transformer_jax.configs import default, gpt2


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = gpt2.get_config(arg)
    config.data.batch_size = 512
    config.data.streams = 64
    config.model.num_layers = 48
    config.model.d_model = 1600
    config.model.num_heads = 25
    config.model.d_ff = 6400
    config.model.attention_dropout_rate = 0.0
    config.model.attention_kernel = "splash"
    config.model.remat = "hidden"

    config.mesh.topology = "v5e-64"
    # XLA scatters the gradients of most kernels over 16 chips; over all 64 it sums them whole.
    config.mesh.data = 4
    config.mesh.fsdp = -1

    config.optimizer.learning_rate = 2e-4
    config.optimizer.final_learning_rate = 2e-5
    return config
