"""Tiny Shakespeare as configs/shakespeare.py has it, by Transformer-XL (Dai et al. 2019): segments
of 64 characters, with the states of the 64 before them as memory.

    ./launch.sh train --config=configs/shakespeare_xl.py --workdir=runs/shakespeare_xl \\
        --config.data.dir=FOLDER

    ./launch.sh train --config=configs/shakespeare_xl.py:large --workdir=runs/shakespeare_large \\
        --config.data.dir=FOLDER

FOLDER as of configs/shakespeare.py. With --config.model.memory_length=0 it is the plain model of
equal segments and parameters.

Time: 6 min on 1 CPU core (AMD EPYC, 2026-11-23).
Loss on validation: 1.532, 1.540 and 1.551 nats a character with seeds 0, 1 and 2, the plain model's
1.604, 1.602 and 1.607 (experiments/memory).

"large" has 6 layers of 192 and segments of 128 with the states of 128 before: 1.4311 in 79 min
on 1 CPU core (AMD EPYC, 2026-11-23) that shared its machine, one seed and the only setting tried.
nanoGPT's README gives 1.4697 for its 6 layers of 384 with a context of 256.
"""

from transformer_jax.configs import default, shakespeare

_ARGS = ("", "large")


def get_config(arg: str = "") -> default.Config:
    """Returns the config; "large" has 6 layers of 192 and segments of 128."""
    if arg not in _ARGS:
        raise ValueError(f"this config takes one of {_ARGS}, got {arg!r}")
    config = shakespeare.get_config()
    config.model.positions = "distance"
    config.model.memory_length = 64
    # Readers go on where they were, so that few of them would see few places for many steps.
    config.data.batch_size = 32
    config.train.steps = 1000
    # Readers of an evaluation begin in the middle of the text: so there are few.
    config.evaluate.batch_size = 32

    if arg == "large":
        config.data.max_target_length = 128
        config.model.memory_length = 128
        config.data.batch_size = 16
        config.evaluate.batch_size = 16
        config.model.num_layers = 6
        config.model.d_model = 192
        config.model.d_ff = 768
        config.model.dropout_rate = 0.1
        config.model.embedding_dropout_rate = 0.1
        config.train.steps = 4500
    return config
