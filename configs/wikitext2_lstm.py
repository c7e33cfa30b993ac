"""WikiText-2 by an LSTM (Zaremba et al. 2014, 1409.2329): the data of wikitext2.py, two layers.

    ./launch.sh train --config=configs/wikitext2_lstm.py --workdir=runs/wikitext2_lstm \\
        --config.data.dir=FOLDER_OF_WIKITEXT2

The state starts anew with each row of 256 tokens.

Not run yet: no time, no score.
"""

from transformer_jax.configs import default, wikitext2


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = wikitext2.get_config(arg)
    plain = default.get_config().model  # nothing of the Transformer's

    config.model = plain
    config.model.family = "recurrent"
    config.model.recurrence = "lstm"
    config.model.architecture = "decoder_only"
    config.model.num_layers = 2
    config.model.d_model = 384
    config.model.dropout_rate = 0.5
    config.model.embedding_dropout_rate = 0.5

    config.optimizer.name = "adamw"
    config.optimizer.clip_norm = 1.0
    return config
