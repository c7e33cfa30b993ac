"""Multi30k at the depth and width of the Admin paper: 18 + 18 layers, d_model 512 (2004.08249).

    ./launch.sh train --config=configs/multi30k_18_18.py --workdir=runs/multi30k_18_18 \\
        --config.data.dir=FOLDER_OF_train.lc.norm.tok.en --config.model.residual=admin

RAdam, as in the paper. It saves every 250 steps, so that a run may be interrupted. Its size is for
a GPU. Not run yet: no time, no score.
"""

from transformer_jax.configs import default, multi30k


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = multi30k.get_config(arg)

    config.model.num_layers = 18
    config.model.d_model = 512
    config.model.num_heads = 8
    config.model.d_ff = 1024
    config.model.dropout_rate = 0.3
    config.model.embedding_dropout_rate = 0.3
    config.model.dtype = "bfloat16"

    config.optimizer.name = "radam"
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.learning_rate = 7e-4
    config.optimizer.warmup_steps = 1000

    config.checkpoint.every = 250
    return config
