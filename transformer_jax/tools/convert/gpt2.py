"""GPT-2 (Radford et al. 2019), and what continues it."""

from typing import Any

import numpy as np

from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import family

_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "swish",
}


def _settings(theirs: family.Settings) -> dict[str, Any]:
    theirs.refuse("scale_attn_weights", True)
    theirs.refuse("scale_attn_by_inverse_layer_idx", False)
    theirs.refuse("tie_word_embeddings", True)
    d_model, positions = theirs.need("n_embd"), theirs.need("n_positions")
    return {
        "task.name": "causal_lm",
        "model.architecture": "decoder_only",
        "model.residual": "gpt2",
        "model.num_layers": theirs.need("n_layer"),
        "model.d_model": d_model,
        "model.num_heads": theirs.need("n_head"),
        "model.d_ff": theirs.get("n_inner", 4 * d_model),
        "model.activation": theirs.choose("activation_function", _ACTIVATIONS, "gelu_new"),
        "model.norm_epsilon": theirs.get("layer_norm_epsilon", 1e-5),
        "model.positions": "learned",
        "model.max_length": positions,
        "model.embedding_scale": 1.0,
        "model.vocab_size": theirs.need("vocab_size"),
        "model.dropout_rate": theirs.get("resid_pdrop", 0.1),
        "model.embedding_dropout_rate": theirs.get("embd_pdrop", 0.1),
        "model.attention_dropout_rate": theirs.get("attn_pdrop", 0.1),
        **family.lengths(positions, "target"),
    }


def _config(ours: TransformerConfig, lengths: family.Lengths) -> dict[str, Any]:
    del lengths
    activations = {name: theirs for theirs, name in reversed(_ACTIVATIONS.items())}
    tied = TIED_EMBEDDINGS[ours.tied_embeddings].logits
    family.check(
        ours,
        decoder_residual="gpt2",
        norm="layer_norm",
        bias=True,
        activation=ours.activation if ours.activation in activations else "gelu_tanh",
        kv_heads=ours.num_heads,
        head_dim=ours.d_model // ours.num_heads,
        feed_forward_dropout_rate=0.0,
        embedding_scale=1.0,
        tied_embeddings=ours.tied_embeddings if tied else "all",
    )
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": ours.max_length,
        "n_embd": ours.d_model,
        "n_layer": ours.num_decoder_layers,
        "n_head": ours.num_heads,
        "n_inner": ours.d_ff,
        "activation_function": activations[ours.activation],
        "layer_norm_epsilon": ours.norm_epsilon,
        "resid_pdrop": ours.dropout_rate,
        "embd_pdrop": ours.embedding_dropout_rate,
        "attn_pdrop": ours.attention_dropout_rate,
        "tie_word_embeddings": True,
    }


def _fused(config: TransformerConfig) -> list[family.Row]:
    """Query, key and value of one matrix (D, 3 H K), which is not turned."""
    heads, d_model = (config.num_heads, config.head_dim), config.d_model
    names = tuple(f"decoder/self_attention/{name}" for name in ("query", "key", "value"))

    def read(x):
        return [part.reshape(d_model, *heads) for part in np.split(x, 3, axis=-1)]

    def write(*parts):
        return [np.concatenate([part.reshape(d_model, -1) for part in parts], axis=-1)]

    def read_bias(x):
        query, _, value = np.split(x, 3)  # the softmax cancels that of keys
        return [query.reshape(heads), value.reshape(heads)]

    def write_bias(query, value):
        return [np.concatenate([query.reshape(-1), np.zeros(query.size, "f4"), value.reshape(-1)])]

    biases = f"{names[0]}_bias", f"{names[2]}_bias"
    return [
        family.Row(("transformer.h.{}.attn.c_attn.weight",), names, read, write, "decoder"),
        family.Row(
            ("transformer.h.{}.attn.c_attn.bias",), biases, read_bias, write_bias, "decoder"
        ),
    ]


def _rows(config: TransformerConfig) -> tuple[family.Row, ...]:
    shape, stack = (config.num_heads, config.head_dim, config.d_model), "decoder"
    output = family.Row(
        ("transformer.h.{}.attn.c_proj.weight",),
        ("decoder/self_attention/output",),
        lambda x: (x.reshape(shape),),
        lambda x: (x.reshape(-1, shape[-1]),),
        stack,
    )
    return (
        family.as_it_is("transformer.wte.weight", "embedding/table"),
        family.as_it_is("transformer.wpe.weight", "positions/table"),
        *_fused(config),
        output,
        family.as_it_is(
            "transformer.h.{}.attn.c_proj.bias", "decoder/self_attention/output_bias", stack
        ),
        family.as_it_is("transformer.h.{}.mlp.c_fc.weight", "decoder/feed_forward/up", stack),
        family.as_it_is("transformer.h.{}.mlp.c_fc.bias", "decoder/feed_forward/up_bias", stack),
        family.as_it_is("transformer.h.{}.mlp.c_proj.weight", "decoder/feed_forward/down", stack),
        family.as_it_is(
            "transformer.h.{}.mlp.c_proj.bias", "decoder/feed_forward/down_bias", stack
        ),
        *family.norm("transformer.h.{}.ln_1", "decoder/self_attention_residual/pre_norm", stack),
        *family.norm("transformer.h.{}.ln_2", "decoder/feed_forward_residual/pre_norm", stack),
        *family.norm("transformer.ln_f", "decoder_norm"),
    )


GPT2 = family.Family(
    name="gpt2",
    settings=_settings,
    config=_config,
    rows=_rows,
    # Masks that old files hold.
    left=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    copies=(("lm_head.weight", "transformer.wte.weight"),),
    prefix="transformer.",
    idle=("n_ctx", "predict_special_tokens", "reorder_and_upcast_attn", "summary_*"),
)
