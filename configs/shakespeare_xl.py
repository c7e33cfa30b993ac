"""Tiny Shakespeare as configs/shakespeare.py has it, by Transformer-XL (Dai et al. 2019): segments
of 64 characters, with the states of the 64 before them as memory, and 192 when it is scored.

    ./launch.sh train --config=configs/shakespeare_xl.py --workdir=runs/shakespeare_xl \\
        --config.data.dir=FOLDER

FOLDER as of configs/shakespeare.py. With --config.model.memory_length=0 it is the plain model of
equal segments and parameters.

Not run yet: no time, no score.
"""

from configs import default, shakespeare


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = shakespeare.get_config(arg)
    config.model.positions = "distance"
    config.model.memory_length = 64
    # Readers of an evaluation begin in the middle of the text: so there are few.
    config.evaluate.batch_size = 32
    config.evaluate.memory_length = 192
    return config
