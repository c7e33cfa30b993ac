"""GPT-NeoX (Black et al. 2022), as Pythia's are, and Phi: parallel branches, a turned part."""

from typing import Any

import numpy as np

from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import llama, rotary, rows
from transformer_jax.tools.convert.family import (
    ACTIVATIONS,
    SIZES,
    Family,
    Setting,
    Settings,
    Values,
    any_of,
)

_LAYER = "gpt_neox.layers.{}"
_NAMES = {
    "self_attention/output": "attention.dense",
    "feed_forward/up": "mlp.dense_h_to_4h",
    "feed_forward/down": "mlp.dense_4h_to_h",
    "self_attention_residual/pre_norm": "input_layernorm",
    "feed_forward_residual/pre_norm": "post_attention_layernorm",
}


def _rows(config: TransformerConfig) -> list[rows.Row]:
    model_rows = [
        rows.as_it_is("gpt_neox.embed_in.weight", "embedding/table"),
        *rows.norm("gpt_neox.final_layer_norm", "decoder_norm", config),
        *_fused(config.num_heads, config.head_dim, config.attention_bias == "all"),
        *rows.layers(_LAYER, "decoder", config, _NAMES),
    ]
    if not TIED_EMBEDDINGS[config.tied_embeddings].logits:
        model_rows += rows.linear("embed_out", "logits/kernel", bias=False)
    return model_rows


def _fused(number: int, size: int, bias: bool) -> list[rows.Row]:
    """Query, key and value, which are one matrix (3 H K, D) there, head by head."""
    names = [f"decoder/self_attention/{name}" for name in ("query", "key", "value")]

    def read(x):
        return np.moveaxis(x.reshape(number, 3, size, *x.shape[1:]), 1, 0)

    def write(*x):
        return (np.stack(x, axis=1).reshape(3 * number * size, *x[0].shape[2:]),)

    name = f"{_LAYER}.attention.query_key_value"
    kernel = rows.Row(
        (f"{name}.weight",),
        tuple(names),
        lambda x: [np.moveaxis(part, -1, 0) for part in read(x)],
        lambda *x: write(*(np.moveaxis(part, 0, -1) for part in x)),
        "decoder",
    )
    ours = tuple(f"{one}_bias" for one in names)
    return [kernel, *[rows.Row((f"{name}.bias",), ours, read, write, "decoder")] * bias]


def _read(theirs: Settings, ours: Values) -> Values:
    return rotary.read(theirs, fraction=0.25, old=("rotary_emb_base", "rotary_pct"))


def _write(ours: Values) -> Values:
    written = rotary.written(ours)
    fraction = ours["rotary_fraction"]
    written["rope_parameters"][rotary.SHARE] = fraction
    return written | {"rotary_pct": fraction, "rotary_emb_base": ours["rotary_base"]}


_ROTATION = "rotary_base", "rotary_scaling", "rotary_fraction"
_OURS = dict(
    architecture="decoder_only", residual="parallel", positions="rotary", embedding_scale=1.0
)
_TIED = {True: "all", False: "none"}
GPT_NEOX = Family(
    name="gpt_neox",
    heads={"tokens": ("GPTNeoXForCausalLM", "causal_lm")},
    ours=_OURS,
    both=(
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "length"),
        *SIZES,
        Setting("layer_norm_eps", "norm_epsilon", 1e-5),
        Setting("hidden_act", "activation", "gelu", ACTIVATIONS),
        Setting("attention_bias", "attention_bias", True, {True: "all", False: "none"}),
        Setting("use_parallel_residual", "residual", True, {True: "parallel", False: "pre_ln"}),
        Setting("hidden_dropout", "dropout_rate embedding_dropout_rate", 0.0),
        Setting("attention_dropout", "attention_dropout_rate", 0.0),
        Setting("tie_word_embeddings", "tied_embeddings", False, _TIED),
    ),
    rows=_rows,
    read=_read,
    write=_write,
    also=any_of(*_ROTATION),
    copies=(("embed_out.weight", "gpt_neox.embed_in.weight"),),
    prefix="gpt_neox.",
    renamed=lambda name: name.replace("gpt_neox.embed_out", "embed_out"),
    idle=("rope_theta", rotary.SHARE),  # which its class does not read
)

# Javaheripi et al. 2023. One norm of a layer's input goes to both branches.
_PHI = {
    "self_attention": [f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "dense")],
    "feed_forward/up": "mlp.fc1",
    "feed_forward/down": "mlp.fc2",
}


def _phi_rows(config: TransformerConfig) -> list[rows.Row]:
    def one_norm(part: str) -> rows.Row:
        ours = tuple(
            f"decoder/{kind}_residual/pre_norm/{'scale' if part == 'weight' else part}"
            for kind in ("self_attention", "feed_forward")
        )
        name = f"model.layers.{{}}.input_layernorm.{part}"
        return rows.Row((name,), ours, lambda x: (x, x), _alike, "decoder")

    return [
        *llama.outside(config, "model.final_layernorm"),
        *rows.layers("model.layers.{}", "decoder", config, _PHI),
        *map(one_norm, ("weight", "bias")),
    ]


def _alike(one: Any, other: Any) -> tuple[Any]:
    if not np.array_equal(one, other):
        raise ValueError(
            "the norms of attention and of the feed-forward part were trained apart, and a phi has "
            "one for both"
        )
    return (one,)


PHI = Family(
    name="phi",
    heads={"tokens": ("PhiForCausalLM", "causal_lm")},
    ours={**_OURS, "attention_bias": "all", "logits_bias": True, "tied_embeddings": "none"},
    theirs={"qk_layernorm": False, "tie_word_embeddings": False},
    both=(
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "length"),
        *SIZES,
        Setting("num_key_value_heads", "num_kv_heads", lambda ours: ours["num_heads"]),
        Setting("layer_norm_eps", "norm_epsilon", 1e-5),
        Setting("hidden_act", "activation", "gelu_new", ACTIVATIONS),
        Setting("resid_pdrop", "dropout_rate", 0.0),
        Setting("embd_pdrop", "embedding_dropout_rate", 0.0),
        Setting("attention_dropout", "attention_dropout_rate", 0.0),
    ),
    rows=_phi_rows,
    read=lambda theirs, ours: rotary.read(theirs, fraction=0.5),
    write=rotary.written,
    also=any_of(*_ROTATION),
    prefix="model.",
)
