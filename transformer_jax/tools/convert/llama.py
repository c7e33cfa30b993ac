"""Llama (Touvron et al. 2023) and what has its equations: rotary, gated, grouped, no biases."""

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
    found = [
        rows.as_it_is(_TABLE, "embedding/table"),
        *rows.norm("model.norm", "decoder_norm", config),
        *rows.layers("model.layers.{}", "decoder", config, _LAYER),
    ]
    if not TIED_EMBEDDINGS[config.tied_embeddings].logits:
        found += rows.linear("lm_head", "logits/kernel", bias=False)
    return found


LLAMA = Family(
    name="llama",
    heads={"tokens": ("LlamaForCausalLM", "causal_lm")},
    ours=dict(
        architecture="decoder_only",
        residual="pre_ln",
        norm="rms_norm",
        bias=False,
        activation="swiglu",
        positions="rotary",
        embedding_scale=1.0,
        dropout_rate=0.0,
        embedding_dropout_rate=0.0,
    ),
    # A bias of keys would be turned with them, so that no softmax cancels it.
    theirs=dict(attention_bias=False, mlp_bias=False, hidden_act="silu", rope_interleaved=False),
    both=(
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "length"),
        *SIZES,
        Setting("num_key_value_heads", "num_kv_heads", lambda ours: ours["num_heads"]),
        Setting("head_dim", "head_dim", None),
        Setting("rms_norm_eps", "norm_epsilon", 1e-6),
        Setting("attention_dropout", "attention_dropout_rate", 0.0),
        Setting("tie_word_embeddings", "tied_embeddings", False, {True: "all", False: "none"}),
    ),
    rows=_rows,
    read=_rotary,
    write=_write_rotary,
    left=("model.layers.*.self_attn.rotary_emb.inv_freq",),
    copies=(("lm_head.weight", _TABLE),),
    prefix="model.",
    idle=("is_llama_config", "max_sequence_length", "pretraining_tp", "unsloth_version"),
)
