"""T5 base (Raffel et al. 2020): the architecture, objective and optimizer of its pre-training.

    ./launch.sh train --config=configs/t5_base.py --workdir=runs/t5_base

Differences from the paper: English articles of Wiki-40B (see configs/bert_base.py) instead of C4,
and no supervised tasks among them; a vocabulary of our own, of the same size; kernels drawn as
everywhere here (Xavier); the learning rate grows up to 0.01 in the first 10,000 steps, where T5's
is constant; pieces of 511 tokens instead of 568, so that sources hold 460 of them.

For a TPU v5e-8. Not run yet: no time, no score. Preflight (22 November 2026, libtpu 0.0.42): a
training step needs 10.33 of 15.75 GiB per chip and takes at least 59 ms, at 60% of all FLOPs.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "tfds"
    config.data.name = "wiki40b/en"
    config.data.text_feature = "text"
    config.data.tokenizer.kind = "unigram"
    config.data.tokenizer.vocab_size = 32_100
    config.data.max_source_length = 512
    config.data.row_source_length = 512
    config.data.max_target_length = 128
    config.data.row_target_length = 128
    config.data.batch_size = 128

    config.model.residual = "pre_ln"
    config.model.vocab_size = 32_128
    config.model.num_layers = 12
    config.model.d_model = 768
    config.model.num_heads = 12
    config.model.d_ff = 3072
    config.model.bias = False
    config.model.norm = "rms_norm"
    config.model.norm_epsilon = 1e-6
    config.model.positions = "relative"
    config.model.attention_score = "dot_product"
    config.model.attention_dropout_rate = 0.1
    config.model.feed_forward_dropout_rate = 0.1
    config.model.dtype = "bfloat16"

    config.mesh.topology = "v5e-8"
    config.mesh.data = 1
    config.mesh.fsdp = -1

    config.task.name = "span_corruption"
    config.task.label_smoothing = 0.0
    config.optimizer.name = "adafactor"
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.learning_rate = 0.01
    config.optimizer.warmup_steps = 10_000

    config.train.steps = 524_288
    config.train.evaluate_every = 10_000
    config.checkpoint.every = 10_000
    return config
