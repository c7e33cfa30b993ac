"""Boxes of handwritten digits: where they are comes first, and only much later which they are.

    ./launch.sh train --config=configs/detr_digits.py --workdir=runs/detr_digits

It has not been run. A prototype of the same sizes had learnt no classes after 1,800 of 4,500
steps, and had an AP50 of 0.437 after 3,980.
"""

from configs import default, detr_shapes


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = detr_shapes.get_config(arg)
    config.data.name = "digits"
    # A mirrored digit is none.
    config.data.augment = ()
    config.data.train = ("train[:40000]",)
    config.train.steps = 12_000
    config.train.evaluate_every = 1000
    config.checkpoint.every = 1000
    return config
