"""BERT (Devlin et al. 2019) for single texts: masked tokens, classes or tags."""

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rows
from transformer_jax.tools.convert.family import SIZES, Family, Setting, Settings, Values

_TYPES = 2  # rows of the table of token types that is written; texts are of type 0
_POOLER = "bert.pooler.dense"
# Their classes stand on tanh(x W + b) of the first token. Where ours stand on the token itself, W
# is this times the identity: so small that tanh(y) = y to the last digit, and taken back after it.
_SMALL = 2.0**-14
_INWARD = [f"attention.self.{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention": [*_INWARD, "attention.output.dense"],
    "self_attention_residual/post_norm": "attention.output.LayerNorm",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_residual/post_norm": "output.LayerNorm",
}


def _pooling(theirs: Settings, ours: Values) -> Values:
    """Whether the pooler of a classifier is more than what this file writes in place of none."""
    if ours["head"] != "classes":
        return {"pooling": "first"}
    kernel, bias = (theirs.tensor(f"{_POOLER}.{name}") for name in ("weight", "bias"))
    if kernel is not None and bias is not None and not np.any(bias):
        if np.array_equal(kernel, _SMALL * np.eye(len(kernel))):
            return {"pooling": "first"}
    return {"pooling": "pooler"}  # which is missed by name where it is missing


def _rows(config: TransformerConfig) -> list[rows.Row]:
    table = "bert.embeddings.{}_embeddings.weight"
    # Texts are of type 0, whose vector is added at every position.
    positions = rows.Row(
        (table.format("position"), table.format("token_type")),
        ("positions/table",),
        lambda positions, types: (positions + types[:1],),
        lambda positions: (positions, np.zeros((_TYPES, config.d_model), np.float32)),
    )
    return [
        rows.as_it_is(table.format("word"), "embedding/table"),
        positions,
        *rows.norm("bert.embeddings.LayerNorm", "positions/norm", config),
        *rows.layers("bert.encoder.layer.{}", "encoder", config, _LAYER),
        *_head(config),
    ]


def _head(config: TransformerConfig) -> list[rows.Row]:
    if config.head == "masked_tokens":
        head = "cls.predictions.transform"
        return [
            *rows.linear(f"{head}.dense", "token_head/transform"),
            *rows.norm(f"{head}.LayerNorm", "token_head/norm", config),
            rows.as_it_is("cls.predictions.bias", "token_head/logits_bias"),
        ]
    labels = rows.linear("classifier", "label_head/labels")
    if config.head == "tags":
        return labels
    if config.pooling == "pooler":
        return labels + rows.linear(_POOLER, "label_head/transform")
    pooler = _SMALL * np.eye(config.d_model, dtype=np.float32), np.zeros(config.d_model, np.float32)
    kernel = rows.Row(
        ("classifier.weight", f"{_POOLER}.weight", f"{_POOLER}.bias"),
        ("label_head/labels",),
        lambda kernel, *_: (kernel.T * _SMALL,),
        lambda kernel: (kernel.T / _SMALL, *pooler),
    )
    return [kernel, labels[1]]


BERT = Family(
    name="bert",
    heads={
        "masked_tokens": ("BertForMaskedLM", "masked_lm"),
        "classes": ("BertForSequenceClassification", "classification"),
        "tags": ("BertForTokenClassification", "tagging"),
    },
    ours=dict(
        architecture="encoder_only",
        residual="post_ln",
        activation="gelu",
        positions="learned",
        embedding_norm=True,
        embedding_scale=1.0,
    ),
    theirs=dict(
        position_embedding_type="absolute",
        tie_word_embeddings=True,
        hidden_act="gelu",  # also that of the head
    ),
    both=(
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length"),
        *SIZES,
        Setting("layer_norm_eps", "norm_epsilon", 1e-12),
        Setting("hidden_dropout_prob", "dropout_rate embedding_dropout_rate", 0.1),
        Setting("attention_probs_dropout_prob", "attention_dropout_rate", 0.1),
    ),
    rows=_rows,
    read=_pooling,
    write=lambda ours: {"type_vocab_size": _TYPES},
    also=lambda ours: {"pooling": ("first", "pooler")},
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
