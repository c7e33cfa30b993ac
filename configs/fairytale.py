"""FairytaleQA (Xu et al. 2022): answers, in their own words, to questions on children's stories.

    ./launch.sh train --config=configs/fairytale.py --workdir=runs/fairytale \
        --config.data.dir=FAIRYTALEQA

FAIRYTALEQA is the data set's folder `data-by-train-split`, with `questions` and `section-stories`.
A model that is pre-trained on the training text before, by span corruption:

    ./launch.sh train --config=configs/fairytale.py:pretrain --workdir=runs/fairytale_pretrain \
        --config.data.dir=FAIRYTALEQA
    ./launch.sh train --config=configs/fairytale.py --workdir=runs/fairytale_tuned \
        --config.data.dir=FAIRYTALEQA --config.checkpoint.init_from=runs/fairytale_pretrain

The references are those of both annotators, the best counts ("..._mean": their mean).

Time: pre-training 21 min, training 25 min, from scratch 24 min, on 1 CPU core (AMD EPYC,
2026-11-23). ROUGE-1, -2 and -L on test, in percent: pre-trained 12.7, 1.7, 12.2, from scratch 9.7,
1.1, 9.3; means of the references 10.2, 1.3, 9.8 and 7.8, 0.9, 7.5. One seed. The sentence of the
context that shares most words with the question has 21.4, 14.5, 20.3 (18.1, 11.9, 17.3): a model of
2.4 million parameters that has read 8,548 questions and nothing else says a likely word, not what
the story says.
"""

from transformer_jax.configs import default

_ARGS = ("", "pretrain")


def get_config(arg: str = "") -> default.Config:
    """Returns the config; "pretrain" is that of span corruption on the stories."""
    if arg not in _ARGS:
        raise ValueError(f"this config takes one of {_ARGS}, got {arg!r}")
    config = default.get_config()

    config.data.source = "fairytaleqa"
    if arg == "pretrain":
        config.task.name = "span_corruption"
        config.data.train = ("section-stories/train/*-story.csv",)
        config.data.validation = ("section-stories/val/*-story.csv",)
        config.data.test = ()
    else:
        config.task.name = "text_to_text"
        config.data.train = ("questions/train/*-questions.csv",)
        config.data.validation = ("questions/val/*-questions.csv",)
        config.data.test = ("questions/test/*-questions.csv",)
        config.evaluate.metrics = ("rouge", "squad", "exact_match")
    config.data.tokenizer.vocab_size = 8000
    # A question with its sections has 260 tokens on average.
    config.data.max_source_length = 512
    config.data.row_source_length = 512
    config.data.max_target_length = 128
    config.data.row_target_length = 128
    config.data.batch_size = 16

    config.model.residual = "pre_ln"
    config.model.positions = "relative"
    config.model.num_layers = 3
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.d_ff = 512

    # AdamW at 1e-3 needs 600 steps of pre-training for what this has after 150.
    config.optimizer.name = "muon"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 60
    config.optimizer.weight_decay = 0.01
    config.optimizer.clip_norm = 1.0
    config.train.steps = 600  # eight epochs of the pieces, about two of the questions
    config.train.evaluate_every = 150
    config.checkpoint.every = 150
    config.checkpoint.keep_last = 2
    config.evaluate.checkpoint = "best"
    if arg != "pretrain":
        config.decode.method = "greedy"
        config.decode.extra_length = 48
    return config
