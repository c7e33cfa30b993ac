"""OLMo 2 1B (OLMo team 2024, 2501.00656): 16 layers, d_model 2,048, a context of 4,096.

    ./launch.sh train --config=configs/olmo2_1b.py --workdir=runs/olmo2_1b

As there: norms of the branches alone, queries and keys normalised over all heads, SwiGLU, rotary
positions of base 500,000, no biases. Differences: kernels are drawn as everywhere here (Xavier)
instead of from N(0, 0.02); the tokenizer is trained on the data, which are the English articles of
Wiki-40B, see configs/gpt2.py. A step has 2,097,152 tokens.

For a TPU v5e-64. Not run yet: no time, no score. Preflight (27 November 2026, libtpu 0.0.42): a
training step needs 11.76 of 15.75 GiB per chip and takes at least 1.92 s, at 80% of all FLOPs.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "tfds"
    config.data.name = "wiki40b/en"
    config.data.text_feature = "text"
    config.data.tokenizer.vocab_size = 100_352
    config.data.max_target_length = 4096
    config.data.row_target_length = 4096
    config.data.batch_size = 512

    config.model.architecture = "decoder_only"
    config.model.residual = "branch_ln"
    config.model.vocab_size = 100_352
    config.model.num_layers = 16
    config.model.d_model = 2048
    config.model.num_heads = 16
    config.model.d_ff = 8192
    config.model.activation = "swiglu"
    config.model.bias = False
    config.model.norm = "rms_norm"
    config.model.norm_epsilon = 1e-6
    config.model.qk_norm = True
    config.model.qk_norm_over = "heads"
    config.model.positions = "rotary"
    config.model.rotary_base = 500_000.0
    config.model.embedding_scale = 1.0
    config.model.tied_embeddings = "none"
    config.model.dropout_rate = 0.0
    config.model.embedding_dropout_rate = 0.0
    config.model.dtype = "bfloat16"
    config.model.attention_kernel = "splash"
    config.model.remat = "inward"

    config.mesh.topology = "v5e-64"
    config.mesh.fsdp = -1
    config.mesh.data = 1

    config.task.label_smoothing = 0.0
    config.task.z_loss = 1e-5
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 4e-4
    config.optimizer.final_learning_rate = 4e-5
    config.optimizer.warmup_steps = 2000
    config.optimizer.beta2 = 0.95
    config.optimizer.epsilon = 1e-8
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = 1.0
    config.train.accumulation_steps = 4
    config.decode.method = "sample"
    return config
