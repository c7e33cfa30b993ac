"""Gemma 3 1B (2503.19786): 26 layers, d_model 1,152, five layers with a window of 512 to one full.

    ./launch.sh train --config=configs/gemma3_1b.py --workdir=runs/gemma3_1b

As there: norms before and after each branch, queries and keys normalised by head, GeGLU, one head
of keys and values for four of queries, rotary positions of base 1,000,000 and, in layers with a
window, 10,000, no biases. Differences: kernels are drawn as everywhere here (Xavier); the
tokenizer is trained on the data, which are the English articles of Wiki-40B, see configs/gpt2.py;
of optimizer and schedule the report says nothing.

For a TPU v5e-64. Not run yet: no time, no score. Preflight (27 November 2026, libtpu 0.0.42): a
training step needs 13.45 of 15.75 GiB per chip and takes at least 1.49 s, at 82% of all FLOPs,
where those of layers with a window count as those of full ones.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "tfds"
    config.data.name = "wiki40b/en"
    config.data.text_feature = "text"
    config.data.tokenizer.vocab_size = 262_144
    config.data.max_target_length = 4096
    config.data.row_target_length = 4096
    config.data.batch_size = 512

    config.model.architecture = "decoder_only"
    config.model.residual = "sandwich"
    config.model.vocab_size = 262_144
    config.model.num_layers = 26
    config.model.d_model = 1152
    config.model.num_heads = 4
    config.model.num_kv_heads = 1
    config.model.head_dim = 256
    config.model.d_ff = 6912
    config.model.activation = "geglu_tanh"
    config.model.bias = False
    config.model.norm = "rms_norm"
    config.model.norm_epsilon = 1e-6
    config.model.qk_norm = True
    config.model.positions = "rotary"
    config.model.rotary_base = 1_000_000.0
    config.model.window_rotary_base = 10_000.0
    config.model.layer_pattern = ("window",) * 5 + ("full",)
    config.model.window = 512
    config.model.dropout_rate = 0.0
    config.model.embedding_dropout_rate = 0.0
    config.model.dtype = "bfloat16"
    config.model.attention_kernel = "splash"
    config.model.remat = "inward"

    config.mesh.topology = "v5e-64"
    config.mesh.fsdp = -1
    config.mesh.data = 1

    config.task.label_smoothing = 0.0
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
