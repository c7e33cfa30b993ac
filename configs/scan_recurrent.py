"""SCAN (Lake and Baroni 2018) by a recurrent encoder-decoder: the data of scan.py.

    ./launch.sh train --config=configs/scan_recurrent.py --workdir=runs/scan_recurrent \\
        --config.data.dir=FOLDER_OF_SCAN

`--config=configs/scan_recurrent.py:length` and `...:addprim_jump` choose the other splits, and
`--config.model.recurrence=rnnencdec` has no attention. Lake and Baroni report 0.998 on the simple
split's test, 0.138 to 0.208 on longer commands, and 0.001 to 0.012 on the new verb, by LSTMs and
GRUs of 1 or 2 layers of 50 to 200, with attention or without.

Time: 395 s on one core (AMD EPYC, 2026-11-27) of the split length, another run beside it.
Score on the simple split's test: exact match 0.9952 (see experiments/scan_recurrent).
"""

from transformer_jax.configs import default, scan


def get_config(arg: str = "simple") -> default.Config:
    """Returns the config of the split that the argument names; none is the simple one."""
    config = scan.get_config(arg)

    # Nothing of the Transformer's
    config.model = default.get_config().model
    config.model.family = "recurrent"
    config.model.recurrence = "rnnsearch"
    config.model.num_layers = 1
    config.model.d_model = 128
    config.model.dropout_rate = 0.1
    config.model.embedding_dropout_rate = 0.1

    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.clip_norm = 1.0

    config.train.steps = 1500
    config.evaluate.batch_size = 256
    return config
