"""GPT-Neo (Black et al. 2021), as TinyStories' are: windows in turn, scores that are not scaled."""

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rotary, rows
from transformer_jax.tools.convert.family import (
    ACTIVATIONS,
    Family,
    Setting,
    Settings,
    Values,
    any_of,
)

_KINDS = {"global": "full", "local": "window"}
_LAYER = {
    "self_attention": [f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out")],
    "self_attention_residual/pre_norm": "ln_1",
    "feed_forward/up": "mlp.c_fc",
    "feed_forward/down": "mlp.c_proj",
    "feed_forward_residual/pre_norm": "ln_2",
}


def _rows(config: TransformerConfig) -> list[rows.Row]:
    return [
        rows.as_it_is("transformer.wte.weight", "embedding/table"),
        rows.as_it_is("transformer.wpe.weight", "positions/table"),
        *rows.layers("transformer.h.{}", "decoder", config, _LAYER),
        *rows.norm("transformer.ln_f", "decoder_norm", config),
    ]


def _read(theirs: Settings, ours: Values) -> Values:
    """The kinds of layers: lists of kinds, each with how often it is repeated."""
    parts = theirs.get("attention_types") or [[["global", "local"], ours["num_layers"] // 2]]
    names = [_KINDS[kind] for kinds, times in parts for kind in [*kinds] * times]
    if len(names) != ours["num_layers"]:
        raise ValueError(
            f"config.json: attention_types={parts!r} names {len(names)} layers of "
            f"{ours['num_layers']}"
        )
    window = theirs.get("window_size", 256)
    pattern = rotary.shortest(tuple(names))
    return {"layer_pattern": pattern, "window": window if "window" in pattern else None}


def _write(ours: Values) -> Values:
    kinds = {name: kind for kind, name in _KINDS.items()}
    pattern = rotary.repeated(ours["layer_pattern"], ours["num_layers"])
    names = [kinds[kind] for kind in pattern]
    return {
        "attention_types": [[[name], 1] for name in names],
        "attention_layers": names,
        "window_size": ours["window"] or 256,
    }


GPT_NEO = Family(
    name="gpt_neo",
    heads={"tokens": ("GPTNeoForCausalLM", "causal_lm")},
    ours=dict(
        architecture="decoder_only",
        residual="pre_ln",
        positions="learned",
        embedding_scale=1.0,
        attention_score="dot_product",
        attention_bias="outward",
    ),
    theirs={"tie_word_embeddings": True},
    both=(
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length"),
        Setting("hidden_size", "d_model"),
        Setting("num_layers", "num_layers"),
        Setting("num_heads", "num_heads"),
        Setting("intermediate_size", "d_ff", lambda ours: 4 * ours["d_model"]),
        Setting("activation_function", "activation", "gelu_new", ACTIVATIONS),
        Setting("layer_norm_epsilon", "norm_epsilon", 1e-5),
        Setting("resid_dropout", "dropout_rate", 0.0),
        Setting("embed_dropout", "embedding_dropout_rate", 0.0),
        Setting("attention_dropout", "attention_dropout_rate", 0.0),
    ),
    rows=_rows,
    read=_read,
    write=_write,
    also=any_of("layer_pattern", "window"),
    copies=(("lm_head.weight", "transformer.wte.weight"),),
    prefix="transformer.",
    idle=("attention_layers",),
)
