"""Marian (Junczys-Dowmunt et al. 2018), as OPUS-MT's translation models are."""

from typing import Any

import numpy as np

from transformer_jax.models.layers.positions import sinusoids
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import family

_ACTIVATIONS = {"swish": "swish", "silu": "swish", "gelu": "gelu", "relu": "relu"}
# The tables of each of our ways to tie them.
_SIDES = (
    ("model.encoder.embed_tokens.weight", "source_embedding/table"),
    ("model.decoder.embed_tokens.weight", "target_embedding/table"),
)
_TABLES = {
    "all": (("model.shared.weight", "embedding/table"),),
    "decoder": _SIDES,
    "none": _SIDES,
}
_POSITIONS = "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


def _settings(theirs: family.Settings) -> dict[str, Any]:
    num_heads, d_ff = theirs.need("encoder_attention_heads"), theirs.need("encoder_ffn_dim")
    vocab_size = theirs.need("vocab_size")
    theirs.refuse("decoder_attention_heads", num_heads)
    theirs.refuse("decoder_ffn_dim", d_ff)
    theirs.refuse("decoder_vocab_size", vocab_size)
    theirs.refuse("num_hidden_layers", theirs.need("encoder_layers"))  # another name of it
    shared, tied = (
        theirs.choose(name, {True: True, False: False}, True)
        for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings")
    )
    if shared:
        theirs.refuse("tie_word_embeddings", True)
    theirs.refuse("normalize_embedding", False)
    theirs.refuse("normalize_before", False)
    for name in _POSITIONS:
        if (table := theirs.tensor(name)) is not None:
            ours = sinusoids(len(table), theirs.need("d_model"))
            ours = np.concatenate([ours[:, ::2], ours[:, 1::2]], axis=1)  # see below
            if table.shape != ours.shape or not np.allclose(table.astype("f4"), ours, atol=0.01):
                raise ValueError(f"{name} are no sinusoids, and others have no counterpart here")
    dropout, positions = theirs.get("dropout", 0.1), theirs.need("max_position_embeddings")
    return {
        "task.name": "translation",
        "model.architecture": "encoder_decoder",
        "model.residual": "post_ln",
        "model.num_encoder_layers": theirs.need("encoder_layers"),
        "model.num_decoder_layers": theirs.need("decoder_layers"),
        "model.d_model": theirs.need("d_model"),
        "model.num_heads": num_heads,
        "model.d_ff": d_ff,
        "model.activation": theirs.choose("activation_function", _ACTIVATIONS, "gelu"),
        "model.tied_embeddings": "all" if shared else "decoder" if tied else "none",
        "model.embedding_scale": None if theirs.get("scale_embedding", False) else 1.0,
        "model.logits_bias": True,
        "model.vocab_size": vocab_size,
        "model.dropout_rate": dropout,
        "model.embedding_dropout_rate": dropout,
        "model.attention_dropout_rate": theirs.get("attention_dropout", 0.0),
        "model.feed_forward_dropout_rate": theirs.get("activation_dropout", 0.0),
        **family.lengths(positions, "source", "target"),
    }


def _config(ours: TransformerConfig, lengths: family.Lengths) -> dict[str, Any]:
    activations = {name: theirs for theirs, name in reversed(_ACTIVATIONS.items())}
    family.check(
        ours,
        encoder_residual="post_ln",
        decoder_residual="post_ln",
        norm="layer_norm",
        norm_epsilon=1e-5,
        bias=True,
        activation=ours.activation if ours.activation in activations else "swish",
        tied_embeddings=ours.tied_embeddings if ours.tied_embeddings in _TABLES else "all",
        logits_bias=True,
        kv_heads=ours.num_heads,
        head_dim=ours.d_model // ours.num_heads,
        embedding_dropout_rate=ours.dropout_rate,
        embedding_scale=1.0 if ours.embedding_scale == 1.0 else None,
    )
    return {
        "architectures": ["MarianMTModel"],
        "d_model": ours.d_model,
        "encoder_layers": ours.num_encoder_layers,
        "decoder_layers": ours.num_decoder_layers,
        "encoder_attention_heads": ours.num_heads,
        "decoder_attention_heads": ours.num_heads,
        "encoder_ffn_dim": ours.d_ff,
        "decoder_ffn_dim": ours.d_ff,
        "activation_function": activations[ours.activation],
        "scale_embedding": ours.embedding_scale is None,
        "max_position_embeddings": max(lengths),
        "dropout": ours.dropout_rate,
        "attention_dropout": ours.attention_dropout_rate,
        "activation_dropout": ours.feed_forward_dropout_rate,
        "share_encoder_decoder_embeddings": ours.tied_embeddings == "all",
        "tie_word_embeddings": ours.tied_embeddings != "none",
    }


