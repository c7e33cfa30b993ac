"""BART (Lewis et al. 2020) and what has its tensors: mBART, M2M-100 with NLLB, and PEGASUS."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import marian, opt, rows
from transformer_jax.tools.convert.family import ACTIVATIONS, FAIRSEQ, SIDES, Family, Setting


def _rows(norms: str, config: TransformerConfig) -> list[rows.Row]:
    """All rows but those of positions. norms: "pre_norm" or "post_norm"."""
    found = [rows.as_it_is("model.shared.weight", "embedding/table")]
    if config.logits_bias:
        found.append(rows.first("final_logits_bias", "logits_bias/bias"))
    for stack in SIDES:
        layers = f"model.{stack}.layers.{{}}"
        found += rows.layers(layers, stack, config, rows.fairseq(stack, norms))
        if norms == "pre_norm":
            found += rows.norm(f"model.{stack}.layer_norm", f"{stack}_norm", config)
    return found


def _learned(norms: str, config: TransformerConfig) -> list[rows.Row]:
    """With tables of positions, and a norm behind them."""
    found = _rows(norms, config)
    for stack, side in SIDES.items():
        found.append(
            opt.positions(f"model.{stack}.embed_positions.weight", f"{side}_positions/table")
        )
        norm = f"model.{stack}.layernorm_embedding"
        found += rows.norm(norm, f"{side}_positions/norm", config)
    return found


def _sines_first(config: TransformerConfig) -> list[rows.Row]:
    """With Marian's sinusoids."""
    return [
        row
        if row.ours == ("logits_bias/bias",)
        else marian.with_sinusoids_apart(row, config.d_model)
        for row in _rows("pre_norm", config)
    ]


def _tables(config: TransformerConfig, length: int) -> dict[str, np.ndarray]:
    return dict.fromkeys(marian.POSITIONS, marian.sinusoids_apart(length, config.d_model))


def _fixed(config: TransformerConfig) -> list[rows.Row]:
    """With tables that no file holds: the sinusoids of fairseq, which ours are not.

    Token t has the sines and then the cosines of (t + 2) 10000^(-i / (D / 2 - 1)).
    """
    rates = np.exp(np.arange(config.d_model // 2) * -math.log(1e4) / (config.d_model / 2 - 1))
    angles = (np.arange(config.max_length)[:, None] + opt.OFFSET) * rates
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)

    def write(x):
        if not np.allclose(x, table, atol=1e-6):
            raise ValueError(
                "the positions were trained, and an m2m_100 has sinusoids: freeze them by "
                "optimizer.groups, and train again"
            )
        return ()

    return _rows("pre_norm", config) + [
        rows.Row((), (f"{side}_positions/table",), lambda: (table,), write)
        for side in SIDES.values()
    ]


def _family(
    name: str,
    kind: str,
    make_rows: Callable[[TransformerConfig], list[rows.Row]],
    *,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    activation: str = "gelu",
    scaled: bool = False,
    **more: Any,
) -> Family:
    """One of the families.

    theirs: what it is by the keys of old releases. activation, scaled: what config.json means that
    leaves them out. more: further fields of `Family`.
    """
    ours = {
        **dict(
            architecture="encoder_decoder",
            residual="pre_ln",
            norm_epsilon=1e-5,
            positions="learned",
            logits_bias=True,
        ),
        **ours,
    }
    length = "max_length" if ours["positions"] == "learned" else "length"
    return Family(
        name=name,
        heads={"tokens": (f"{kind}ForConditionalGeneration", "translation")},
        ours=ours,
        theirs={"tie_word_embeddings": True, **theirs},
        both=(
            Setting("vocab_size", "vocab_size"),
            Setting("max_position_embeddings", length),
            *FAIRSEQ,
            Setting("activation_function", "activation", activation, ACTIVATIONS),
            Setting("scale_embedding", "embedding_scale", scaled, {True: None, False: 1.0}),
        ),
        rows=make_rows,
        optional="logits_bias/*",
        copies=tuple(
            (copy, "model.shared.weight")
            for copy in ("lm_head.weight", *(f"model.{s}.embed_tokens.weight" for s in SIDES))
        ),
        prefix="model.",
        **more,
    )


_NORMED = {"normalize_embedding": True}
_NORMED |= {"static_position_embeddings": False, "extra_pos_embeddings": 2}
_PRE_NORMS = {"normalize_before": True, "add_final_layer_norm": True}
BART = _family(
    "bart",
    "Bart",
    functools.partial(_learned, "post_norm"),
    ours={"residual": "post_ln", "embedding_norm": True},
    theirs={"normalize_before": False, "add_final_layer_norm": False, **_NORMED},
)
# Liu et al. 2020
MBART = _family(
    "mbart",
    "MBart",
    functools.partial(_learned, "pre_norm"),
    ours={"embedding_norm": True},
    theirs=_PRE_NORMS | _NORMED,
)
# Fan et al. 2021, and NLLB
M2M_100 = _family(
    "m2m_100",
    "M2M100",
    _fixed,
    ours={"logits_bias": False},
    theirs={},
    activation="relu",
    scaled=True,
)
# Zhang et al. 2020
PEGASUS = _family(
    "pegasus",
    "Pegasus",
    _sines_first,
    ours={"positions": "sinusoidal"},
    theirs=_PRE_NORMS | {"normalize_embedding": False},
    read=marian.check_sinusoids,
    channels=marian.channels,
    left=marian.POSITIONS,
    fixed=_tables,
)
