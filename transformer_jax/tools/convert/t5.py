"""T5, 1.0 and 1.1 (Raffel et al. 2020)."""

from typing import Any

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import family

_ACTIVATIONS = {"relu": "relu", "gated-gelu": "geglu_tanh"}
# What the table is called again, or instead of "shared.weight".
_TABLES = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
_ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}


def _settings(theirs: family.Settings) -> dict[str, Any]:
    theirs.refuse("relative_attention_num_buckets", 32)
    theirs.refuse("relative_attention_max_distance", 128)
    layers, d_model = theirs.need("num_layers"), theirs.need("d_model")
    activation = theirs.choose("feed_forward_proj", _ACTIVATIONS, "relu")
    # What releases before 5 made of it, and would be read in its place.
    theirs.refuse("dense_act_fn", "relu" if activation == "relu" else "gelu_new")
    theirs.refuse("is_gated_act", activation != "relu")
    # Relative positions have no end, so that releases from 5 on do not say what it was trained at.
    dropout, positions = theirs.get("dropout_rate", 0.1), theirs.get("n_positions", 512)
    # Releases from 5 on tie the head in any case, and say here whether logits are scaled.
    tied = theirs.get("tie_word_embeddings", True)
    scaled = theirs.get("scale_decoder_outputs", tied)
    head, table = (theirs.tensor(name) for name in ("lm_head.weight", "shared.weight"))
    differs = head is not None and table is not None and not np.array_equal(head, table)
    own_head = not tied or differs
    if scaled and own_head:
        raise ValueError(
            "config.json: logits of a head of its own that are scaled (scale_decoder_outputs=True) "
            "have no counterpart here, only those of the table"
        )
    return {
        "task.name": "translation",
        "model.architecture": "encoder_decoder",
        "model.residual": "pre_ln",
        "model.norm": "rms_norm",
        "model.norm_epsilon": theirs.get("layer_norm_epsilon", 1e-6),
        "model.bias": False,
        "model.num_encoder_layers": layers,
        "model.num_decoder_layers": theirs.get("num_decoder_layers", layers),
        "model.d_model": d_model,
        "model.num_heads": theirs.need("num_heads"),
        "model.head_dim": theirs.need("d_kv"),
        "model.d_ff": theirs.need("d_ff"),
        "model.activation": activation,
        "model.attention_score": "dot_product",
        "model.positions": "relative",
        # Logits times D^-0.5 of a table are those of the table times D^-0.5.
        "model.embedding_scale": None if scaled else 1.0,
        "model.tied_embeddings": "inputs" if own_head else "all",
        "model.vocab_size": theirs.need("vocab_size"),
        "model.dropout_rate": dropout,
        "model.embedding_dropout_rate": dropout,
        "model.attention_dropout_rate": dropout,
        "model.feed_forward_dropout_rate": dropout,
        **family.lengths(positions, "source", "target"),
    }


def _config(ours: TransformerConfig, lengths: family.Lengths) -> dict[str, Any]:
    activations = {name: theirs for theirs, name in _ACTIVATIONS.items()}
    own_head = ours.tied_embeddings == "inputs"
    family.check(
        ours,
        encoder_residual="pre_ln",
        decoder_residual="pre_ln",
        norm="rms_norm",
        bias=False,
        activation=ours.activation if ours.activation in activations else "relu",
        attention_score="dot_product",
        kv_heads=ours.num_heads,
        tied_embeddings="inputs" if own_head else "all",
        embedding_dropout_rate=ours.dropout_rate,
        attention_dropout_rate=ours.dropout_rate,
        feed_forward_dropout_rate=ours.dropout_rate,
        embedding_scale=1.0 if own_head or ours.embedding_scale == 1.0 else None,
    )
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": ours.d_model,
        "d_kv": ours.head_dim,
        "d_ff": ours.d_ff,
        "num_layers": ours.num_encoder_layers,
        "num_decoder_layers": ours.num_decoder_layers,
        "num_heads": ours.num_heads,
        "n_positions": lengths.read,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": ours.dropout_rate,
        "layer_norm_epsilon": ours.norm_epsilon,
        "feed_forward_proj": activations[ours.activation],
        "tie_word_embeddings": not own_head,
        "scale_decoder_outputs": ours.embedding_scale is None,
    }


def _rows(config: TransformerConfig) -> tuple[family.Row, ...]:
    root = config.d_model**0.5
    table = family.as_it_is("shared.weight", "embedding/table")
    if config.embedding_scale is None:
        table = table._replace(read=lambda x: (x / root,), write=lambda x: (x * root,))
    rows = [table]
    if config.tied_embeddings == "inputs":
        rows.append(family.turned("lm_head.weight", "logits/kernel"))
    for stack in ("encoder", "decoder"):
        block = f"{stack}.block.{{}}.layer"
        kinds = {"self_attention": "SelfAttention"}
        kinds |= {"cross_attention": "EncDecAttention"} if stack == "decoder" else {}
        for number, (kind, name) in enumerate(kinds.items()):
            names = {ours: f"{block}.{number}.{name}.{q}" for ours, q in _ATTENTION.items()}
            rows += family.attention(names, f"{stack}/{kind}", stack, config)
        inner = {"up": "wi"} if config.activation == "relu" else {"gate": "wi_0", "up": "wi_1"}
        for ours, name in (inner | {"down": "wo"}).items():
            theirs = f"{block}.{len(kinds)}.DenseReluDense.{name}"
            rows += family.linear(theirs, f"{stack}/feed_forward/{ours}", stack, bias=False)
        for number, kind in enumerate((*kinds, "feed_forward")):
            ours = f"{stack}/{kind}_residual/pre_norm"
            rows += family.norm(f"{block}.{number}.layer_norm", ours, stack, bias=False)
        rows += family.norm(f"{stack}.final_layer_norm", f"{stack}_norm", bias=False)
        bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rows.append(family.as_it_is(f"{stack}.{bias}", f"{stack}_bias/table"))
    return tuple(rows)


T5 = family.Family(
    name="t5",
    settings=_settings,
    config=_config,
    rows=_rows,
    # A bias in cross-attention that old files hold in vain.
    left=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    copies=tuple((name, "shared.weight") for name in (*_TABLES, "lm_head.weight")),
    aliases=tuple(("shared.weight", name) for name in _TABLES),
)
