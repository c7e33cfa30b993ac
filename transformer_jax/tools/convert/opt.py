"""OPT (Zhang et al. 2022): Pre-LN, ReLU, and learned positions from row 2 on."""

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rows
from transformer_jax.tools.convert.family import ACTIVATIONS, Family, Setting, Settings, Values

_STEM = "model.decoder"
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
    names = rows.fairseq("encoder", "pre_norm")  # no layer has cross-attention
    return [
        rows.as_it_is(f"{_STEM}.embed_tokens.weight", "embedding/table"),
        positions(f"{_STEM}.embed_positions.weight", "positions/table"),
        *rows.layers(f"{_STEM}.layers.{{}}", "decoder", config, names),
        *rows.norm(f"{_STEM}.final_layer_norm", "decoder_norm", config),
    ]


def _read(theirs: Settings, ours: Values) -> Values:
    theirs.refuse("word_embed_proj_dim", ours["d_model"])
    return {"norm_epsilon": 1e-5}


OPT = Family(
    name="opt",
    heads={"tokens": ("OPTForCausalLM", "causal_lm")},
    ours=dict(
        architecture="decoder_only", residual="pre_ln", positions="learned", embedding_scale=1.0
    ),
    theirs=dict(
        do_layer_norm_before=True,
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
        Setting("activation_function", "activation", "relu", ACTIVATIONS),
        Setting("dropout", "dropout_rate embedding_dropout_rate", 0.1),
        Setting("attention_dropout", "attention_dropout_rate", 0.0),
    ),
    rows=_rows,
    read=_read,
    write=lambda ours: {"word_embed_proj_dim": ours["d_model"]},
    also=lambda ours: {"norm_epsilon": (1e-5,)},
    copies=(("lm_head.weight", f"{_STEM}.embed_tokens.weight"),),
    renamed=lambda name: name if name.startswith(("model.", "lm_head.")) else f"model.{name}",
    idle=("layerdrop",),
)
