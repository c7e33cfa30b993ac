"""Llama (Touvron et al. 2023) and what has its equations: rotary, gated, grouped, no biases."""

from collections.abc import Mapping
from typing import Any

from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rows
from transformer_jax.tools.convert.family import SIZES, Family, Setting, Settings, Values

_TABLE = "model.embed_tokens.weight"
_LAYER = {
    "self_attention": [f"self_attn.{name}_proj" for name in "qkvo"],
    "self_attention_residual/pre_norm": "input_layernorm",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj",
    "feed_forward_residual/pre_norm": "post_attention_layernorm",
}
_QK_NORMS = {
    f"self_attention/{side}_norm": f"self_attn.{side[0]}_norm" for side in ("query", "key")
}


def _rotary(theirs: Settings, ours: Values) -> Values:
    # Releases before 5 have scaling apart, which counts where both are there.
    rope = theirs.part("rope_scaling" if theirs.get("rope_scaling") else "rope_parameters")
    rope.refuse("rope_type", "default")
    rope.refuse("type", "default")
    theta = rope.get("rope_theta", theirs.get("rope_theta", 10_000.0))
    rope.check_known(())
    return {"rotary_base": theta}


def _write_rotary(ours: Values) -> Values:
    """In both spellings: of releases from 5 on, and of those before."""
    base = {"rope_theta": ours["rotary_base"]}
    return {"rope_parameters": {"rope_type": "default", **base}, **base}


def _rows(config: TransformerConfig) -> list[rows.Row]:
    names = _LAYER | (_QK_NORMS if config.qk_norm else {})
    found = [
        rows.as_it_is(_TABLE, "embedding/table"),
        *rows.norm("model.norm", "decoder_norm", config),
        *rows.layers("model.layers.{}", "decoder", config, names),
    ]
    if not TIED_EMBEDDINGS[config.tied_embeddings].logits:
        found += rows.linear("lm_head", "logits/kernel", bias=False)
    return found


_OURS = dict(
    architecture="decoder_only",
    residual="pre_ln",
    norm="rms_norm",
    bias=False,
    activation="swiglu",
    positions="rotary",
    embedding_scale=1.0,
    dropout_rate=0.0,
    embedding_dropout_rate=0.0,
)
# A bias of keys would be turned with them, so that no softmax cancels it.
_THEIRS = dict(attention_bias=False, mlp_bias=False, hidden_act="silu", rope_interleaved=False)


def _family(
    name: str,
    kind: str,
    *,
    ours: Mapping[str, Any] | None = None,
    theirs: Mapping[str, Any] = _THEIRS,
    kv_heads: Any = lambda ours: ours["num_heads"],
    head_dim: int | None = None,
    tied: bool = False,
    **more: Any,
) -> Family:
    """A family of Llama's tensors.

    kind: its class, but for "ForCausalLM". kv_heads, head_dim, tied: what config.json means that
    leaves them out. more: fields of `Family` that are not Llama's.
    """
    return Family(
        name=name,
        heads={"tokens": (f"{kind}ForCausalLM", "causal_lm")},
        ours={**_OURS, **(ours or {})},
        theirs=theirs,
        both=(
            Setting("vocab_size", "vocab_size"),
            Setting("max_position_embeddings", "length"),
            *SIZES,
            Setting("num_key_value_heads", "num_kv_heads", kv_heads),
            Setting("head_dim", "head_dim", head_dim),
            Setting("rms_norm_eps", "norm_epsilon", 1e-6),
            Setting("attention_dropout", "attention_dropout_rate", 0.0),
            Setting("tie_word_embeddings", "tied_embeddings", tied, {True: "all", False: "none"}),
        ),
        **{
            "rows": _rows,
            "read": _rotary,
            "write": _write_rotary,
            "left": ("model.layers.*.self_attn.rotary_emb.inv_freq",),
            "copies": (("lm_head.weight", _TABLE),),
            "prefix": "model.",
            "idle": ("is_llama_config", "max_sequence_length", "pretraining_tp", "unsloth_version"),
            **more,
        },
    )


def _scales_from_zero(config: TransformerConfig) -> list[rows.Row]:
    """The rows where norms multiply by 1 + w."""
    return [
        row._replace(
            read=lambda x, row=row: [1 + part.astype("f4") for part in row.read(x)],
            write=lambda x, row=row: [part - 1 for part in row.write(x)],
        )
        if row.ours[0].endswith("/scale")
        else row
        for row in _rows(config)
    ]


def _tanh(theirs: Settings, ours: Values) -> Values:
    """Rotation, and an activation that is GELU by tanh whatever its old name says."""
    names = ("gelu_pytorch_tanh", "gelu", "gelu_new", None)
    for name in ("hidden_act", "hidden_activation"):
        theirs.choose(name, dict.fromkeys(names))
    return _rotary(theirs, ours)


def _full(theirs: Settings, ours: Values) -> Values:
    """Rotation; the kinds of layers are all one."""
    for kind in theirs.get("layer_types") or ():
        if kind != "full_attention":
            theirs.refuse("layer_types", None)
    return _rotary(theirs, ours)


LLAMA = _family("llama", "Llama")
MISTRAL = _family("mistral", "Mistral", kv_heads=8, theirs=_THEIRS | {"sliding_window": None})
QWEN3 = _family(
    "qwen3",
    "Qwen3",
    ours={"qk_norm": True},
    theirs=_THEIRS | {"use_sliding_window": False},
    kv_heads=32,
    head_dim=128,
    read=_full,
    idle=("sliding_window", "max_window_layers"),
)
GEMMA = _family(
    "gemma",
    "Gemma",
    ours={"activation": "geglu_tanh", "embedding_scale": None},
    theirs={"attention_bias": False, "use_bidirectional_attention": None},
    kv_heads=16,
    head_dim=256,
    tied=True,
    rows=_scales_from_zero,
    read=_tanh,
    write=lambda ours: {"hidden_act": "gelu_pytorch_tanh", **_write_rotary(ours)},
)
