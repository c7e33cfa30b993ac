"""Words of a bigram chain and their copy: a small run that shows which Transformers train at all.

    ./launch.sh train --config=configs/bigram_copy.py --workdir=runs/bigram_copy
    ./launch.sh train --config=configs/bigram_copy.py --workdir=runs/bigram_copy_18 \\
        --config.model.num_layers=18

The learning rate is constant, without warm-up. A model that learns only how frequent words are has
a loss of 3.28 nats per word; no model gets below 0.806 (`transformer_jax/data/corpora/bigram.py`).

Time: 1 min 3 s on one of 2 CPU cores (Intel Xeon, 2026-11-21) of a machine that did other work too.
Loss on validation: 1.548 nats per word, and 3.30 ("plateaued") with 18 layers.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "bigram_copy"
    config.data.test = ()  # validation is as good, since nothing is chosen by it
    config.data.tokenizer.kind = "words"
    config.data.max_target_length = 32  # a piece: a row of 16 words and their copy
    config.data.packing = False
    config.data.batch_size = 32

    config.model.architecture = "decoder_only"
    config.model.d_model = 64
    config.model.num_heads = 4
    config.model.d_ff = 256
    config.model.dropout_rate = 0.0
    config.model.embedding_dropout_rate = 0.0

    config.task.label_smoothing = 0.0
    config.optimizer.schedule = "constant"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 0

    config.train.steps = 300
    config.train.log_every = 10
    config.train.evaluate_every = 0
    config.checkpoint.every = 0
    config.checkpoint.keep_last = 1
    config.checkpoint.best_metric = ""
    config.decode.method = "greedy"
    return config
