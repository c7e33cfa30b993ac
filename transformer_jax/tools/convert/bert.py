"""BERT (Devlin et al. 2019) for single texts: masked tokens, classes or tags."""

from typing import Any

import numpy as np

from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import family

_TYPES = 2  # rows of the table of token types that is written; texts are of type 0
# The class of theirs for each head, and the task for each class; of others the encoder is read.
_CLASSES = {
    "masked_tokens": "BertForMaskedLM",
    "classes": "BertForSequenceClassification",
    "tags": "BertForTokenClassification",
}
_TASKS = {_CLASSES["classes"]: "classification", _CLASSES["tags"]: "tagging"}
_POOLER = "bert.pooler.dense"
# Their classes stand on tanh(x W + b) of the first token. Where ours stand on the token itself, W
# is this times the identity: so small that tanh(y) = y to the last digit, and taken back after it.
_SMALL = 2.0**-14


def _settings(theirs: family.Settings) -> dict[str, Any]:
    theirs.refuse("position_embedding_type", "absolute")
    theirs.refuse("tie_word_embeddings", True)
    theirs.refuse("hidden_act", "gelu")  # also that of the head
    positions, dropout = theirs.need("max_position_embeddings"), "hidden_dropout_prob"
    task = _TASKS.get((theirs.get("architectures") or [""])[0], "masked_lm")
    return {
        "task.name": task,
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
        "model.pooling": "pooler" if task == "classification" and _pools(theirs) else "first",
        "model.vocab_size": theirs.need("vocab_size"),
        "model.dropout_rate": theirs.get(dropout, 0.1),
        "model.embedding_dropout_rate": theirs.get(dropout, 0.1),
        "model.attention_dropout_rate": theirs.get("attention_probs_dropout_prob", 0.1),
        **family.lengths(positions, "source"),
    }


def _pools(theirs: family.Settings) -> bool:
    """Whether the pooler is more than what this file writes in place of none."""
    kernel, bias = (theirs.tensor(f"{_POOLER}.{name}") for name in ("weight", "bias"))
    if kernel is None or bias is None:
        return True  # which `tensors` says is missing
    return bool(np.any(bias)) or not np.array_equal(kernel, _SMALL * np.eye(len(kernel)))


def _config(ours: TransformerConfig, lengths: family.Lengths) -> dict[str, Any]:
    del lengths
    tied = ours.head != "masked_tokens" or TIED_EMBEDDINGS[ours.tied_embeddings].logits
    pooled = ours.head != "classes" or ours.pooling == "pooler"
    family.check(
        ours,
        encoder_residual="post_ln",
        norm="layer_norm",
        bias=True,
        activation="gelu",
        embedding_norm=True,
        logits_bias=ours.logits_bias,  # which an encoder does not have
        kv_heads=ours.num_heads,
        head_dim=ours.d_model // ours.num_heads,
        embedding_dropout_rate=ours.dropout_rate,
        feed_forward_dropout_rate=0.0,
        embedding_scale=1.0,
        tied_embeddings=ours.tied_embeddings if tied else "all",
        pooling=ours.pooling if pooled else "first",
    )
    return {
        "architectures": [_CLASSES[ours.head]],
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
    }


def _rows(config: TransformerConfig) -> tuple[family.Row, ...]:
    layer, stack = "bert.encoder.layer.{}", "encoder"
    inner = f"{layer}.attention.self"
    names = {name: f"{inner}.{name}" for name in ("query", "key", "value")}
    names["output"] = f"{layer}.attention.output.dense"
    table = "bert.embeddings.{}_embeddings.weight"
    # Texts are of type 0, whose vector is added at every position.
    positions = family.Row(
        (table.format("position"), table.format("token_type")),
        ("positions/table",),
        lambda positions, types: (positions + types[:1],),
        lambda positions: (positions, np.zeros((_TYPES, config.d_model), np.float32)),
    )
    return (
        family.as_it_is(table.format("word"), "embedding/table"),
        positions,
        *family.norm("bert.embeddings.LayerNorm", "positions/norm"),
        *family.attention(names, "encoder/self_attention", stack, config),
        *family.norm(
            f"{layer}.attention.output.LayerNorm",
            "encoder/self_attention_residual/post_norm",
            stack,
        ),
        *family.linear(f"{layer}.intermediate.dense", "encoder/feed_forward/up", stack, bias=True),
        *family.linear(f"{layer}.output.dense", "encoder/feed_forward/down", stack, bias=True),
        *family.norm(f"{layer}.output.LayerNorm", "encoder/feed_forward_residual/post_norm", stack),
        *_head(config),
    )


def _head(config: TransformerConfig) -> list[family.Row]:
    if config.head == "masked_tokens":
        head = "cls.predictions.transform"
        return [
            *family.linear(f"{head}.dense", "token_head/transform", None, bias=True),
            *family.norm(f"{head}.LayerNorm", "token_head/norm"),
            family.as_it_is("cls.predictions.bias", "token_head/logits_bias"),
        ]
    labels = family.linear("classifier", "label_head/labels", None, bias=True)
    if config.head == "tags":
        return labels
    if config.pooling == "pooler":
        return labels + family.linear(_POOLER, "label_head/transform", None, bias=True)
    pooler = _SMALL * np.eye(config.d_model, dtype=np.float32), np.zeros(config.d_model, np.float32)
    kernel = family.Row(
        ("classifier.weight", f"{_POOLER}.weight", f"{_POOLER}.bias"),
        ("label_head/labels",),
        lambda kernel, *_: (kernel.T * _SMALL,),
        lambda kernel: (kernel.T / _SMALL, *pooler),
    )
    return [kernel, labels[1]]


BERT = family.Family(
    name="bert",
    settings=_settings,
    config=_config,
    rows=_rows,
    left=("bert.embeddings.position_ids",),
    optional="token_head/*",
    # Of sentence pairs, answers and choices.
    unread=("bert.pooler.*", "cls.seq_relationship.*", "qa_outputs.*", "classifier.*"),
    copies=(
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
    aliases=(("cls.predictions.bias", "cls.predictions.decoder.bias"),),
    prefix="bert.",
    idle=("directionality", "pooler_*", "type_vocab_size"),
)
