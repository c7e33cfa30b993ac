"""Marian (Junczys-Dowmunt et al. 2018), as OPUS-MT's translation models are."""

import numpy as np

from transformer_jax.models.layers.positions import sinusoids
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import family, rows

POSITIONS = "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"


def sinusoids_apart(length: int, d_model: int) -> np.ndarray:
    """Their table of positions: the sines first, and then the cosines."""
    own = sinusoids(length, d_model)
    return np.concatenate([own[:, ::2], own[:, 1::2]], axis=1)


def check_sinusoids(theirs: family.Settings, ours: family.Values) -> family.Values:
    """No more settings. Raises ValueError where a file's tables of positions are no sinusoids."""
    for name in POSITIONS:
        if (table := theirs.tensor(name)) is not None:
            own = sinusoids_apart(len(table), ours["d_model"])
            if table.shape != own.shape or not np.allclose(table.astype("f4"), own, atol=0.01):
                raise ValueError(f"{name} are no sinusoids, and others have no counterpart here")
    return {}


def _read(theirs: family.Settings, ours: family.Values) -> family.Values:
    shared, tied = (
        theirs.choose(name, {True: True, False: False}, True)
        for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings")
    )
    if shared:
        theirs.refuse("tie_word_embeddings", True)
    check_sinusoids(theirs, ours)
    return {"tied_embeddings": "all" if shared else "decoder" if tied else "none"}


def _write(ours: family.Values) -> family.Values:
    return {
        "share_encoder_decoder_embeddings": ours["tied_embeddings"] == "all",
        "tie_word_embeddings": ours["tied_embeddings"] != "none",
    }


def _rows(config: TransformerConfig) -> list[rows.Row]:
    shared = {"model.shared.weight": "embedding/table"}
    apart = {
        "model.encoder.embed_tokens.weight": "source_embedding/table",
        "model.decoder.embed_tokens.weight": "target_embedding/table",
    }
    tables = shared if config.tied_embeddings == "all" else apart
    found = [rows.as_it_is(theirs, ours) for theirs, ours in tables.items()]
    if config.tied_embeddings == "none":
        found += rows.linear("lm_head", "logits/kernel", bias=False)
    for stack in ("encoder", "decoder"):
        names = rows.fairseq(stack, "post_norm")
        found += rows.layers(f"model.{stack}.layers.{{}}", stack, config, names)
    bias = rows.first("final_logits_bias", "logits_bias/bias")
    return [bias, *(with_sinusoids_apart(row, config.d_model) for row in found)]


def channels(d_model: int) -> np.ndarray:
    """For each channel of the stream here, with a sine and a cosine in turn, which it is there."""
    return np.arange(d_model).reshape(2, -1).T.reshape(-1)


def with_sinusoids_apart(row: rows.Row, d_model: int) -> rows.Row:
    """The row with the channels of the stream in our order.

    Theirs has the sines first and then the cosines, ours one of each in turn. Norms and sums do not
    see the order of channels, so that all that reads or writes the stream may be permuted.
    """
    ours = channels(d_model)
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


MARIAN = family.Family(
    name="marian",
    heads={"tokens": ("MarianMTModel", "translation")},
    ours=dict(
        architecture="encoder_decoder",
        residual="post_ln",
        norm_epsilon=1e-5,
        positions="sinusoidal",
        logits_bias=True,
    ),
    theirs=dict(normalize_embedding=False, normalize_before=False),
    both=(
        family.Setting("vocab_size decoder_vocab_size", "vocab_size"),
        family.Setting("max_position_embeddings", "length"),
        *family.FAIRSEQ,
        family.Setting("activation_function", "activation", "gelu", family.ACTIVATIONS),
        family.Setting("scale_embedding", "embedding_scale", False, {True: None, False: 1.0}),
    ),
    rows=_rows,
    channels=channels,
    read=_read,
    write=_write,
    also=lambda ours: {"tied_embeddings": ("all", "decoder", "none")},
    left=POSITIONS,
    optional="logits_bias/*",
    copies=(
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
        ("lm_head.weight", "model.shared.weight"),
        ("lm_head.weight", "model.decoder.embed_tokens.weight"),
    ),
    prefix="model.",
    idle=("add_*", "*_pos_embeddings", "static_*"),
)