def _rows(config: TransformerConfig) -> tuple[family.Row, ...]:
    bias = family.Row(
        ("final_logits_bias",), ("logits_bias/bias",), lambda x: (x[0],), lambda x: (x[None],)
    )
    rows = [family.as_it_is(*names) for names in _TABLES[config.tied_embeddings]] + [bias]
    if config.tied_embeddings == "none":
        rows.append(family.turned("lm_head.weight", "logits/kernel"))
    for stack in ("encoder", "decoder"):
        layer = f"model.{stack}.layers.{{}}"
        kinds = {"self_attention": "self_attn"}
        kinds |= {"cross_attention": "encoder_attn"} if stack == "decoder" else {}
        for kind, name in kinds.items():
            names = {ours: f"{layer}.{name}.{theirs}" for ours, theirs in _ATTENTION.items()}
            rows += family.attention(names, f"{stack}/{kind}", stack, config)
            rows += family.norm(
                f"{layer}.{name}_layer_norm", f"{stack}/{kind}_residual/post_norm", stack
            )
        rows += family.linear(f"{layer}.fc1", f"{stack}/feed_forward/up", stack, bias=True)
        rows += family.linear(f"{layer}.fc2", f"{stack}/feed_forward/down", stack, bias=True)
        last = f"{stack}/feed_forward_residual/post_norm"
        rows += family.norm(f"{layer}.final_layer_norm", last, stack)
    return tuple(_with_sinusoids_apart(row, config.d_model) for row in rows)


def _with_sinusoids_apart(row: family.Row, d_model: int) -> family.Row:
    """The row with the channels of the stream in our order.

    Theirs has the sines first and then the cosines, ours one of each in turn. Norms and sums do not
    see the order of channels, so that all that reads or writes the stream may be permuted.
    """
    ours = np.arange(d_model).reshape(2, -1).T.reshape(-1)  # where each of our channels is there
    axes = [_STREAM.get(path, _STREAM.get(path.rpartition("/")[2])) for path in row.ours]

    def permuted(arrays, order):
        return [
            x if axis is None else np.take(x, order, axis)
            for x, axis in zip(arrays, axes, strict=True)
        ]

    def read(*arrays):
        return permuted(row.read(*arrays), ours)

    def write(*arrays):
        return row.write(*permuted(arrays, np.argsort(ours)))

    return row._replace(read=read, write=write)


# The axis of the residual stream in the parameters that have it, by path or by name.
_STREAM = {
    **dict.fromkeys(("query", "key", "value", "up", "output_bias", "down_bias", "scale"), 0),
    "bias": 0,
    "kernel": 0,
    "logits_bias/bias": None,
    "output": 2,
    "down": 1,
    "table": 1,
}


MARIAN = family.Family(
    name="marian",
    settings=_settings,
    config=_config,
    rows=_rows,
    left=_POSITIONS,
    optional="logits_bias/*",
    copies=(
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
        ("lm_head.weight", "model.shared.weight"),
        ("lm_head.weight", "model.decoder.embed_tokens.weight"),
    ),
    prefix="model.",
    idle=("add_*", "classif_dropout", "*_layerdrop", "*_pos_embeddings", "static_*"),
)
