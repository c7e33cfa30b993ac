"""WikiText-2 as configs/wikitext2.py has it, by Transformer-XL (Dai et al. 2019): segments of 128
subwords, with the states of the 128 before them as memory.

    ./launch.sh train --config=configs/wikitext2_xl.py --workdir=runs/wikitext2_xl \\
        --config.data.dir=FOLDER_OF_WIKITEXT2

FOLDER_OF_WIKITEXT2 as of configs/wikitext2.py. With --config.model.memory_length=0 it is the plain
model of equal segments and parameters.

Its 2,500 steps were not run yet. With `--config.train.steps=600` and
`--config.optimizer.warmup_steps=60`, about one epoch, on 1 CPU core (AMD EPYC, 2026-11-23) that
shared its machine: 30 min, word perplexity 278.3 on test; without memory 22 min and 267.8. In one
epoch, rows drawn from all of the text teach more than memory brings, as few rows did in
`experiments/memory`. One seed.
"""

from configs import default, wikitext2


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = wikitext2.get_config(arg)
    config.data.max_target_length = 128
    config.data.batch_size = 32
    config.model.positions = "distance"
    config.model.memory_length = 128
    # Readers of an evaluation begin in the middle of the text: so there are few.
    config.evaluate.batch_size = 16
    return config
