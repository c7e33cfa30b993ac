"""Pythia 160M (Biderman et al. 2023, 2304.01373): 12 layers, d_model 768, context 2,048.

    ./launch.sh train --config=configs/pythia_160m.py --workdir=runs/pythia_160m

As there: parallel branches, a quarter of each head turned, biases everywhere, a table for the
logits of its own, 1,024 rows of 2,048 tokens, Adam with 1 % of warm-up and a cosine to a tenth.
Differences: English articles of Wiki-40B (see configs/gpt2.py) instead of the Pile, and a tokenizer
that is trained on them; kernels drawn as everywhere here (Xavier). The 154 checkpoints of the
original come in by `import`, all of them as one run.

For a TPU v5e-16. Not run yet: no time, no score. Preflight (27 November 2026, libtpu 0.0.42): a
training step needs 13.57 of 15.75 GiB per chip and takes at least 0.72 s, at 90% of all FLOPs.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "tfds"
    config.data.name = "wiki40b/en"
    config.data.text_feature = "text"
    config.data.tokenizer.vocab_size = 50_304
    config.data.max_target_length = 2048
    config.data.row_target_length = 2048
    config.data.batch_size = 1024

    config.model.architecture = "decoder_only"
    config.model.residual = "parallel"
    config.model.vocab_size = 50_304
    config.model.num_layers = 12
    config.model.d_model = 768
    config.model.num_heads = 12
    config.model.d_ff = 3072
    config.model.activation = "gelu"
    config.model.attention_bias = "all"
    config.model.norm_epsilon = 1e-5
    config.model.positions = "rotary"
    config.model.rotary_fraction = 0.25
    config.model.embedding_scale = 1.0
    config.model.tied_embeddings = "none"
    config.model.dropout_rate = 0.0
    config.model.embedding_dropout_rate = 0.0
    config.model.dtype = "bfloat16"
    config.model.attention_kernel = "splash"

    config.mesh.topology = "v5e-16"

    config.task.label_smoothing = 0.0
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 6e-4
    config.optimizer.final_learning_rate = 6e-5
    config.optimizer.warmup_steps = 1430
    config.optimizer.beta2 = 0.95
    config.optimizer.epsilon = 1e-8
    config.optimizer.weight_decay = 0.01
    config.optimizer.clip_norm = 1.0
    config.train.steps = 143_000
    config.train.accumulation_steps = 8
    config.decode.method = "sample"
    return config
