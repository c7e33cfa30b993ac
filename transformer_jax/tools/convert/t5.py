"""T5, 1.0 and 1.1 (Raffel et al. 2020)."""

import dataclasses
from typing import Any

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rows
from transformer_jax.tools.convert.family import Family, Setting, Settings, Values

# What the table is called again, or instead of "shared.weight".
_TABLES = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"


def _own_head(theirs: Settings) -> bool:
    """Whether the head is there, and not the table."""
    head, table = (theirs.tensor(name) for name in ("lm_head.weight", "shared.weight"))
    return head is not None and table is not None and not np.array_equal(head, table)


def _read(theirs: Settings, ours: Values) -> Values:
    # What releases before 5 made of feed_forward_proj, and would be read in its place.
    relu = ours["activation"] == "relu"
    theirs.refuse("dense_act_fn", "relu" if relu else "gelu_new")
    theirs.refuse("is_gated_act", not relu)
    # Releases from 5 on tie the head in any case, so that the tensors tell.
    tied = "inputs" if _own_head(theirs) else ours["tied_embeddings"]
    if ours["embedding_scale"] is None and tied == "inputs":
        raise ValueError(
            "config.json: logits of a head of its own that are scaled (scale_decoder_outputs=True) "
            "have no counterpart here, only those of the table"
        )
    return {"tied_embeddings": tied}


def _rows(config: TransformerConfig) -> list[rows.Row]:
    root = config.d_model**0.5
    table = rows.as_it_is("shared.weight", "embedding/table")
    if config.embedding_scale is None:
        table = table._replace(read=lambda x: (x / root,), write=lambda x: (x * root,))
    model_rows = [table]
    if config.tied_embeddings == "inputs":
        model_rows += rows.linear("lm_head", "logits/kernel", bias=False)
    for stack in ("encoder", "decoder"):
        kinds = {"self_attention": "SelfAttention"}
        kinds |= {"cross_attention": "EncDecAttention"} if stack == "decoder" else {}
        inner = {"up": "wi"} if config.activation == "relu" else {"gate": "wi_0", "up": "wi_1"}
        names: dict[str, Any] = {
            f"feed_forward/{ours}": f"{len(kinds)}.DenseReluDense.{name}"
            for ours, name in (inner | {"down": "wo"}).items()
        }
        for number, kind in enumerate((*kinds, "feed_forward")):
            names[f"{kind}_residual/pre_norm"] = f"{number}.layer_norm"
            if kind in kinds:
                names[kind] = [f"{number}.{kinds[kind]}.{name}" for name in "qkvo"]
        model_rows += rows.layers(f"{stack}.block.{{}}.layer", stack, config, names)
        model_rows += rows.norm(f"{stack}.final_layer_norm", f"{stack}_norm", config)
        bias = f"{stack}.block.{{}}.layer.0.SelfAttention.relative_attention_bias.weight"
        if config.positions == "relative":
            model_rows.append(rows.as_it_is(bias.format(0), f"{stack}_bias/table"))
        else:
            model_rows.append(rows.as_it_is(bias, f"{stack}/self_attention_bias/table", stack))
    return model_rows


_SIZES = (
    Setting("vocab_size", "vocab_size"),
    # Relative positions have no end, so that releases from 5 on do not say what it was trained at.
    Setting("n_positions", "length", 512),
    Setting("d_model", "d_model"),
    Setting("num_layers", "num_encoder_layers"),
    Setting("num_decoder_layers", "num_decoder_layers", lambda ours: ours["num_encoder_layers"]),
    Setting("num_heads", "num_heads"),
    Setting("d_kv", "head_dim"),
    Setting("d_ff", "d_ff"),
    Setting("layer_norm_epsilon", "norm_epsilon", 1e-6),
    Setting(
        "dropout_rate",
        "dropout_rate embedding_dropout_rate attention_dropout_rate feed_forward_dropout_rate",
        0.1,
    ),
)
T5 = Family(
    name="t5",
    heads={"tokens": ("T5ForConditionalGeneration", "translation")},
    ours=dict(
        architecture="encoder_decoder",
        residual="pre_ln",
        norm="rms_norm",
        bias=False,
        attention_score="dot_product",
        positions="relative",
    ),
    theirs=dict(relative_attention_num_buckets=32, relative_attention_max_distance=128),
    both=(
        *_SIZES,
        Setting(
            "feed_forward_proj", "activation", "relu", {"relu": "relu", "gated-gelu": "geglu_tanh"}
        ),
        Setting("tie_word_embeddings", "tied_embeddings", True, {True: "all", False: "inputs"}),
        # Logits times D^-0.5 of a table are those of the table times D^-0.5.
        Setting(
            "scale_decoder_outputs",
            "embedding_scale",
            lambda ours: ours["tied_embeddings"] == "all",
            {True: None, False: 1.0},
        ),
    ),
    rows=_rows,
    read=_read,
    also=lambda ours: {"embedding_scale": (1.0,)} if ours["tied_embeddings"] == "inputs" else {},
    # A bias in cross-attention that old files hold in vain.
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    copies=tuple((name, "shared.weight") for name in (*_TABLES, "lm_head.weight")),
    aliases=tuple(("shared.weight", name) for name in _TABLES),
)


def _read_mt5(theirs: Settings, ours: Values) -> Values:
    """Releases from 5 on say that the head is the table, and take the head that is there."""
    theirs.choose("tie_word_embeddings", {True: None, False: None}, True)
    theirs.refuse("dense_act_fn", "gelu_new")
    theirs.refuse("is_gated_act", True)
    return {"tied_embeddings": "inputs" if _own_head(theirs) else "all"}


# Xue et al. 2021: T5 1.1, whose logits are never scaled.
MT5 = dataclasses.replace(
    T5,
    name="mt5",
    heads={"tokens": ("MT5ForConditionalGeneration", "translation")},
    ours={**T5.ours, "embedding_scale": 1.0},
    both=(
        *_SIZES,
        Setting("feed_forward_proj", "activation", "gated-gelu", {"gated-gelu": "geglu_tanh"}),
    ),
    read=_read_mt5,
    write=lambda ours: {"tie_word_embeddings": ours["tied_embeddings"] == "all"},
    also=lambda ours: {"tied_embeddings": ("all", "inputs")},
)


def _read_umt5(theirs: Settings, ours: Values) -> Values:
    """Logits of a table that is the head's too are scaled, as in T5."""
    settings = _read_mt5(theirs, ours)
    return {**settings, "embedding_scale": 1.0 if settings["tied_embeddings"] == "inputs" else None}


# Chung et al. 2023: relative positions with a table in each layer.
UMT5 = dataclasses.replace(
    MT5,
    name="umt5",
    heads={"tokens": ("UMT5ForConditionalGeneration", "translation")},
    ours={
        **{key: value for key, value in MT5.ours.items() if key != "embedding_scale"},
        "positions": "relative_by_layer",
    },
    read=_read_umt5,
    also=lambda ours: {
        "tied_embeddings": ("all", "inputs"),
        "embedding_scale": (1.0 if ours["tied_embeddings"] == "inputs" else None,),
    },
)
