"""BERT (Devlin et al. 2019) and what has its equations: masked tokens, classes or tags of texts."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rows
from transformer_jax.tools.convert.family import SIZES, Family, Setting, Settings, Values

_TYPES = 2  # rows of the table of token types that is written; texts are of type 0
# Their classes stand on tanh(x W + b) of the first token. Where ours stand on the token itself, W
# is this times the identity: so small that tanh(y) = y to the last digit, and taken back after it.
_SMALL = 2.0**-14
_LAYER: dict[str, str | list[str]] = {
    "self_attention": [
        *(f"attention.self.{name}" for name in ("query", "key", "value")),
        "attention.output.dense",
    ],
    "self_attention_residual/post_norm": "attention.output.LayerNorm",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_residual/post_norm": "output.LayerNorm",
}


class _Names(NamedTuple):
    """What the parts are called.

    stem: the bare model. head: transform, norm and bias of the masked tokens' head. pooler, labels:
    the two matrices of a classifier, of this `pooling`. layers: those of the bare model. layer: of
    each of them, for `rows.layers`. types: whether there is a table of token types. offset: rows of
    the table of positions that no token reads.
    """

    stem: str
    head: tuple[str, str, str]
    pooler: str
    labels: str
    layers: str = "encoder.layer.{}"
    layer: Mapping[str, str | list[str]] = _LAYER
    pooling: str = "pooler"
    types: bool = True
    offset: int = 0


_HEAD = "cls.predictions"
_BERT = _Names(
    "bert",
    (f"{_HEAD}.transform.dense", f"{_HEAD}.transform.LayerNorm", f"{_HEAD}.bias"),
    pooler="bert.pooler.dense",
    labels="classifier",
)
_ROBERTA = _Names(
    "roberta",
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    pooler="classifier.dense",
    labels="classifier.out_proj",
    offset=2,
)
_DISTILBERT = _Names(
    "distilbert",
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    pooler="pre_classifier",
    labels="classifier",
    layers="transformer.layer.{}",
    layer={
        "self_attention": [f"attention.{name}_lin" for name in ("q", "k", "v", "out")],
        "self_attention_residual/post_norm": "sa_layer_norm",
        "feed_forward/up": "ffn.lin1",
        "feed_forward/down": "ffn.lin2",
        "feed_forward_residual/post_norm": "output_layer_norm",
    },
    pooling="relu_pooler",
    types=False,
)
_ELECTRA = _Names(
    "electra",
    ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
    pooler="classifier.dense",
    labels="classifier.out_proj",
    pooling="gelu_pooler",
)


def _pooling(names: _Names, theirs: Settings, ours: Values) -> Values:
    """Whether the pooler of a classifier is more than what this file writes in place of none."""
    if ours["head"] != "classes":
        return {"pooling": "first"}
    if names.pooling != "pooler":  # for what else does another one stand in
        return {"pooling": names.pooling}
    kernel, bias = (theirs.tensor(f"{names.pooler}.{name}") for name in ("weight", "bias"))
    if kernel is not None and bias is not None and not np.any(bias):
        if np.array_equal(kernel, _SMALL * np.eye(len(kernel))):
            return {"pooling": "first"}
    return {"pooling": "pooler"}  # which is missed by name where it is missing


def _poolings(names: _Names, ours: Values) -> dict[str, tuple[Any, ...]]:
    """Those of a classifier that can be written; `first` with a pooler that changes nothing."""
    if ours["head"] != "classes":
        return {"pooling": ("first",)}
    return {"pooling": ("first", "pooler") if names.pooling == "pooler" else (names.pooling,)}


def _rows(names: _Names, config: TransformerConfig) -> list[rows.Row]:
    table = f"{names.stem}.embeddings.{{}}_embeddings.weight"
    return [
        rows.as_it_is(table.format("word"), "embedding/table"),
        _positions(names, table, config.d_model),
        *rows.norm(f"{names.stem}.embeddings.LayerNorm", "positions/norm", config),
        *rows.layers(f"{names.stem}.{names.layers}", "encoder", config, names.layer),
        *_head(names, config),
    ]


def _positions(names: _Names, table: str, d_model: int) -> rows.Row:
    """The table of positions; texts are of type 0, whose vector is added at every position."""
    unread = np.zeros((names.offset, d_model), np.float32)

    def read(positions, *types):
        read_rows = positions[names.offset :]
        return (read_rows + types[0][:1] if types else read_rows,)

    def write(positions):
        types = [np.zeros((_TYPES, d_model), np.float32)] * names.types
        return np.concatenate([unread, positions]), *types

    theirs = (table.format("position"), table.format("token_type"))[: 1 + names.types]
    return rows.Row(theirs, ("positions/table",), read, write)


def _head(names: _Names, config: TransformerConfig) -> list[rows.Row]:
    if config.head == "masked_tokens":
        transform, norm, bias = names.head
        return [
            *rows.linear(transform, "token_head/transform"),
            *rows.norm(norm, "token_head/norm", config),
            rows.as_it_is(bias, "token_head/logits_bias"),
        ]
    if config.head == "tags":
        return rows.linear("classifier", "label_head/labels")
    labels = rows.linear(names.labels, "label_head/labels")
    if config.pooling == names.pooling:
        return labels + rows.linear(names.pooler, "label_head/transform")
    pooler = _SMALL * np.eye(config.d_model, dtype=np.float32), np.zeros(config.d_model, np.float32)
    kernel = rows.Row(
        (f"{names.labels}.weight", f"{names.pooler}.weight", f"{names.pooler}.bias"),
        ("label_head/labels",),
        lambda kernel, *_: (kernel.T * _SMALL,),
        lambda kernel: (kernel.T / _SMALL, *pooler),
    )
    return [kernel, labels[1]]


def _family(
    name: str,
    kind: str,
    names: _Names,
    *,
    sizes: tuple[Setting, ...],
    theirs: Mapping[str, Any],
    head: str,
    **more: Any,
) -> Family:
    """A family whose parts have these names.

    kind: what its classes begin with. sizes: its settings but for the vocabulary. head: what the
    table and its bias are called again. more: fields of `Family`, also in the place of those here.
    """
    bias = names.head[-1]
    return Family(
        name=name,
        heads=_heads(kind),
        ours=dict(
            architecture="encoder_only",
            residual="post_ln",
            activation="gelu",
            positions="learned",
            embedding_norm=True,
            embedding_scale=1.0,
            norm_epsilon=1e-12,
        ),
        theirs={"tie_word_embeddings": True, **theirs},
        both=(Setting("vocab_size", "vocab_size"), *sizes),
        rows=functools.partial(_rows, names),
        optional="token_head/*",
        copies=(
            (f"{head}.weight", f"{names.stem}.embeddings.word_embeddings.weight"),
            *[(f"{head}.bias", bias)] * (f"{head}.bias" != bias),
        ),
        aliases=((bias, f"{head}.bias"),) * (f"{head}.bias" != bias),
        prefix=f"{names.stem}.",
        **{
            "read": functools.partial(_pooling, names),
            "write": lambda ours: {"type_vocab_size": _TYPES} if names.types else {},
            "also": functools.partial(_poolings, names),
            **more,
        },
    )


def _heads(kind: str) -> dict[str, tuple[str, str]]:
    return {
        "masked_tokens": (f"{kind}ForMaskedLM", "masked_lm"),
        "classes": (f"{kind}ForSequenceClassification", "classification"),
        "tags": (f"{kind}ForTokenClassification", "tagging"),
    }


_LENGTH = Setting("max_position_embeddings", "max_length")
_SIZES = (
    *SIZES,
    Setting("layer_norm_eps", "norm_epsilon", 1e-12),
    Setting("hidden_dropout_prob", "dropout_rate embedding_dropout_rate", 0.1),
    Setting("attention_probs_dropout_prob", "attention_dropout_rate", 0.1),
)
_BERT_THEIRS = {"position_embedding_type": "absolute", "hidden_act": "gelu"}  # also of the head


def _roberta(theirs: Settings, ours: Values) -> Values:
    # Token t reads the row t + 1 + pad.
    theirs.refuse("pad_token_id", _ROBERTA.offset - 1)
    length = theirs.whole("max_position_embeddings", 512)[0] - _ROBERTA.offset
    return {"max_length": length, **_pooling(_ROBERTA, theirs, ours)}


BERT = _family(
    "bert",
    "Bert",
    _BERT,
    sizes=(_LENGTH, *_SIZES),
    theirs=_BERT_THEIRS,
    head=f"{_HEAD}.decoder",
    # Of sentence pairs, answers and choices.
    unread=("bert.pooler.*", "cls.seq_relationship.*", "qa_outputs.*", "classifier.*"),
    idle=("directionality", "pooler_*", "type_vocab_size"),
)
# Liu et al. 2019
ROBERTA = _family(
    "roberta",
    "Roberta",
    _ROBERTA,
    sizes=_SIZES,
    theirs=_BERT_THEIRS,
    head="lm_head.decoder",
    read=_roberta,
    write=lambda ours: {
        "max_position_embeddings": ours["max_length"] + _ROBERTA.offset,
        "pad_token_id": _ROBERTA.offset - 1,
        "type_vocab_size": _TYPES,
    },
    also=lambda ours: {**_poolings(_ROBERTA, ours), "max_length": (ours["max_length"],)},
    unread=("roberta.pooler.*", "qa_outputs.*", "classifier.*"),
    idle=("type_vocab_size",),
)
# Conneau et al. 2020
XLM_ROBERTA = dataclasses.replace(ROBERTA, name="xlm-roberta", heads=_heads("XLMRoberta"))
# Martin et al. 2020
CAMEMBERT = dataclasses.replace(ROBERTA, name="camembert", heads=_heads("Camembert"))
# Sanh et al. 2019
DISTILBERT = _family(
    "distilbert",
    "DistilBert",
    _DISTILBERT,
    sizes=(
        _LENGTH,
        Setting("dim", "d_model"),
        Setting("n_layers", "num_layers"),
        Setting("n_heads", "num_heads"),
        Setting("hidden_dim", "d_ff"),
        Setting("dropout", "dropout_rate embedding_dropout_rate", 0.1),
        Setting("attention_dropout", "attention_dropout_rate", 0.1),
    ),
    theirs={"activation": "gelu"},
    head="vocab_projector",
    unread=("pre_classifier.*", "classifier.*", "qa_outputs.*"),
    idle=("*_dropout", "sinusoidal_pos_embds"),
)
# Clark et al. 2020: the discriminator, but for its head. Tables that are narrower than the stream,
# as those of small ones, are refused.
ELECTRA = _family(
    "electra",
    "Electra",
    _ELECTRA,
    sizes=(_LENGTH, *_SIZES, Setting("hidden_size embedding_size", "d_model")),
    theirs=_BERT_THEIRS,
    head="generator_lm_head",
    unread=("discriminator_predictions.*", "classifier.*", "qa_outputs.*", "sequence_summary.*"),
    idle=("type_vocab_size",),
)
