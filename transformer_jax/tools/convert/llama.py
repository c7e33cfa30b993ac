"""Llama (Touvron et al. 2023) and what has its tensors, as OLMo: rotary, gated, grouped keys."""

from collections.abc import Callable, Mapping
from typing import Any

from transformer_jax.models.layers.attention import biases_of
from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import rotary, rows
from transformer_jax.tools.convert.family import SIZES, Family, Setting, Settings, Values

TABLE = "model.embed_tokens.weight"
_ATTENTION = [f"self_attn.{name}_proj" for name in "qkvo"]
_GATED = {f"feed_forward/{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
# Those of a layer, by the residual scheme.
_NORMS = {
    "pre_ln": {
        "self_attention_residual/pre_norm": "input_layernorm",
        "feed_forward_residual/pre_norm": "post_attention_layernorm",
    },
    "sandwich": {
        "self_attention_residual/pre_norm": "input_layernorm",
        "self_attention_residual/branch_norm": "post_attention_layernorm",
        "feed_forward_residual/pre_norm": "pre_feedforward_layernorm",
        "feed_forward_residual/branch_norm": "post_feedforward_layernorm",
    },
    "branch_ln": {
        "self_attention_residual/branch_norm": "post_attention_layernorm",
        "feed_forward_residual/branch_norm": "post_feedforward_layernorm",
    },
}
_QK_NORMS = {
    f"self_attention/{side}_norm": f"self_attn.{side[0]}_norm" for side in ("query", "key")
}


def make_rows(config: TransformerConfig) -> list[rows.Row]:
    """All rows."""
    names = {"self_attention": _ATTENTION, **_GATED, **_NORMS[config.decoder_residual]}
    names |= _QK_NORMS if config.qk_norm else {}
    return [
        *outside(config),
        *rows.layers("model.layers.{}", "decoder", config, names),
    ]


def outside(config: TransformerConfig, norm: str = "model.norm") -> list[rows.Row]:
    """The rows that are of no layer."""
    outer_rows = [rows.as_it_is(TABLE, "embedding/table"), *rows.norm(norm, "decoder_norm", config)]
    if not TIED_EMBEDDINGS[config.tied_embeddings].logits:
        outer_rows += rows.linear("lm_head", "logits/kernel", bias=False)
    if config.logits_bias:
        outer_rows.append(rows.as_it_is("lm_head.bias", "logits_bias/bias"))
    return outer_rows


def family(
    name: str,
    kind: str,
    *,
    ours: Mapping[str, Any] | None = None,
    theirs: Mapping[str, Any] | None = None,
    kv_heads: Any = lambda ours: ours["num_heads"],
    head_dim: Any = None,
    epsilon: float | None = 1e-6,
    tied: bool = False,
    read: Callable[[Settings, Values], Values] = lambda theirs, ours: rotary.read(theirs),
    write: Callable[[Values], Values] = rotary.written,
    also: Callable[[Values], dict[str, tuple[Any, ...]]] = lambda ours: {},
    **more: Any,
) -> Family:
    """A family of Llama's tensors.

    kind: its class, but for "ForCausalLM". kv_heads, head_dim, epsilon, tied: what a config.json
    means that leaves them out; no epsilon: 1e-5 in any case. also: besides rotation and pattern,
    which may be what `read` finds in what `write` writes. more: other fields of `Family`.
    """
    epsilon_setting = Setting("rms_norm_eps", "norm_epsilon", epsilon)
    return Family(
        name=name,
        heads={"tokens": (f"{kind}ForCausalLM", "causal_lm")},
        ours={
            **dict(
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
            **({} if epsilon else {"norm_epsilon": 1e-5}),
            **(ours or {}),
        },
        # A bias of keys would be turned with them, so that no softmax cancels it.
        theirs={"attention_bias": False, "hidden_act": "silu"} if theirs is None else theirs,
        both=(
            Setting("vocab_size", "vocab_size"),
            Setting("max_position_embeddings", "length"),
            *SIZES,
            Setting("num_key_value_heads", "num_kv_heads", kv_heads),
            Setting("head_dim", "head_dim", head_dim),
            *[epsilon_setting] * bool(epsilon),
            Setting("attention_dropout", "attention_dropout_rate", 0.0),
            Setting("tie_word_embeddings", "tied_embeddings", tied, {True: "all", False: "none"}),
        ),
        read=read,
        write=write,
        also=lambda ours: {**rotary.round_trip(read, write)(ours), **also(ours)},
        **{
            "rows": make_rows,
            "copies": (("lm_head.weight", TABLE),),
            "prefix": "model.",
            **more,
        },
    )


def _biases(theirs: Settings, ours: Values) -> Values:
    """Rotation, and biases of attention and of the feed-forward part, each or none."""
    attention = theirs.choose("attention_bias", {True: "all", False: "none"}, False)
    bias = theirs.choose("mlp_bias", {True: True, False: False}, False)
    alike = not bias and attention == "none"
    biases = {"bias": bias, "attention_bias": None if alike else attention}
    return biases | rotary.read(theirs)


def _write_biases(ours: Values) -> Values:
    bias = ours["bias"]
    attention = biases_of(ours["attention_bias"], bias).inward
    return rotary.written(ours) | {"attention_bias": attention, "mlp_bias": bias}


def _one_window(theirs: Settings, default: int | None) -> Values:
    """One window in all layers, if any. default: what it means that it is left out."""
    theirs.refuse("layer_types", None)
    window = theirs.nullable("sliding_window", default)
    return {"layer_pattern": ("full",) if window is None else ("window",), "window": window}


def _write_one_window(ours: Values) -> Values:
    return {**rotary.written(ours), "sliding_window": ours["window"]}


def _write_phi3(ours: Values) -> Values:
    """With the length before a scaling where its class looks for it first."""
    settings = _write_one_window(ours)
    original = settings["rope_parameters"].get(rotary.ORIGINAL)
    return settings | ({rotary.ORIGINAL: original} if original else {})


def _some_windows(theirs: Settings, ours: Values) -> Values:
    """Rotation, and windows from layer `max_window_layers` on, where they are switched on."""
    first, layers = theirs.get("max_window_layers", 28), ours["num_layers"]
    on = theirs.get("use_sliding_window", False)
    window = theirs.nullable("sliding_window", 4096)
    window = window if on else None
    kinds = [
        "window" if layer >= first and window is not None else "full" for layer in range(layers)
    ]
    windows = rotary.read_pattern(theirs, ours, kinds, window)
    if "window" in windows["layer_pattern"] and window is None:
        raise ValueError("config.json: layer_types names windows, which use_sliding_window denies")
    return windows | rotary.read(theirs)


def write_windows(ours: Values) -> Values:
    """Rotation, the window and the list of layers."""
    kinds = rotary.written_pattern(ours)
    on = {"use_sliding_window": ours["window"] is not None, "sliding_window": ours["window"]}
    near = "sliding_attention"
    first = kinds.index(near) if near in kinds else ours["num_layers"]
    return {**rotary.written(ours), **on, "layer_types": kinds, "max_window_layers": first}


def _unturned(theirs: Settings, ours: Values) -> Values:
    """Rotation, which some layers are without. In their list 1 is turned."""
    layers, every = ours["num_layers"], theirs.get("no_rope_layer_interval", 4)
    theirs.refuse("use_sliding_window", False)
    for kind in theirs.get("layer_types") or ():
        if kind != "full_attention":
            theirs.refuse("layer_types", None)
    turned = theirs.get("no_rope_layers") or [int((n + 1) % every != 0) for n in range(layers)]
    kinds = tuple("full" if one else "unturned" for one in turned)
    return {"layer_pattern": rotary.shortest(kinds), **rotary.read(theirs, theta=2e6)}


def _write_unturned(ours: Values) -> Values:
    kinds = rotary.repeated(ours["layer_pattern"], ours["num_layers"])
    turned = [int(kind == "full") for kind in kinds]
    return {**rotary.written(ours), "no_rope_layers": turned, "layer_types": None}


def _olmo3_windows(theirs: Settings, ours: Values) -> Values:
    pattern, window = ("window", "window", "window", "full"), theirs.get("sliding_window", 4096)
    kinds = rotary.read_pattern(theirs, ours, pattern, window)
    # An old file's one base is that of all layers; what is scaled is that of full layers alone.
    return kinds | rotary.read_by_kind(theirs, kinds, theta=5e5, old="rope_theta", window_theta=5e5)


def _fused_rows(config: TransformerConfig) -> list[rows.Row]:
    """Phi-3's, which has queries, keys and values in one matrix, and gate and up in another."""
    layer, stack = "model.layers.{}", "decoder"
    names = {
        "self_attention/output": "self_attn.o_proj",
        "feed_forward/down": "mlp.down_proj",
        **_NORMS["pre_ln"],
    }
    return [
        *outside(config),
        rows.queries_keys_values(f"{layer}.self_attn.qkv_proj.weight", config, stack),
        rows.gate_and_up(f"{layer}.mlp.gate_up_proj.weight", config, stack),
        *rows.layers(layer, stack, config, names),
    ]


_IDLE = ("is_llama_config", "max_sequence_length", "pretraining_tp", "unsloth_version")
LLAMA = family(
    "llama",
    "Llama",
    theirs={"hidden_act": "silu", "rope_interleaved": False},
    # None are all but those of keys, for which zeros are written.
    also=lambda ours: {"bias": (False, True), "attention_bias": (None, "all", "none")},
    read=_biases,
    write=_write_biases,
    idle=_IDLE,
)
# Jiang et al. 2023
MISTRAL = family(
    "mistral",
    "Mistral",
    kv_heads=8,
    read=lambda theirs, ours: _one_window(theirs, 4096) | rotary.read(theirs),
    write=_write_one_window,
)
# Yang et al. 2024; 2.5 is of its tensors, too.
QWEN2 = family(
    "qwen2",
    "Qwen2",
    ours={"attention_bias": "inward"},
    theirs={"hidden_act": "silu"},
    kv_heads=32,
    read=_some_windows,
    write=write_windows,
)
# Yang et al. 2025
QWEN3 = family(
    "qwen3",
    "Qwen3",
    ours={"qk_norm": True},
    kv_heads=32,
    head_dim=128,
    read=_some_windows,
    write=write_windows,
)
SMOLLM3 = family(
    "smollm3",
    "SmolLM3",
    theirs={"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"},
    kv_heads=4,
    tied=True,
    read=_unturned,
    write=_write_unturned,
    idle=("max_window_layers", "sliding_window"),
)
# Abdin et al. 2024
PHI3 = family(
    "phi3",
    "Phi3",
    theirs={"hidden_act": "silu"},
    epsilon=1e-5,
    rows=_fused_rows,
    # What it calls yarn is longrope.
    read=lambda theirs, ours: (
        _one_window(theirs, None) | rotary.read(theirs, fraction=1.0, names={"yarn": "longrope"})
    ),
    write=_write_phi3,
    idle=("embd_pdrop", "resid_pdrop"),
)
# Groeneveld et al. 2024; OLMo team 2024, 2025
OLMO = family(
    "olmo",
    "Olmo",
    ours={"norm": "layer_norm_plain"},
    theirs={"attention_bias": False, "hidden_act": "silu", "clip_qkv": None},
    epsilon=None,
)
_BRANCH = {"residual": "branch_ln", "qk_norm": True, "qk_norm_over": "heads"}
OLMO2 = family("olmo2", "Olmo2", ours=_BRANCH, epsilon=1e-5)
OLMO3 = family(
    "olmo3",
    "Olmo3",
    ours=_BRANCH,
    epsilon=1e-5,
    read=_olmo3_windows,
    write=lambda ours: {
        **rotary.written_by_kind(ours, "rope_theta"),
        "sliding_window": ours["window"],
    },
)
