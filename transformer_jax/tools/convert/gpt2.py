"""GPT-2 (Radford et al. 2019), and what continues it."""

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rows
from transformer_jax.tools.convert.family import ACTIVATIONS, Family, Setting

_LAYER = "transformer.h.{}"


def _rows(config: TransformerConfig) -> list[rows.Row]:
    names = {
        "self_attention/output": "attn.c_proj",
        "self_attention_residual/pre_norm": "ln_1",
        "feed_forward/up": "mlp.c_fc",
        "feed_forward/down": "mlp.c_proj",
        "feed_forward_residual/pre_norm": "ln_2",
    }
    layer_rows = [
        rows.queries_keys_values(f"{_LAYER}.attn.c_attn.weight", config, "decoder"),
        *rows.layers(_LAYER, "decoder", config, names),
    ]
    return [
        rows.as_it_is("transformer.wte.weight", "embedding/table"),
        rows.as_it_is("transformer.wpe.weight", "positions/table"),
        *map(_inputs_first, layer_rows),
        _biases((config.num_heads, config.head_dim)),
        *rows.norm("transformer.ln_f", "decoder_norm", config),
    ]


def _biases(heads: tuple[int, int]) -> rows.Row:
    """Of query, key and value, which are one there; the softmax cancels that of keys."""
    return rows.Row(
        (f"{_LAYER}.attn.c_attn.bias",),
        ("decoder/self_attention/query_bias", "decoder/self_attention/value_bias"),
        lambda x: x.reshape(3, *heads)[::2],
        lambda query, value: (np.stack([query, 0 * query, value]).reshape(-1),),
        "decoder",
    )


def _inputs_first(row: rows.Row) -> rows.Row:
    """The row of a matrix that is (inputs, outputs) there."""
    return row._replace(
        read=lambda x: row.read(x.T), write=lambda *x: [part.T for part in row.write(*x)]
    )


GPT2 = Family(
    name="gpt2",
    heads={"tokens": ("GPT2LMHeadModel", "causal_lm")},
    ours=dict(
        architecture="decoder_only", residual="gpt2", positions="learned", embedding_scale=1.0
    ),
    theirs=dict(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, tie_word_embeddings=True
    ),
    both=(
        Setting("vocab_size", "vocab_size"),
        Setting("n_positions", "max_length"),
        Setting("n_embd", "d_model"),
        Setting("n_layer", "num_layers"),
        Setting("n_head", "num_heads"),
        Setting("n_inner", "d_ff", lambda ours: 4 * ours["d_model"]),
        Setting("activation_function", "activation", "gelu_new", ACTIVATIONS),
        Setting("layer_norm_epsilon", "norm_epsilon", 1e-5),
        Setting("resid_pdrop", "dropout_rate", 0.1),
        Setting("embd_pdrop", "embedding_dropout_rate", 0.1),
        Setting("attn_pdrop", "attention_dropout_rate", 0.1),
    ),
    rows=_rows,
    copies=(("lm_head.weight", "transformer.wte.weight"),),
    prefix="transformer.",
    idle=("n_ctx", "predict_special_tokens", "reorder_and_upcast_attn"),
)
