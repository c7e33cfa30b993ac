"""WNUT 2017 (Derczynski et al. 2017): names in posts, of kinds and words that training lacks.

    ./launch.sh train --config=configs/wnut17.py --workdir=runs/wnut17 --config.data.dir=FOLDER

FOLDER holds `wnut17train.conll`, `emerging.dev.conll` and `emerging.test.annotated`, plain or .gz.

Time: 3 min 10 s on 1 CPU core (AMD EPYC, 2026-11-23) that shared its machine.
Score on test: span F1 0.090, 0.086 and 0.093 with seeds 0, 1 and 2 (dev 0.112, 0.121 and 0.128),
accuracy 0.921 to 0.923. With 300 steps everything is O, 0.000; the systems of the shared task, with
pre-trained vectors, have 0.263 to 0.419.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "conll"
    config.data.train = ("wnut17train.conll",)
    config.data.validation = ("emerging.dev.conll",)
    config.data.test = ("emerging.test.annotated",)
    config.data.tokenizer.kind = "bpe"
    config.data.tokenizer.vocab_size = 4000
    config.data.max_source_length = 192
    config.data.row_source_length = 192
    config.data.batch_size = 16

    config.model.architecture = "encoder_only"
    config.task.name = "tagging"
    config.task.label_smoothing = 0.0
    config.model.residual = "pre_ln"
    config.model.num_layers = 3
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.d_ff = 256
    config.model.positions = "rotary"
    config.model.dropout_rate = 0.3
    config.model.embedding_dropout_rate = 0.3

    config.optimizer.name = "adamw"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.weight_decay = 0.1

    config.train.steps = 600
    config.train.evaluate_every = 100
    config.checkpoint.every = 100
    config.checkpoint.keep_last = 3
    config.checkpoint.average_last = 3
    return config
