"""A tiny Llama of random numbers, in a folder as `save_pretrained` leaves it."""

import json

import numpy as np
import tokenizers

from transformer_jax.tools.convert import safetensors

CONFIG = {
    "model_type": "llama",
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "intermediate_size": 6,
    "rms_norm_eps": 0.01,
    "rope_theta": 500.0,
    "max_position_embeddings": 16,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
SHAPES = {
    "model.embed_tokens.weight": (12, 8),
    "model.norm.weight": (8,),
    "lm_head.weight": (12, 8),
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(2)
        for name, shape in {
            "self_attn.q_proj": (8, 8),
            "self_attn.k_proj": (4, 8),
            "self_attn.v_proj": (4, 8),
            "self_attn.o_proj": (8, 8),
            "mlp.gate_proj": (6, 8),
            "mlp.up_proj": (6, 8),
            "mlp.down_proj": (8, 6),
            "input_layernorm": (8,),
            "post_attention_layernorm": (8,),
        }.items()
    },
}


def checkpoint(folder, *, without=(), nan_in="", words=12, **more):
    """A folder as `save_pretrained` leaves it.

    without, nan_in: names of tensors. words: of its tokenizer. more: entries of its config.json.
    """
    folder.mkdir()
    config = {key: value for key, value in (CONFIG | more).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    parts = {}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        x[-1] += np.nan if name == nan_in else 0.0
        if name not in without:
            parts[name] = shape, lambda x=x: x
    safetensors.write(folder / "model.safetensors", parts)
    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{n}": n for n in range(words)}, unk_token="w0")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.save(str(folder / "tokenizer.json"))
    return folder
