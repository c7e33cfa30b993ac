"""BERT (Devlin et al. 2019) with its masked-token head, for single texts."""

from typing import Any

import numpy as np

from transformer_jax.data.prepare.tokenizer import SpecialIds
from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert.family import (
    Family,
    Lengths,
    Row,
    Settings,
    as_it_is,
    attention,
    check,
    linear,
    norm,
)

_TYPES = 2  # rows of the table of token types that is written; texts are of type 0


def _settings(theirs: Settings) -> dict[str, Any]:
    theirs.refuse("position_embedding_type", "absolute")
    theirs.refuse("is_decoder", False)
    theirs.refuse("add_cross_attention", False)
    theirs.refuse("tie_word_embeddings", True)
    theirs.refuse("hidden_act", "gelu")  # also that of the head
    positions, dropout = theirs.need("max_position_embeddings"), "hidden_dropout_prob"
    return {
        "task.name": "masked_lm",
        "model.architecture": "encoder_only",
        "model.residual": "post_ln",
        "model.num_layers": theirs.need("num_hidden_layers"),
        "model.d_model": theirs.need("hidden_size"),
        "model.num_heads": theirs.need("num_attention_heads"),
        "model.d_ff": theirs.need("intermediate_size"),
        "model.activation": "gelu",
        "model.norm_epsilon": theirs.get("layer_norm_eps", 1e-12),
        "model.positions": "learned",
        "model.max_length": positions,
        "model.embedding_norm": True,
        "model.embedding_scale": 1.0,
        "model.pooling": "first",
        "model.vocab_size": theirs.need("vocab_size"),
        "model.dropout_rate": theirs.get(dropout, 0.1),
        "model.embedding_dropout_rate": theirs.get(dropout, 0.1),
        "model.attention_dropout_rate": theirs.get("attention_probs_dropout_prob", 0.1),
        "data.max_source_length": positions,
        "data.row_source_length": positions,
    }


def _config(ours: TransformerConfig, ids: SpecialIds, lengths: Lengths) -> dict[str, Any]:
    del lengths
    check(
        ours,
        architecture="encoder_only",
        head="masked_tokens",
        encoder_residual="post_ln",
        norm="layer_norm",
        bias=True,
        qk_norm=False,
        activation="gelu",
        positions="learned",
        embedding_norm=True,
        kv_heads=ours.num_heads,
        head_dim=ours.d_model // ours.num_heads,
        attention_score="scaled_dot_product",
        embedding_dropout_rate=ours.dropout_rate,
        feed_forward_dropout_rate=0.0,
        embedding_scale=1.0,
    )
    if not TIED_EMBEDDINGS[ours.tied_embeddings].logits:
        check(ours, tied_embeddings="all")
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": ours.vocab_size,
        "hidden_size": ours.d_model,
        "num_hidden_layers": ours.num_encoder_layers,
        "num_attention_heads": ours.num_heads,
        "intermediate_size": ours.d_ff,
        "hidden_act": "gelu",
        "layer_norm_eps": ours.norm_epsilon,
        "max_position_embeddings": ours.max_length,
        "type_vocab_size": _TYPES,
        "hidden_dropout_prob": ours.dropout_rate,
        "attention_probs_dropout_prob": ours.attention_dropout_rate,
        "tie_word_embeddings": True,
        "pad_token_id": ids.pad,
    }


def _rows(config: TransformerConfig) -> tuple[Row, ...]:
    layer, stack = "bert.encoder.layer.{}", "encoder"
    inner = f"{layer}.attention.self"
    names = {name: f"{inner}.{name}" for name in ("query", "key", "value")}
    names["output"] = f"{layer}.attention.output.dense"
    table = "bert.embeddings.{}_embeddings.weight"
    # Texts are of type 0, whose vector is added at every position.
    positions = Row(
        (table.format("position"), table.format("token_type")),
        ("positions/table",),
        lambda positions, types: (positions + types[:1],),
        lambda positions: (positions, np.zeros((_TYPES, config.d_model), np.float32)),
    )
    head = "cls.predictions.transform"
    return (
        as_it_is(table.format("word"), "embedding/table"),
        positions,
        *norm("bert.embeddings.LayerNorm", "positions/norm"),
        *attention(names, "encoder/self_attention", stack, config),
        *norm(
            f"{layer}.attention.output.LayerNorm",
            "encoder/self_attention_residual/post_norm",
            stack,
        ),
        *linear(f"{layer}.intermediate.dense", "encoder/feed_forward/up", stack, bias=True),
        *linear(f"{layer}.output.dense", "encoder/feed_forward/down", stack, bias=True),
        *norm(f"{layer}.output.LayerNorm", "encoder/feed_forward_residual/post_norm", stack),
        *linear(f"{head}.dense", "token_head/transform", None, bias=True),
        *norm(f"{head}.LayerNorm", "token_head/norm"),
        as_it_is("cls.predictions.bias", "token_head/logits_bias"),
    )


BERT = Family(
    settings=_settings,
    config=_config,
    rows=_rows,
    # Of sentence pairs, and the head's matrix, which is the table.
    left=(
        "bert.pooler.*",
        "cls.seq_relationship.*",
        "cls.predictions.decoder.*",
        "bert.embeddings.position_ids",
    ),
)
