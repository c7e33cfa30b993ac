"""GPT-2 (Radford et al. 2019), and what continues it."""

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rows
from transformer_jax.tools.convert.family import ACTIVATIONS, Family, Setting

_LAYER = "transformer.h.{}"


def _rows(config: TransformerConfig) -> list[rows.Row]:
    heads = config.num_heads, config.head_dim
    names = {
        "self_attention_residual/pre_norm": "ln_1",
        "feed_forward/up": "mlp.c_fc",
        "feed_forward/down": "mlp.c_proj",
        "feed_forward_residual/pre_norm": "ln_2",
    }
    own = rows.layers(_LAYER, "decoder", config, names) + rows.linear(
        f"{_LAYER}.attn.c_proj", "decoder/self_attention/output", "decoder", inputs=heads
    )
    return [
        rows.as_it_is("transformer.wte.weight", "embedding/table"),
        rows.as_it_is("transformer.wpe.weight", "positions/table"),
        *_fused(config.d_model, heads),
        *map(_inputs_first, own),
        *rows.norm("transformer.ln_f", "decoder_norm", config),
    ]


def _fused(d_model: int, heads: tuple[int, int]) -> list[rows.Row]:
    """Query, key and value, which are one matrix (D, 3 H K) there."""
    query, key, value = (f"decoder/self_attention/{name}" for name in ("query", "key", "value"))
    weight = rows.Row(
        (f"{_LAYER}.attn.c_attn.weight",),
        (query, key, value),
        lambda x: x.reshape(d_model, 3, *heads).swapaxes(0, 1),
        lambda *x: (np.stack(x, axis=1).reshape(d_model, -1),),
        "decoder",
    )
    bias = rows.Row(  # the softmax cancels that of keys
        (f"{_LAYER}.attn.c_attn.bias",),
        (f"{query}_bias", f"{value}_bias"),
        lambda x: x.reshape(3, *heads)[::2],
        lambda query, value: (np.stack([query, 0 * query, value]).reshape(-1),),
        "decoder",
    )
    return [weight, bias]


def _inputs_first(row: rows.Row) -> rows.Row:
    """The row of a matrix that is (inputs, outputs) there too."""
    return row._replace(
        read=lambda x: row.read(x.T), write=lambda x: [part.T for part in row.write(x)]
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
    # Masks that old files hold.
    left=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    copies=(("lm_head.weight", "transformer.wte.weight"),),
    prefix="transformer.",
    idle=("n_ctx", "predict_special_tokens", "reorder_and_upcast_attn", "summary_*"),
)
