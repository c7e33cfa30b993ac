"""ModernBERT (Warner et al. 2024): Pre-LN without its first norm, gated, rotary, with windows."""

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rotary, rows
from transformer_jax.tools.convert.family import SIZES, Family, Setting, Settings, Values

_LAYER = "model.layers.{}"
_TABLE = "model.embeddings.tok_embeddings.weight"
_OLD_BASE = "local_rope_theta"


def _rows(config: TransformerConfig) -> list[rows.Row]:
    names = {
        "self_attention/output": "attn.Wo",
        "feed_forward/down": "mlp.Wo",
        "self_attention_residual/pre_norm": "attn_norm",
        "feed_forward_residual/pre_norm": "mlp_norm",
    }
    layers = [
        row._replace(first=1) if row.theirs[0].endswith("attn_norm.weight") else row
        for row in rows.layers(_LAYER, "encoder", config, names)
    ]
    return [
        rows.as_it_is(_TABLE, "embedding/table"),
        *rows.norm("model.embeddings.norm", "positions/norm", config),
        rows.queries_keys_values(f"{_LAYER}.attn.Wqkv.weight", config, "encoder"),
        rows.gate_and_up(f"{_LAYER}.mlp.Wi.weight", config, "encoder"),
        *layers,
        *rows.norm("model.final_norm", "encoder_norm", config),
        *rows.linear("head.dense", "token_head/transform", bias=False),
        rows.Row(
            (),
            ("token_head/transform_bias",),
            lambda: (np.zeros(config.d_model, np.float32),),
            _untrained,
        ),
        *rows.norm("head.norm", "token_head/norm", config),
        rows.as_it_is("decoder.bias", "token_head/logits_bias"),
    ]


def _untrained(bias: np.ndarray) -> tuple[()]:
    if np.any(bias):
        raise ValueError(
            "token_head/transform_bias was trained, and a modernbert has none: freeze it by "
            "optimizer.groups"
        )
    return ()


def _read(theirs: Settings, ours: Values) -> Values:
    every, layers = theirs.get("global_attn_every_n_layers", 3), ours["num_layers"]
    kinds = tuple("window" if layer % every else "full" for layer in range(layers))
    # So many tokens in all, on both sides, and the token itself.
    window = theirs.get("local_attention", 128) // 2 + 1
    settings = rotary.read_pattern(theirs, ours, kinds, window)
    theta = theirs.get("global_rope_theta", 160_000.0)
    base = theirs.nullable(_OLD_BASE, 10_000.0)
    settings |= rotary.read_by_kind(theirs, settings, theta=theta, old=_OLD_BASE, window_theta=base)
    if settings["rotary_scaling"]:  # which is of layers with a window, too
        theirs.refuse("rope_scaling", None)
    return {"pooling": "first", **settings}


def _write(ours: Values) -> Values:
    return {
        **rotary.written_by_kind(ours, _OLD_BASE),
        "global_rope_theta": ours["rotary_base"],
        "local_attention": 2 * ((ours["window"] or 65) - 1),
    }


MODERNBERT = Family(
    name="modernbert",
    heads={"masked_tokens": ("ModernBertForMaskedLM", "masked_lm")},
    ours=dict(
        architecture="encoder_only",
        residual="pre_ln_first_bare",
        activation="geglu",
        bias=False,
        embedding_norm=True,
        embedding_scale=1.0,
        norm="layer_norm_unbiased",
        positions="rotary",
        dropout_rate=0.0,
    ),
    theirs=dict(
        attention_bias=False,
        mlp_bias=False,
        norm_bias=False,
        classifier_bias=False,
        classifier_activation="gelu",
        decoder_bias=True,
        hidden_activation="gelu",
        tie_word_embeddings=True,
    ),
    both=(
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "length"),
        *SIZES,
        Setting("norm_eps", "norm_epsilon", 1e-5),
        Setting("embedding_dropout", "embedding_dropout_rate", 0.0),
        Setting("mlp_dropout", "feed_forward_dropout_rate", 0.0),
        Setting("attention_dropout", "attention_dropout_rate", 0.0),
    ),
    rows=_rows,
    read=_read,
    write=_write,
    also=rotary.round_trip(_read, _write),
    optional="token_head/*",
    unread=("classifier.*", "head.*"),
    copies=(("decoder.weight", _TABLE),),
    prefix="model.",
    idle=(
        *("classifier_*", "cls_token_id", "sep_token_id", "deterministic_flash_attn"),
        *("reference_compile", "repad_logits_with_grad", "sparse_pred*", "global_rope_theta"),
    ),
)
