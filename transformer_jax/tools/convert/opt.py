"""OPT (Zhang et al. 2022): ReLU, and learned positions from row 2 on.

A table that is narrower than the stream (opt-350m) is multiplied by the matrices between the two.
So it becomes a table and a kernel of logits of the stream's width, which cannot be written back.
"""

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rows
from transformer_jax.tools.convert.family import ACTIVATIONS, Family, Setting, Settings, Values

_STEM = "model.decoder"
_TABLE = f"{_STEM}.embed_tokens.weight"
_NORMS = {True: "pre_ln", False: "post_ln"}  # by their do_layer_norm_before
OFFSET = 2  # rows of a table of positions that no token reads, in what comes of fairseq


def positions(theirs: str, ours: str) -> rows.Row:
    """A table of positions whose first rows no token reads."""
    return rows.one(
        theirs,
        ours,
        lambda x: x[OFFSET:],
        lambda x: np.concatenate([np.zeros((OFFSET, x.shape[1]), np.float32), x]),
    )


def _rows(config: TransformerConfig) -> list[rows.Row]:
    pre = config.decoder_residual == _NORMS[True]
    # No layer has cross-attention.
    names = rows.fairseq("encoder", "pre_norm" if pre else "post_norm")
    narrow = config.tied_embeddings == "none"
    return [
        rows.as_it_is(_TABLE, "embedding/table"),
        positions(f"{_STEM}.embed_positions.weight", "positions/table"),
        *rows.layers(f"{_STEM}.layers.{{}}", "decoder", config, names),
        *(rows.norm(f"{_STEM}.final_layer_norm", "decoder_norm", config) if pre else ()),
        *(rows.linear("lm_head", "logits/kernel", bias=False) if narrow else ()),
    ]


def _read(theirs: Settings, ours: Values) -> Values:
    width = theirs.whole("word_embed_proj_dim", ours["d_model"])[0]
    if width == ours["d_model"]:
        return {}
    theirs.notes.append(
        f"The table of tokens, of width {width}, is multiplied by the matrices between it and the "
        "stream, so that export has no counterpart."
    )
    return {"tied_embeddings": "none"}


def _views(theirs: Settings, ours: Values) -> dict[str, rows.View]:
    """The table as the stream's, and as the kernel of logits."""
    inward, outward = (theirs.tensor(f"{_STEM}.project_{way}.weight") for way in ("in", "out"))
    if ours.get("model.tied_embeddings") != "none" or inward is None or outward is None:
        return {}
    inward, outward = inward.astype(np.float32).T, outward.astype(np.float32)
    return {_TABLE: lambda x: x @ inward, "lm_head.weight": lambda x: x @ outward}


OPT = Family(
    name="opt",
    heads={"tokens": ("OPTForCausalLM", "causal_lm")},
    ours=dict(
        architecture="decoder_only", positions="learned", embedding_scale=1.0, norm_epsilon=1e-5
    ),
    theirs=dict(
        enable_bias=True,
        layer_norm_elementwise_affine=True,
        tie_word_embeddings=True,
        _remove_final_layer_norm=False,
    ),
    both=(
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length"),
        Setting("hidden_size", "d_model"),
        Setting("num_hidden_layers", "num_layers"),
        Setting("num_attention_heads", "num_heads"),
        Setting("ffn_dim", "d_ff"),
        Setting("do_layer_norm_before", "residual", True, _NORMS),
        Setting("activation_function", "activation", "relu", ACTIVATIONS),
        Setting("dropout", "dropout_rate embedding_dropout_rate", 0.1),
        Setting("attention_dropout", "attention_dropout_rate", 0.0),
    ),
    rows=_rows,
    read=_read,
    write=lambda ours: {"word_embed_proj_dim": ours["d_model"]},
    views=_views,
    ignored=(f"{_STEM}.project_*.weight",),  # which the views have read
    copies=(("lm_head.weight", _TABLE),),
    aliases=(("lm_head.weight", _TABLE),),
    renamed=lambda name: name if name.startswith(("model.", "lm_head.")) else f"model.{name}",
)
