"""Llama 3 8B (2407.21783): 8.0 billion parameters, a context of 8,192.

    ./launch.sh train --config=configs/llama3_8b.py --workdir=runs/llama3_8b

As there: RMSNorm, SwiGLU, rotary positions of base 500,000, four heads share their keys and values,
no biases. Differences: kernels are drawn as everywhere here (Xavier); the tokenizer is trained on
the data, which are the English articles of Wiki-40B, see configs/gpt2.py. A step has 2,097,152
tokens, in 4 micro-batches of 64 rows.

For a TPU v5e-256. Not run yet: no time, no score. Preflight (22 November 2026, libtpu 0.0.42): a
training step needs 11.96 of 15.75 GiB per chip and takes at least 2.90 s, at 83% of all FLOPs;
decoding 64 prompts of 8,192 tokens needs 3.96 GiB.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "tfds"
    config.data.name = "wiki40b/en"
    config.data.text_feature = "text"
    config.data.tokenizer.vocab_size = 128_256
    config.data.max_target_length = 8192
    config.data.row_target_length = 8192
    config.data.batch_size = 256

    config.model.architecture = "decoder_only"
    config.model.residual = "pre_ln"
    config.model.vocab_size = 128_256
    config.model.num_layers = 32
    config.model.d_model = 4096
    config.model.num_heads = 32
    config.model.num_kv_heads = 8
    config.model.d_ff = 14_336
    config.model.activation = "swiglu"
    config.model.bias = False
    config.model.norm = "rms_norm"
    config.model.norm_epsilon = 1e-5
    config.model.positions = "rotary"
    config.model.rotary_base = 500_000.0
    config.model.embedding_scale = 1.0
    config.model.tied_embeddings = "none"
    config.model.dropout_rate = 0.0
    config.model.embedding_dropout_rate = 0.0
    config.model.dtype = "bfloat16"
    config.model.attention_kernel = "splash"
    config.model.remat = "inward"

    config.mesh.topology = "v5e-256"
    config.mesh.fsdp = -1
    config.mesh.data = 1
    config.mesh.tensor = 4

    config.task.label_smoothing = 0.0
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 3e-4
    config.optimizer.final_learning_rate = 3e-5
    config.optimizer.warmup_steps = 8000
    config.optimizer.beta2 = 0.95
    config.optimizer.epsilon = 1e-8
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = 1.0
    config.train.accumulation_steps = 4
    config.decode.method = "sample"
    return config
