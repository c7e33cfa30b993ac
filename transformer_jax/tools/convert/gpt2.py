"""GPT-2 (Radford et al. 2019), what continues it, and GPT-Neo (Black et al. 2021), as TinyStories'.

GPT-Neo has windows in turn, and scores that are not scaled.
"""

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rotary, rows
from transformer_jax.tools.convert.family import (
    ACTIVATIONS,
    Family,
    Setting,
    Settings,
    Values,
    any_of,
)

_LAYER = "transformer.h.{}"
_NAMES = {
    "self_attention_residual/pre_norm": "ln_1",
    "feed_forward/up": "mlp.c_fc",
    "feed_forward/down": "mlp.c_proj",
    "feed_forward_residual/pre_norm": "ln_2",
}
_COPIES = (("lm_head.weight", "transformer.wte.weight"),)


def _outside(config: TransformerConfig) -> list[rows.Row]:
    """The rows that are of no layer."""
    return [
        rows.as_it_is("transformer.wte.weight", "embedding/table"),
        rows.as_it_is("transformer.wpe.weight", "positions/table"),
        *rows.norm("transformer.ln_f", "decoder_norm", config),
    ]


def _rows(config: TransformerConfig) -> list[rows.Row]:
    layer_rows = [
        rows.queries_keys_values(f"{_LAYER}.attn.c_attn.weight", config, "decoder"),
        *rows.layers(_LAYER, "decoder", config, {"self_attention/output": "attn.c_proj"} | _NAMES),
    ]
    return [
        *_outside(config),
        *map(_inputs_first, layer_rows),
        _biases((config.num_heads, config.head_dim)),
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
    copies=_COPIES,
    prefix="transformer.",
    idle=("n_ctx", "predict_special_tokens", "reorder_and_upcast_attn"),
)

_KINDS = {"global": "full", "local": "window"}


def _neo_rows(config: TransformerConfig) -> list[rows.Row]:
    attention = [f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out")]
    names = {"self_attention": attention, **_NAMES}
    return [*_outside(config), *rows.layers(_LAYER, "decoder", config, names)]


def _read_neo(theirs: Settings, ours: Values) -> Values:
    """The kinds of layers: lists of kinds, each with how often it is repeated."""
    parts = theirs.get("attention_types") or [[["global", "local"], ours["num_layers"] // 2]]
    names = [_KINDS[kind] for kinds, times in parts for kind in [*kinds] * times]
    if len(names) != ours["num_layers"]:
        raise ValueError(
            f"config.json: attention_types={parts!r} names {len(names)} layers of "
            f"{ours['num_layers']}"
        )
    window = theirs.get("window_size", 256)
    pattern = rotary.shortest(tuple(names))
    return {"layer_pattern": pattern, "window": window if "window" in pattern else None}


def _write_neo(ours: Values) -> Values:
    kinds = {name: kind for kind, name in _KINDS.items()}
    pattern = rotary.repeated(ours["layer_pattern"], ours["num_layers"])
    names = [kinds[kind] for kind in pattern]
    return {
        "attention_types": [[[name], 1] for name in names],
        "attention_layers": names,
        "window_size": ours["window"] or 256,
    }


GPT_NEO = Family(
    name="gpt_neo",
    heads={"tokens": ("GPTNeoForCausalLM", "causal_lm")},
    ours=dict(
        architecture="decoder_only",
        residual="pre_ln",
        positions="learned",
        embedding_scale=1.0,
        attention_score="dot_product",
        attention_bias="outward",
    ),
    theirs={"tie_word_embeddings": True},
    both=(
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length"),
        Setting("hidden_size", "d_model"),
        Setting("num_layers", "num_layers"),
        Setting("num_heads", "num_heads"),
        Setting("intermediate_size", "d_ff", lambda ours: 4 * ours["d_model"]),
        Setting("activation_function", "activation", "gelu_new", ACTIVATIONS),
        Setting("layer_norm_epsilon", "norm_epsilon", 1e-5),
        Setting("resid_dropout", "dropout_rate", 0.0),
        Setting("embed_dropout", "embedding_dropout_rate", 0.0),
        Setting("attention_dropout", "attention_dropout_rate", 0.0),
    ),
    rows=_neo_rows,
    read=_read_neo,
    write=_write_neo,
    also=any_of("layer_pattern", "window"),
    copies=_COPIES,
    prefix="transformer.",
    idle=("attention_layers",),
)
