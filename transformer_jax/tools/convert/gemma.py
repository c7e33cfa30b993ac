"""Gemma 1, 2 and 3 (Google 2024, 2025): norms by 1 + w, embeddings by the root of their width."""

import functools
from collections.abc import Sequence

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import llama, rotary, rows
from transformer_jax.tools.convert.family import Settings, Values, any_of
from transformer_jax.tools.convert.rows import View

_OURS = {"activation": "geglu_tanh", "embedding_scale": None}
_CAPS = {"attn_logit_softcapping": "attention_softcap", "final_logit_softcapping": "logits_softcap"}


def _rows(config: TransformerConfig) -> list[rows.Row]:
    """Those of a Llama, whose norms multiply by 1 + w."""
    return [
        row._replace(
            read=lambda x, row=row: [1 + part.astype("f4") for part in row.read(x)],
            write=lambda x, row=row: [part - 1 for part in row.write(x)],
        )
        if row.ours[0].endswith("/scale")
        else row
        for row in llama.make_rows(config)
    ]


def _tanh(theirs: Settings) -> None:
    """The activation is GELU by tanh, whatever an old name of it says; a new one is meant."""
    tanh = "gelu_pytorch_tanh", "gelu_new", None
    theirs.choose("hidden_activation", dict.fromkeys(tanh))
    theirs.choose("hidden_act", dict.fromkeys((*tanh, "gelu")))


def _read(theirs: Settings, ours: Values) -> Values:
    _tanh(theirs)
    return rotary.read(theirs)


def _windows(
    theirs: Settings, ours: Values, pattern: Sequence[str], caps: Sequence[float | None]
) -> Values:
    _tanh(theirs)
    theirs.get("query_pre_attn_scalar")  # see `_scores`
    settings = rotary.read_pattern(theirs, ours, pattern, theirs.get("sliding_window", 4096))
    for (name, key), cap in zip(_CAPS.items(), caps, strict=True):
        settings[key] = theirs.nullable(name, cap)
    return settings


def _read_3(theirs: Settings, ours: Values) -> Values:
    # It is kept by releases from 5 on, and never used.
    theirs.refuse("attn_logit_softcapping", None)
    every = theirs.get("sliding_window_pattern", 6)
    settings = _windows(theirs, ours, ("window",) * (every - 1) + ("full",), (None, None))
    bases = rotary.read_by_kind(
        theirs, settings, theta=1e6, old="rope_local_base_freq", window_theta=10_000.0
    )
    return settings | bases


def _scores(theirs: Settings, ours: Values) -> dict[str, View]:
    """Scores are divided by the root of query_pre_attn_scalar, ours by that of head_dim.

    So queries take the ratio, by their norm where there is one, which multiplies by 1 + w.
    """
    root = (ours["model.head_dim"] / theirs.get("query_pre_attn_scalar", 256)) ** 0.5
    name = "model.layers.*.self_attn.{}.weight"
    if root == 1:
        return {}
    if ours.get("model.qk_norm"):
        return {name.format("q_norm"): lambda w: (1 + w) * root - 1}
    return {name.format("q_proj"): lambda w: w * root}


def _write(ours: Values) -> Values:
    window = {"sliding_window": ours["window"]} if ours["window"] else {}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": ours["head_dim"],
        "layer_types": rotary.written_pattern(ours),
        **window,
        **{theirs: ours[key] for theirs, key in _CAPS.items()},
    }


_family = functools.partial(llama.family, head_dim=256, tied=True, rows=_rows)
GEMMA = _family(
    "gemma",
    "Gemma",
    ours=_OURS,
    theirs={"attention_bias": False, "use_bidirectional_attention": None},
    kv_heads=16,
    read=_read,
    write=lambda ours: {"hidden_act": "gelu_pytorch_tanh", **rotary.written(ours)},
)
GEMMA2 = _family(
    "gemma2",
    "Gemma2",
    ours={**_OURS, "residual": "sandwich"},
    theirs={"attention_bias": False, "use_bidirectional_attention": None},
    kv_heads=4,
    also=any_of(*_CAPS.values()),
    read=lambda theirs, ours: (
        _windows(theirs, ours, ("window", "full"), (50.0, 30.0)) | rotary.read(theirs)
    ),
    write=lambda ours: {**_write(ours), **rotary.written(ours)},
    views=_scores,
    idle=("cache_implementation", "hidden_act"),
)
# Of files that see images, too, the part that reads texts.
_WRAPPED = dict(
    vocab_size=262_208,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=26,
    num_attention_heads=8,
    max_position_embeddings=131_072,
)
GEMMA3 = _family(
    "gemma3_text",
    "Gemma3",
    ours={**_OURS, "residual": "sandwich", "qk_norm": True},
    theirs={"attention_bias": False, "use_bidirectional_attention": False},
    kv_heads=4,
    also=any_of("logits_softcap"),
    read=_read_3,
    write=lambda ours: {**_write(ours), **rotary.written_by_kind(ours, "rope_local_base_freq")},
    views=_scores,
    text_config=_WRAPPED,
    unread=("*vision_tower.*", "*multi_modal_projector.*"),
    renamed=lambda name: name.replace("language_model.model.", "model.").replace(
        "model.language_model.", "model."
    ),
    idle=("cache_implementation", "hidden_act"),
)
