"""Universal parts of speech of the English Web Treebank (UD_English-EWT), from scratch.

    ./launch.sh train --config=configs/ewt.py --workdir=runs/ewt --config.data.dir=FOLDER_OF_EWT

FOLDER_OF_EWT holds `en_ewt-ud-{train,dev,test}.conllu`, plain or .gz. The words are the treebank's.

Time: 10 min 34 s on 2 CPU cores (AMD EPYC, 2026-11-20) that did other work too.
Score on test: UPOS accuracy 0.9260, macro F1 0.8858 (dev: accuracy 0.9305). One seed.
"""

from configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "conllu"
    config.data.label_feature = "upos"
    config.data.train = ("en_ewt-ud-train.conllu",)
    config.data.validation = ("en_ewt-ud-dev.conllu",)
    config.data.test = ("en_ewt-ud-test.conllu",)
    config.data.tokenizer.kind = "bpe"
    config.data.tokenizer.vocab_size = 6000
    config.data.max_source_length = 192
    config.data.row_source_length = 192
    config.data.batch_size = 16

    config.model.architecture = "encoder_only"
    config.task.name = "tagging"
    config.task.label_smoothing = 0.1
    config.model.residual = "pre_ln"
    config.model.num_layers = 3
    config.model.d_model = 192
    config.model.num_heads = 6
    config.model.d_ff = 384
    config.model.positions = "rotary"
    config.model.dropout_rate = 0.3
    config.model.embedding_dropout_rate = 0.3

    config.optimizer.name = "adamw"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 200
    config.optimizer.weight_decay = 0.1

    config.train.steps = 1000
    config.train.evaluate_every = 250
    config.checkpoint.every = 250
    config.checkpoint.keep_last = 3
    return config
