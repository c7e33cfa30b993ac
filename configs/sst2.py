"""SST-2 (Socher et al. 2013): is a sentence of a film review positive? From scratch, on phrases.

    ./launch.sh train --config=configs/sst2.py --workdir=runs/sst2 --config.data.dir=FOLDER_OF_SST

FOLDER_OF_SST holds GLUE's `glue_sst2/train_full.tsv` and `dev.tsv`, plain or .gz.

Time: 8 min 9 s on 2 CPU cores (AMD EPYC, 2026-11-20) that did other work too.
Score on the 872 dev sentences: accuracy 0.8039, Matthews 0.6078, with the last parameters. It
varied between 0.787 and 0.805 during training; its standard error is 0.013. One seed.
"""

from configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "tsv"
    config.data.text_feature = "sentence"
    config.data.label_feature = "label"
    config.data.train = ("glue_sst2/train_full.tsv",)
    config.data.validation = ("glue_sst2/dev.tsv",)
    config.data.test = ()
    config.data.tokenizer.kind = "words"
    config.data.tokenizer.vocab_size = 20_000
    config.data.max_source_length = 72
    config.data.row_source_length = 128
    config.data.batch_size = 16

    config.model.architecture = "encoder_only"
    config.task.name = "classification"
    config.task.label_smoothing = 0.1
    config.model.residual = "pre_ln"
    config.model.num_layers = 2
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.d_ff = 256
    config.model.dropout_rate = 0.3
    config.model.embedding_dropout_rate = 0.3

    config.optimizer.name = "adamw"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 200
    config.optimizer.weight_decay = 0.1

    config.train.steps = 2500
    config.train.evaluate_every = 250
    config.checkpoint.every = 250
    config.checkpoint.keep_last = 3
    return config
