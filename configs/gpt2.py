"""GPT-2, the smallest of the four (Radford et al. 2019): 12 layers, d_model 768, context 1,024.

    ./launch.sh train --config=configs/gpt2.py --workdir=runs/gpt2

Not run yet: no time, no score. The paper names neither optimizer nor schedule; these are nanoGPT's,
which reproduce it. Differences: English articles of Wiki-40B instead of WebText; a vocabulary of
our own; kernels drawn as everywhere here (Xavier) instead of from N(0, 0.02); the exact GELU; no
bias on keys. A batch of 480 rows of 1,024 tokens is for accelerators; `train.accumulation_steps`
splits it into micro-batches.

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
    config.data.tokenizer.vocab_size = 50_257
    config.data.max_target_length = 1024
    config.data.row_target_length = 1024
    config.data.batch_size = 480

    config.model.architecture = "decoder_only"
    config.model.residual = "pre_ln"
    config.model.vocab_size = 50_257
    config.model.num_layers = 12
    config.model.d_model = 768
    config.model.num_heads = 12
    config.model.d_ff = 3072
    config.model.activation = "gelu"
    config.model.positions = "learned"
    config.model.max_length = 1024
    config.model.attention_dropout_rate = 0.1
    config.model.dtype = "bfloat16"

    config.task.label_smoothing = 0.0
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 6e-4
    config.optimizer.final_learning_rate = 6e-5
    config.optimizer.warmup_steps = 2000
    config.optimizer.beta2 = 0.95
    config.optimizer.epsilon = 1e-8
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = 1.0

    config.train.steps = 600_000
    config.train.evaluate_every = 5000
    config.checkpoint.every = 5000
    config.decode.method = "sample"
    config.decode.top_k = 40
    return config
