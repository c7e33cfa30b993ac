"""BERT base (Devlin et al. 2019): the architecture and optimizer of its pre-training.

    ./launch.sh train --config=configs/bert_base.py --workdir=runs/bert_base

Not run yet: no time, no score. Differences from the paper: no next-sentence prediction and so no
segment embeddings and pooler; English articles of Wiki-40B instead of Wikipedia and books; a
vocabulary of our own; kernels drawn as everywhere here (Xavier) instead of from N(0, 0.02); no bias
on keys. A batch of 256 rows of 512 tokens is for accelerators; `train.accumulation_steps` splits it
into micro-batches.

TFDS prepares Wiki-40B with Apache Beam and TensorFlow. Where both are installed, run once
`tfds build wiki40b/en --file_format=array_record --data_dir=CACHE_DIR/tfds`. Reading needs neither.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "tfds"
    config.data.name = "wiki40b/en"
    config.data.text_feature = "text"
    config.data.tokenizer.vocab_size = 30_522
    config.data.max_source_length = 512
    config.data.row_source_length = 512
    config.data.batch_size = 256

    config.model.architecture = "encoder_only"
    config.model.residual = "post_ln"
    config.model.vocab_size = 30_522
    config.model.num_layers = 12
    config.model.d_model = 768
    config.model.num_heads = 12
    config.model.d_ff = 3072
    config.model.activation = "gelu"
    config.model.positions = "learned"
    config.model.max_length = 512
    config.model.embedding_norm = True
    config.model.pooling = "first"
    config.model.attention_dropout_rate = 0.1
    config.model.dtype = "bfloat16"

    config.task.name = "masked_lm"
    config.task.label_smoothing = 0.0
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 10_000
    config.optimizer.beta2 = 0.999
    config.optimizer.epsilon = 1e-6
    config.optimizer.weight_decay = 0.01
    config.optimizer.clip_norm = 1.0

    config.train.steps = 1_000_000
    config.train.evaluate_every = 10_000
    config.checkpoint.every = 10_000
    return config
