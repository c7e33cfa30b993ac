"""Multi30k, English to German, by RNNsearch (Bahdanau et al. 2014): the data of multi30k.py.

    ./launch.sh train --config=configs/multi30k_rnnsearch.py --workdir=runs/multi30k_rnnsearch \\
        --config.data.dir=FOLDER_OF_train.lc.norm.tok.en

Rows are as short as the longest captions, since a step takes as long as the rows are.

Time: 77 min on 2 CPU cores (AMD EPYC, 2026-11-22) that did much other work; about 40 of CPU.
Score on test_2016_flickr: BLEU 37.22 (nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0),
chrF 63.0; validation perplexity 6.25 of a word. One seed.
"""

from transformer_jax.configs import default, multi30k


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = multi30k.get_config(arg)
    config.data.max_source_length = 48
    config.data.max_target_length = 48
    config.data.row_source_length = 48
    config.data.row_target_length = 48
    config.data.batch_size = 64  # rows: about 3000 target tokens

    # Nothing of the Transformer's
    config.model = default.get_config(arg).model
    config.model.family = "recurrent"
    config.model.recurrence = "rnnsearch"
    config.model.num_layers = 1
    config.model.d_model = 256
    config.model.dropout_rate = 0.3
    config.model.embedding_dropout_rate = 0.3

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 300
    config.optimizer.clip_norm = 1.0  # as in the paper

    config.train.steps = 2000
    config.train.evaluate_every = 500
    return config
