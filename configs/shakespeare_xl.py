"""Tiny Shakespeare as configs/shakespeare.py has it, by Transformer-XL (Dai et al. 2019): segments
of 64 characters, with the states of the 64 before them as memory.

    ./launch.sh train --config=configs/shakespeare_xl.py --workdir=runs/shakespeare_xl \\
        --config.data.dir=FOLDER

FOLDER as of configs/shakespeare.py. With --config.model.memory_length=0 it is the plain model of
equal segments and parameters.

Time: 6 min on 1 CPU core (AMD EPYC, 2026-11-23).
Loss on validation: 1.532, 1.540 and 1.551 nats a character with seeds 0, 1 and 2, the plain model's
1.604, 1.602 and 1.607 (experiments/memory).
"""

from configs import default, shakespeare


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = shakespeare.get_config(arg)
    config.model.positions = "distance"
    config.model.memory_length = 64
    # Readers go on where they were, so that few of them would see few places for many steps.
    config.data.batch_size = 32
    config.train.steps = 1000
    # Readers of an evaluation begin in the middle of the text: so there are few.
    config.evaluate.batch_size = 32
    return config
