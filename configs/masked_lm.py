"""A small masked language model (BERT's task) of the embedded corpus's English.

    ./launch.sh train --config=configs/masked_lm.py --workdir=runs/masked_lm
    echo "The animal didn't cross the street ." | ./launch.sh embed --workdir=runs/masked_lm

Time: 5 min 3 s on 2 CPU cores (AMD EPYC, 2026-11-20) that did other work too.
Score on test: accuracy 0.6329 on masked tokens (loss 1.0808). Many cannot be inferred.
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
    config.model.residual = "pre_ln"
    config.model.num_layers = 2
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.d_ff = 512
    config.model.activation = "gelu"

    config.task.label_smoothing = 0.0
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.weight_decay = 0.01

    config.train.steps = 1000
    config.train.log_every = 50
    config.train.evaluate_every = 250
    config.checkpoint.every = 250
    config.checkpoint.keep_last = 2
    config.evaluate.batch_size = 128
    return config
