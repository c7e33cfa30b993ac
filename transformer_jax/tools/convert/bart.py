"""BART (Lewis et al. 2020) and what has its tensors: Marian, mBART, M2M-100, and PEGASUS."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transformer_jax.models.layers.positions import sinusoids
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import opt, rows
from transformer_jax.tools.convert.family import (
    ACTIVATIONS,
    FAIRSEQ,
    SIDES,
    Family,
    Setting,
    Settings,
    Values,
)

_TABLES = {stack: f"model.{stack}.embed_tokens.weight" for stack in SIDES}
_POSITIONS = tuple(f"model.{stack}.embed_positions.weight" for stack in SIDES)


def _rows(norms: str, config: TransformerConfig) -> list[rows.Row]:
    """All rows but those of positions. norms: "pre_norm" or "post_norm"."""
    tables = {"model.shared.weight": "embedding/table"}
    if config.tied_embeddings != "all":
        tables = {_TABLES[stack]: f"{side}_embedding/table" for stack, side in SIDES.items()}
    model_rows = [rows.as_it_is(theirs, ours) for theirs, ours in tables.items()]
    if config.tied_embeddings == "none":
        model_rows += rows.linear("lm_head", "logits/kernel", bias=False)
    if config.logits_bias:
        model_rows.append(rows.first("final_logits_bias", "logits_bias/bias"))
    for stack in SIDES:
        layers = f"model.{stack}.layers.{{}}"
        model_rows += rows.layers(layers, stack, config, rows.fairseq(stack, norms))
        if norms == "pre_norm":
            model_rows += rows.norm(f"model.{stack}.layer_norm", f"{stack}_norm", config)
    return model_rows


def _learned(norms: str, config: TransformerConfig) -> list[rows.Row]:
    """With tables of positions, and a norm behind them."""
    model_rows = _rows(norms, config)
    for stack, theirs in zip(SIDES, _POSITIONS, strict=True):
        ours = f"{SIDES[stack]}_positions"
        model_rows.append(opt.positions(theirs, f"{ours}/table"))
        model_rows += rows.norm(f"model.{stack}.layernorm_embedding", f"{ours}/norm", config)
    return model_rows


def _sinusoidal(norms: str, config: TransformerConfig) -> list[rows.Row]:
    """With Marian's sinusoids, which are in no row."""
    return [
        row if row.ours == ("logits_bias/bias",) else _with_sinusoids_apart(row, config.d_model)
        for row in _rows(norms, config)
    ]


def _sinusoids_apart(length: int, d_model: int) -> np.ndarray:
    """Their table of positions: the sines first, and then the cosines."""
    table = sinusoids(length, d_model)
    return np.concatenate([table[:, ::2], table[:, 1::2]], axis=1)


def _check_sinusoids(theirs: Settings, ours: Values) -> Values:
    """No more settings. Raises ValueError where a file's tables of positions are no sinusoids."""
    for name in _POSITIONS:
        if (table := theirs.tensor(name)) is not None:
            sines = _sinusoids_apart(len(table), ours["d_model"])
            if table.shape != sines.shape or not np.allclose(table.astype("f4"), sines, atol=0.01):
                raise ValueError(f"{name} are no sinusoids, and others have no counterpart here")
    return {}


def _channels(d_model: int) -> np.ndarray:
    """For each channel of the stream here, with a sine and a cosine in turn, which it is there."""
    return np.arange(d_model).reshape(2, -1).T.reshape(-1)


def _with_sinusoids_apart(row: rows.Row, d_model: int) -> rows.Row:
    """The row with the channels of the stream in our order.

    Theirs has the sines first and then the cosines, ours one of each in turn. Norms and sums do not
    see the order of channels, so that all that reads or writes the stream may be permuted.
    """
    ours = _channels(d_model)
    axes = [_STREAM.get(path.rpartition("/")[2]) for path in row.ours]

    def permuted(arrays, order):
        return [
            x if axis is None else np.take(x, order, axis)
            for x, axis in zip(arrays, axes, strict=True)
        ]

    return row._replace(
        read=lambda *x: permuted(row.read(*x), ours),
        write=lambda *x: row.write(*permuted(x, np.argsort(ours))),
    )


# The parameters that have an axis of the residual stream, and whether it is the first or the last.
_STREAM: dict[str, int] = dict.fromkeys("query key value up kernel".split(), 0)
_STREAM |= dict.fromkeys("output output_bias down down_bias scale bias table".split(), -1)


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


