"""Which noun does "it" refer to? A small encoder-only classifier on the embedded corpus.

    ./launch.sh train --config=configs/classify.py --workdir=runs/classify
    echo "The animal didn't cross the street because it was too wide ." |
        ./launch.sh generate --workdir=runs/classify

The answer is one of 54 nouns. No triple of subject, object and adjective in test occurs in
training.

Time: 54 s of CPU time on 2 cores (AMD EPYC, 2026-11-22), with the corpus already prepared.
Score on test: accuracy 1.0000.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.tokenizer.kind = "words"
    config.data.max_source_length = 64
    config.data.row_source_length = 64
    config.data.batch_size = 32

    config.model.architecture = "encoder_only"
    config.task.name = "classification"
    config.task.label_smoothing = 0.0
    config.model.num_layers = 2
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.d_ff = 512

    config.optimizer.name = "adamw"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.weight_decay = 0.01

    config.train.steps = 300
    config.train.log_every = 50
    config.train.evaluate_every = 100
    config.checkpoint.every = 100
    config.checkpoint.keep_last = 2
    config.evaluate.batch_size = 128
    return config
