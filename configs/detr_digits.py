"""Boxes of handwritten digits: where they are comes first, and only much later which they are.

    ./launch.sh train --config=configs/detr_digits.py --workdir=runs/detr_digits

Time: 1,408 s of CPU time (seed 0) with drawing 40,000 scenes, compiling, 12 evaluations and all
scores, on 2 cores that other work kept busy (AMD EPYC, 2026-11-27).
Score on test, 1,000 scenes: AP50 0.927, AP 0.682. Validation after 2,000, 3,000, 4,000, 5,000 and
6,000 steps: AP50 0.039, 0.319, 0.655, 0.849 and 0.904, without regard to classes 0.602, 0.549,
0.740, 0.882 and 0.943.
"""

from transformer_jax.configs import default, detr_shapes


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
