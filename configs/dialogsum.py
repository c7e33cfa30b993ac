"""DialogSum (Chen et al. 2021): summaries of dialogues.

    ./launch.sh train --config=configs/dialogsum.py --workdir=runs/dialogsum \
        --config.data.dir=DIALOGSUM

DIALOGSUM is the data set's folder, with dialogsum.train.jsonl, plain or packed. A model that is
pre-trained on the dialogues before, by span corruption:

    ./launch.sh train --config=configs/dialogsum.py:pretrain --workdir=runs/dialogsum_pretrain \
        --config.data.dir=DIALOGSUM
    ./launch.sh train --config=configs/dialogsum.py --workdir=runs/dialogsum_tuned \
        --config.data.dir=DIALOGSUM --config.checkpoint.init_from=runs/dialogsum_pretrain

Test has three references: of "rouge1" the best counts, "rouge1_mean" is their mean, as in the paper
(2105.06762).

Not run yet with Muon. With --config.optimizer.name=adamw --config.optimizer.learning_rate=1e-3
--config.optimizer.warmup_steps=100 for each: pre-training 26 min, training 22 min on 1 CPU core
(AMD EPYC, 2026-11-23). ROUGE-1, -2 and -L on test, means of the references: pre-trained 21.3, 3.1,
18.3 (the best counting: 26.6, 5.8, 22.9), from scratch 19.1, 3.8, 15.9 (23.4, 6.5, 20.0); loss of
a token 3.95 and 5.29 nats. The first three sentences of the dialogue have 27.5, 6.8, 27.3 in the
paper, its Transformer 35.9, 8.7, 33.5. One seed.
"""

from transformer_jax.configs import default, fairytale


def get_config(arg: str = "") -> default.Config:
    """Returns the config; "pretrain" is that of span corruption on the dialogues."""
    config = fairytale.get_config(arg)
    config.data.source = "json"
    config.data.train = ("dialogsum.train.jsonl",)
    config.data.validation = ("dialogsum.dev.jsonl",)
    config.data.test = ("dialogsum.test.jsonl",)
    if arg == "pretrain":
        config.data.test = ()
        config.data.text_feature = "dialogue"
    else:
        config.evaluate.metrics = ("rouge",)
        config.data.source_language = "dialogue"
        config.data.target_language = "summary*"
        config.decode.method = "beam"
        config.decode.extra_length = 96
    return config
