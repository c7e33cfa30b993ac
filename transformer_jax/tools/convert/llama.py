"""Llama (Touvron et al. 2023) and what has its equations: rotary, gated, grouped, no biases."""

from typing import Any

from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import family

_TABLE = "model.embed_tokens.weight"


def _settings(theirs: family.Settings) -> dict[str, Any]:
    # A bias of keys would be turned with them, so that no softmax cancels it.
    theirs.refuse("attention_bias", False)
    theirs.refuse("mlp_bias", False)
    theirs.refuse("hidden_act", "silu")
    theirs.refuse("rope_interleaved", False)
    # Releases before 5 have scaling apart, which counts where both are there.
    rope = theirs.part("rope_scaling" if theirs.get("rope_scaling") else "rope_parameters")
    rope.refuse("rope_type", "default")
    rope.refuse("type", "default")
    theta = rope.number("rope_theta", theirs.number("rope_theta", 10_000.0))
    rope.check_known(())
    tied = theirs.choose("tie_word_embeddings", {True: True, False: False}, False)
    num_heads = theirs.need("num_attention_heads")
    positions = theirs.need("max_position_embeddings")
    return {
        "task.name": "causal_lm",
        "model.architecture": "decoder_only",
        "model.residual": "pre_ln",
        "model.norm": "rms_norm",
        "model.norm_epsilon": theirs.get("rms_norm_eps", 1e-6),
        "model.bias": False,
        "model.num_layers": theirs.need("num_hidden_layers"),
        "model.d_model": theirs.need("hidden_size"),
        "model.num_heads": num_heads,
        "model.num_kv_heads": theirs.get("num_key_value_heads", num_heads),
        "model.head_dim": theirs.get("head_dim"),
        "model.d_ff": theirs.need("intermediate_size"),
        "model.activation": "swiglu",
        "model.positions": "rotary",
        "model.rotary_base": theta,
        "model.embedding_scale": 1.0,
        "model.tied_embeddings": "all" if tied else "none",
        "model.vocab_size": theirs.need("vocab_size"),
        "model.dropout_rate": 0.0,
        "model.embedding_dropout_rate": 0.0,
        "model.attention_dropout_rate": theirs.get("attention_dropout", 0.0),
        **family.lengths(positions, "target"),
    }


def _config(ours: TransformerConfig, lengths: family.Lengths) -> dict[str, Any]:
    del lengths
    family.check(
        ours,
        decoder_residual="pre_ln",
        norm="rms_norm",
        bias=False,
        activation="swiglu",
        dropout_rate=0.0,
        embedding_dropout_rate=0.0,
        feed_forward_dropout_rate=0.0,
        embedding_scale=1.0,
    )
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": ours.d_model,
        "num_hidden_layers": ours.num_decoder_layers,
        "num_attention_heads": ours.num_heads,
        "num_key_value_heads": ours.kv_heads,
        "head_dim": ours.head_dim,
        "intermediate_size": ours.d_ff,
        "hidden_act": "silu",
        "rms_norm_eps": ours.norm_epsilon,
        # Both spellings: of releases from 5 on, and of those before.
        "rope_parameters": {"rope_type": "default", "rope_theta": ours.rotary_base},
        "rope_theta": ours.rotary_base,
        "max_position_embeddings": ours.context_length or 2048,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": ours.attention_dropout_rate,
        "tie_word_embeddings": TIED_EMBEDDINGS[ours.tied_embeddings].logits,
    }


def _rows(config: TransformerConfig) -> tuple[family.Row, ...]:
    layer, stack = "model.layers.{}", "decoder"
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    names = {name: f"{layer}.self_attn.{theirs}" for name, theirs in names.items()}
    rows = [
        family.as_it_is(_TABLE, "embedding/table"),
        *family.attention(names, "decoder/self_attention", stack, config),
        *family.norm("model.norm", "decoder_norm", bias=False),
    ]
    for name in ("gate", "up", "down"):
        ours = f"decoder/feed_forward/{name}"
        rows += family.linear(f"{layer}.mlp.{name}_proj", ours, stack, bias=False)
    for kind, name in {"self_attention": "input", "feed_forward": "post_attention"}.items():
        ours = f"decoder/{kind}_residual/pre_norm"
        rows += family.norm(f"{layer}.{name}_layernorm", ours, stack, bias=False)
    if not TIED_EMBEDDINGS[config.tied_embeddings].logits:
        rows.append(family.turned("lm_head.weight", "logits/kernel"))
    return tuple(rows)


LLAMA = family.Family(
    name="llama",
    settings=_settings,
    config=_config,
    rows=_rows,
    left=("model.layers.*.self_attn.rotary_emb.inv_freq",),
    copies=(("lm_head.weight", _TABLE),),
    prefix="model.",
    idle=("is_llama_config", "max_sequence_length", "pretraining_tp", "unsloth_version"),
)
