"""Parts of speech of the embedded corpus: a small encoder-only tagger.

    ./launch.sh train --config=configs/tag.py --workdir=runs/tag
    echo "The animal didn't cross the street ." | ./launch.sh generate --workdir=runs/tag

Time: 31 s of CPU time on 2 cores (AMD EPYC, 2026-11-22), with the corpus already prepared.
Score on test: accuracy 1.0000.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.label_feature = "tags"
    config.data.tokenizer.kind = "words"
    config.data.max_source_length = 64
    config.data.row_source_length = 64
    config.data.batch_size = 32

    config.model.architecture = "encoder_only"
    config.task.name = "tagging"
    config.task.label_smoothing = 0.0
    config.model.num_layers = 2
    config.model.d_model = 64
    config.model.num_heads = 4
    config.model.d_ff = 256

    config.optimizer.name = "adamw"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 30
    config.optimizer.weight_decay = 0.01

    config.train.steps = 200
    config.train.log_every = 50
    config.train.evaluate_every = 100
    config.checkpoint.every = 100
    config.checkpoint.keep_last = 2
    config.evaluate.batch_size = 128
    return config
