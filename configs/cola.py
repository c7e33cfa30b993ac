"""CoLA (Warstadt et al. 2018): is a sentence acceptable English? From scratch.

    ./launch.sh train --config=configs/cola.py --workdir=runs/cola --config.data.dir=FOLDER_OF_COLA

FOLDER_OF_COLA holds `in_domain_train.tsv`, `in_domain_dev.tsv` and `out_of_domain_dev.tsv`, plain
or .gz. The last is the test here, since the labels of the real one are not public.

Time: 2 min 17 s on 1 CPU core (AMD EPYC, 2026-11-23) that shared its machine.
Score out of domain: Matthews 0.122, 0.021 and 0.056 with seeds 0, 1 and 2 (mean 0.066), accuracy
0.657, 0.640 and 0.638; in domain Matthews 0.140, 0.136 and 0.124.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "tsv"
    config.data.text_feature = "3"
    config.data.label_feature = "1"
    config.data.train = ("in_domain_train.tsv",)
    config.data.validation = ("in_domain_dev.tsv",)
    config.data.test = ("out_of_domain_dev.tsv",)
    config.data.tokenizer.kind = "bpe"
    config.data.tokenizer.vocab_size = 4000
    config.data.max_source_length = 64
    config.data.row_source_length = 128
    config.data.batch_size = 16

    config.model.architecture = "encoder_only"
    config.task.name = "classification"
    config.task.label_smoothing = 0.0
    config.model.residual = "pre_ln"
    config.model.num_layers = 3
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.d_ff = 256
    config.model.positions = "rotary"
    config.model.dropout_rate = 0.2
    config.model.embedding_dropout_rate = 0.2

    config.optimizer.name = "adamw"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.weight_decay = 0.1

    config.train.steps = 800
    config.train.evaluate_every = 100
    config.checkpoint.every = 100
    config.checkpoint.keep_last = 3
    config.checkpoint.average_last = 3
    return config
