"""WMT 2014, English to German, base model of "Attention Is All You Need" (Vaswani et al., 2017).

    ./launch.sh train --config=configs/wmt14_en_de_base.py --workdir=runs/wmt14_en_de_base

The settings are those of the paper, which reports 27.3 BLEU on newstest2014 (tokenised, compound
words split); sacreBLEU on plain text gives lower figures for the same translations.

Not run yet: no time, no score.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "tfds"
    config.data.name = "wmt14_translate/de-en"  # newstest2013 is its validation, 2014 its test
    config.data.tokenizer.kind = "bpe"
    config.data.tokenizer.vocab_size = 37_000
    config.data.max_source_length = 256
    config.data.max_target_length = 256
    config.data.batch_size = 96  # full rows of 256: about 25,000 target tokens

    config.model.vocab_size = 37_000  # so that `inspect` needs no data

    config.optimizer.schedule = "noam"
    config.optimizer.learning_rate = 1.0
    config.optimizer.warmup_steps = 4000

    config.train.steps = 100_000
    config.train.evaluate_every = 5000
    config.checkpoint.every = 1000  # the paper's: every ten minutes
    config.checkpoint.keep_last = 5
    config.checkpoint.average_last = 5
    config.decode.beam_size = 4
    config.decode.length_penalty = 0.6
    return config
