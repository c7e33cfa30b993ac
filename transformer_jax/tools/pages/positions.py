"""What the page shows of how a model tells positions: pictures of tables, and similarities."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.data.read import images
from transformer_jax.models.layers import positions
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.models.transformer.config import TransformerConfig, pattern, side_of, stacks
from transformer_jax.tools.pages.page import numbers


def figures(config: Any, params: Any, length: int) -> list[dict[str, Any]]:
    """Figures for plots.js: pictures ("values", rows by columns) and curves ("lines", by name).

    length: positions that are shown. Models that tell no positions, as recurrent ones, have none.
    """
    if not isinstance(config, TransformerConfig):
        return []
    row = POSITIONS[config.positions]
    plots = _of_places(config, params) if row.added and config.grid != (0, 0) else []
    if row.vectors:
        vectors = row.vectors(max(length, 64), config.d_model)
        plots += _of_vectors("Constant vectors (sinusoids)", vectors)
    if row.learned:
        for path, part in params.items():
            if path.endswith("positions") and "table" in part:
                plots += _of_vectors(f"Learned vectors, {path}", part["table"])
    if row.rotation:
        plots += _of_rotation(config, max(length, 64))
    if row.distances:
        plots += _of_distances(config, params, max(length, 64))
    elif row.bias:
        plots += _of_biases(config, params)
    return plots


def similarity(vectors: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "T T"]:
    """The cosine of the angle between each two vectors."""
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
    return units @ units.T


def by_distance(square: Float[np.ndarray, "T T"]) -> Float[np.ndarray, "T"]:
    """The mean of each diagonal from the main one upwards."""
    return np.array([np.mean(np.diagonal(square, distance)) for distance in range(len(square))])


def turned(
    channels: int, length: int, base: float, scaling: tuple[str, ...] = ()
) -> Float[np.ndarray, "T half_R"]:
    """The product of a pair of channels of length 1 with itself, turned by each distance."""
    angles = positions.rotation(np.arange(length)[None], channels, base, scaling)  # pyright: ignore
    return np.asarray(angles.cos[0] * angles.cos[0, :1])  # a gain is of both


def _of_vectors(title: str, vectors: Any) -> list[dict[str, Any]]:
    vectors = np.asarray(vectors, np.float64)
    corner = vectors[:256, :256]  # more than a screen shows
    cosines = similarity(vectors[:256])
    return [
        _picture(title, corner, "position", "channel"),
        _picture(f"{title}: cosine of two positions", cosines, "position", "position"),
        _curves(f"{title}: mean cosine by distance", {"cosine": by_distance(cosines)}, "distance"),
    ]


def _of_places(config: TransformerConfig, params: Any) -> list[dict[str, Any]]:
    """How alike each two patches of the largest image are (Dosovitskiy et al. 2021, figure 7)."""
    grid = images.grid(*config.grid)[None]
    at = config.prefix_tokens + np.arange(grid.shape[1])[None]
    # There the vectors are told, and not added.
    config = dataclasses.replace(config, positions_in="attention")
    module: Any = positions.Positions(config, normed=False)
    variables = {"params": params.get(f"{side_of(config, 'encoder')}positions", {})}
    x, length = np.zeros((*at.shape, config.d_model)), int(at[0, -1]) + 1
    _, vectors = module.apply(variables, x, at, grid, length=length, deterministic=True)
    cosines = similarity(np.asarray(vectors[0], np.float64))
    title = "Positions of patches: the cosine of each, at its place, with all"
    return [_picture(title, cosines, "row", "column") | {"tiles": config.grid}]


def _of_rotation(config: TransformerConfig, length: int) -> list[dict[str, Any]]:
    titles = {
        "rotary_base": "Rotary: query and key that agree, by distance",
        "window_rotary_base": "Rotary, in layers with a window: the same",
    }
    used, plots = {base for stack in stacks(config) for base in pattern(config, stack).bases}, []
    for name, title in titles.items():
        if name in used:
            scaling = config.rotary_scaling if name == "rotary_base" else ()
            cosines = turned(config.rotary_channels, length, getattr(config, name), scaling)
            lines = {"product": cosines.mean(axis=1)}
            plots += [
                _picture(f"{title} and pair of channels", cosines, "distance", "pair of channels"),
                _curves(f"{title}, mean of all pairs", lines, "distance"),
            ]
    return plots


def _of_biases(config: TransformerConfig, params: Any) -> list[dict[str, Any]]:
    """What the scores of each head get, over a key's position less its query's."""
    bias_class, plots, back = POSITIONS[config.positions].bias, [], 128
    assert bias_class is not None
    for stack in stacks(config):
        causal, of_all = stack == "decoder", params.get(f"{stack}_bias", {})
        layers = params[stack].get("self_attention_bias", {}).get("table", ())
        tables = {f"{stack} layer {n}": {"table": table} for n, table in enumerate(layers, start=1)}
        keys = back + 1 if causal else 2 * back + 1
        for name, table in (tables or {f"{stack}_bias": of_all}).items():
            bias = np.asarray(bias_class(config, causal).apply({"params": table}, 1, keys, back))
            lines = {f"head {head}": line[0] for head, line in enumerate(bias[0], start=1)}
            plots.append(_curves(f"Biases, {name}", lines, "key's place less the query's", -back))
    return plots


def _of_distances(config: TransformerConfig, params: Any, length: int) -> list[dict[str, Any]]:
    """v (W R) / sqrt(K) of Transformer-XL: what every query gives to a distance."""
    back = np.arange(length)
    if config.max_distance is not None:
        back = np.minimum(back, config.max_distance)
    half = positions.sinusoids(int(back.max()) + 1, config.d_model).astype(np.float64)[back]
    vectors = np.concatenate([half[:, ::2], half[:, 1::2]], axis=1)
    title = "Distances (Transformer-XL)"
    plots = [_picture(f"{title}: vectors", vectors[:, :256], "distance", "channel")]
    scale = config.head_dim**-0.5 if config.attention_score == "scaled_dot_product" else 1.0
    for stack in stacks(config):
        of_heads = np.asarray(params[f"{stack}_bias"]["v"], np.float64)
        kernels = np.asarray(params[stack]["self_attention"]["distance"], np.float64)
        for layer, kernel in enumerate(kernels, start=1):
            scores = scale * np.einsum("HK,DHK,ND->HN", of_heads, kernel, vectors)
            lines = {f"head {head}": line for head, line in enumerate(scores, start=1)}
            name = f"{title}: what {stack} layer {layer} adds, whatever the tokens"
            plots.append(_curves(name, lines, "tokens back"))
    return plots


def _picture(title: str, values: Any, rows: str, columns: str) -> dict[str, Any]:
    return {"title": title, "values": numbers(values), "rows": rows, "columns": columns}


def _curves(title: str, lines: dict[str, Any], x: str, first: int = 0) -> dict[str, Any]:
    """first: the x of the first value."""
    return {
        "title": title,
        "lines": {name: numbers(line) for name, line in lines.items()},
        "x": x,
        "first": first,
    }
