"""Tiny Shakespeare, character by character, in nanoGPT's setting for a CPU: 4 layers, d_model 128,
context 64, 2,000 steps of 12 sequences.

    ./launch.sh train --config=configs/shakespeare.py --workdir=runs/shakespeare \\
        --config.data.dir=FOLDER
    echo "ROMEO:" | ./launch.sh generate --workdir=runs/shakespeare

FOLDER holds input.txt (or input.txt.gz). Its last tenth is the validation split, as in nanoGPT.

Time: 9 min 11 s on 2 CPU cores (AMD EPYC, 2026-11-20) that did other work too; about 8 steps per
second when they were free.
Loss on validation: 1.6005 nats per character. nanoGPT's README gives 1.88 for its own recipe
(AdamW, learned positions) in this setting; ours has Muon and rotary positions. One seed. With
`--config.optimizer.name=adamw --config.optimizer.learning_rate=1e-3` and
`--config.model.positions=learned`, as there, it is 1.897, 1.882 and 1.874 with seeds 0, 1 and 2
(mean 1.884), 3 to 4 min each on 1 core (2026-11-23).
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "text"
    config.data.document_separator = ""
    config.data.train = ("input.txt",)
    config.data.validation = ()
    config.data.validation_size = 111_540  # characters
    config.data.test = ()
    config.data.tokenizer.kind = "bytes"
    config.data.max_target_length = 64
    config.data.packing = False
    config.data.batch_size = 12
    config.data.streams = 4

    config.model.architecture = "decoder_only"
    config.model.residual = "pre_ln"
    config.model.num_layers = 4
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.d_ff = 512
    config.model.activation = "gelu"
    config.model.positions = "rotary"
    config.model.dropout_rate = 0.0
    config.model.embedding_dropout_rate = 0.0

    config.task.label_smoothing = 0.0
    config.optimizer.name = "muon"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.final_learning_rate = 1e-4
    config.optimizer.warmup_steps = 100
    config.optimizer.beta2 = 0.99
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = 1.0

    config.train.steps = 2000
    config.train.evaluate_every = 500
    config.checkpoint.every = 500
    config.checkpoint.keep_last = 2
    config.evaluate.batch_size = 256
    config.decode.method = "sample"
    config.decode.extra_length = 500
    config.decode.temperature = 0.8
    return config
