"""WikiText-2 as configs/wikitext2.py has it, by Transformer-XL (Dai et al. 2019): segments of 128
subwords, with the states of the 128 before them as memory.

    ./launch.sh train --config=configs/wikitext2_xl.py --workdir=runs/wikitext2_xl \\
        --config.data.dir=FOLDER_OF_WIKITEXT2

FOLDER_OF_WIKITEXT2 as of configs/wikitext2.py. With --config.model.memory_length=0 it is the plain
model of equal segments and parameters.

Time: 2 h 7 min on 2 CPU cores (AMD EPYC, 2026-11-24) that did other work too; 3 h of CPU time.
Word perplexity: 105.25 on test; 112.77 on validation (after 1,000 and 2,000 steps, 247.3
and 147.8), each with a memory of 512. One seed, 5.5 million parameters. Reported on test are
133.05 for a plain Transformer of 38.9 million by pytorch/examples, 102.26 for an LSTM of 2 x 200
by gluon-nlp, and 65.8 for AWD-LSTM (Merity et al. 2017).

In one epoch (`--config.train.steps=600`, a cosine from 3e-3, 8 heads) memory brings nothing: 278.3
on test, 267.8 without, since rows drawn from all of the text teach more than memory, as few rows
did in `experiments/memory`.
"""

from transformer_jax.configs import default, wikitext2


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = wikitext2.get_config(arg)
    config.data.max_target_length = 128
    config.data.batch_size = 32
    config.model.positions = "distance"
    config.model.num_heads = 4
    config.model.memory_length = 128
    config.optimizer.schedule = "warmup_stable_decay"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 200
    config.optimizer.decay_steps = 1300
    config.train.steps = 3000
    config.train.evaluate_every = 1000
    config.checkpoint.every = 250
    config.evaluate.memory_length = 512
    # Readers of an evaluation begin in the middle of the text: so there are few.
    config.evaluate.batch_size = 16
    return config