def _check_pad(theirs: Settings, ours: Values) -> Values:
    theirs.refuse("pad_token_id", opt.OFFSET - 1)  # by which fairseq's tables are shifted
    return {}


_COPIES = tuple((copy, "model.shared.weight") for copy in ("lm_head.weight", *_TABLES.values()))


def _family(
    name: str,
    kind: str,
    make_rows: Callable[[TransformerConfig], list[rows.Row]],
    *,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    activation: str = "gelu",
    attention_dropout: float = 0.0,
    scaled: bool = False,
    **more: Any,
) -> Family:
    """One of the families.

    kind: its class. theirs: what it is by the keys of old releases. activation, attention_dropout,
    scaled: what config.json means that leaves them out. more: fields of `Family`.
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
        heads={"tokens": (kind, "translation")},
        ours=ours,
        theirs=theirs,
        both=(
            Setting("vocab_size", "vocab_size"),
            Setting("max_position_embeddings", length),
            *FAIRSEQ,
            Setting("attention_dropout", "attention_dropout_rate", attention_dropout),
            Setting("activation_function", "activation", activation, ACTIVATIONS),
            Setting("scale_embedding", "embedding_scale", scaled, {True: None, False: 1.0}),
        ),
        rows=make_rows,
        optional="logits_bias/*",
        prefix="model.",
        **{"copies": _COPIES, **more},
    )


_TIED = {"tie_word_embeddings": True}
_NORMED = {"normalize_embedding": True}
_NORMED |= {"static_position_embeddings": False, "extra_pos_embeddings": 2}
_PRE_NORMS = {"normalize_before": True, "add_final_layer_norm": True}
BART = _family(
    "bart",
    "BartForConditionalGeneration",
    functools.partial(_learned, "post_norm"),
    ours={"residual": "post_ln", "embedding_norm": True},
    theirs=_TIED | {"normalize_before": False, "add_final_layer_norm": False, **_NORMED},
)
# Liu et al. 2020
MBART = _family(
    "mbart",
    "MBartForConditionalGeneration",
    functools.partial(_learned, "pre_norm"),
    ours={"embedding_norm": True},
    theirs=_TIED | _PRE_NORMS | _NORMED,
)
# Fan et al. 2021, and NLLB
M2M_100 = _family(
    "m2m_100",
    "M2M100ForConditionalGeneration",
    _fixed,
    ours={"logits_bias": False},
    theirs=_TIED,
    read=_check_pad,
    activation="relu",
    attention_dropout=0.1,
    scaled=True,
)
# Zhang et al. 2020
PEGASUS = _family(
    "pegasus",
    "PegasusForConditionalGeneration",
    functools.partial(_sinusoidal, "pre_norm"),
    ours={"positions": "sinusoidal"},
    theirs=_TIED | _PRE_NORMS | {"normalize_embedding": False},
    read=_check_sinusoids,
    channels=_channels,
    ignored=_POSITIONS,
    fixed=lambda config, length: dict.fromkeys(
        _POSITIONS, _sinusoids_apart(length, config.d_model)
    ),
)


def _read_marian(theirs: Settings, ours: Values) -> Values:
    theirs.refuse("decoder_vocab_size", ours["vocab_size"])
    shared, tied = (
        theirs.choose(name, {True: True, False: False}, True)
        for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings")
    )
    if shared:
        theirs.refuse("tie_word_embeddings", True)
    settings = _check_sinusoids(theirs, ours)
    return settings | {"tied_embeddings": "all" if shared else "decoder" if tied else "none"}


def _write_marian(ours: Values) -> Values:
    return {
        "decoder_vocab_size": ours["vocab_size"],
        "share_encoder_decoder_embeddings": ours["tied_embeddings"] == "all",
        "tie_word_embeddings": ours["tied_embeddings"] != "none",
    }


# Junczys-Dowmunt et al. 2018, as OPUS-MT's translation models are
MARIAN = _family(
    "marian",
    "MarianMTModel",
    functools.partial(_sinusoidal, "post_norm"),
    ours={"residual": "post_ln", "positions": "sinusoidal"},
    theirs={"normalize_embedding": False, "normalize_before": False},
    read=_read_marian,
    write=_write_marian,
    also=lambda ours: {"tied_embeddings": ("all", "decoder", "none")},
    channels=_channels,
    ignored=_POSITIONS,
    copies=(*_COPIES, ("lm_head.weight", _TABLES["decoder"])),
    idle=("add_*", "*_pos_embeddings", "static_*"),
)
