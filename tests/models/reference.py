"""A slow encoder-decoder in NumPy, float64, that the Linen models are compared with.

It is written for independence, not speed: a batch is first cut into its examples, and every example
runs alone, so that masks, segments and padding do not exist here. The only mask left is the causal
one, and it is a slice. Shapes: T query length, S key length, D d_model, H heads, K head size.
"""

import math
from collections.abc import Callable

import numpy as np

EPSILON = 1e-5

Example = tuple[np.ndarray, np.ndarray]  # source ids (S,), target ids (T,)
# (stack, layer, sublayer, inputs of all examples, branches of all examples) -> factor of the inputs
Shortcut = Callable[[str, int, str, list[np.ndarray], list[np.ndarray]], np.ndarray]


def split(batch: dict) -> list[tuple[int, int]]:
    """(row, segment id) of every example of a batch, in order."""
    segments = np.asarray(batch["targets_segment_ids"])
    return [(row, int(s)) for row in range(len(segments)) for s in np.unique(segments[row]) if s]


def examples(batch: dict) -> list[Example]:
    """The examples of a batch, each as a pair of id arrays without padding."""
    pairs = []
    for row, segment in split(batch):
        source = np.asarray(batch["inputs_segment_ids"])[row] == segment
        target = np.asarray(batch["targets_segment_ids"])[row] == segment
        pairs.append((np.asarray(batch["inputs"])[row, source],
                      np.asarray(batch["targets"])[row, target]))  # fmt: skip
    return pairs


def forward(
    params: dict, batch: dict, config, shortcut: Shortcut | None = None
) -> list[np.ndarray]:
    """Logits (T, V) of every example of the batch, in the order of `split`."""
    params = _float64(params)
    shortcut = shortcut or _trained_shortcut(params, config)
    pairs = examples(batch)
    tables = _tables(params, config)

    encoded = [_embed(tables["source"], params, "source", ids, config) for ids, _ in pairs]
    for layer, w in enumerate(_layers(params["encoder"])):
        branches = {
            "self_attention": lambda x, i, w=w: _attention(w["self_attention"], x, x),
            "feed_forward": lambda x, i, w=w: _feed_forward(w["feed_forward"], x, config),
        }
        for name, branch in branches.items():
            encoded = _sublayer("encoder", layer, name, w, branch, encoded, config, shortcut)
    encoded = [_final_norm(params, "encoder_norm", x, config) for x in encoded]

    shifted = [np.concatenate([[config.bos_id], ids[:-1]]) for _, ids in pairs]
    decoded = [_embed(tables["target"], params, "target", ids, config) for ids in shifted]
    for layer, w in enumerate(_layers(params["decoder"])):
        branches = {
            "self_attention": lambda x, i, w=w: _attention(w["self_attention"], x, x, causal=True),
            "cross_attention": lambda x, i, w=w: _attention(w["cross_attention"], x, encoded[i]),
            "feed_forward": lambda x, i, w=w: _feed_forward(w["feed_forward"], x, config),
        }
        for name, branch in branches.items():
            decoded = _sublayer("decoder", layer, name, w, branch, decoded, config, shortcut)
    decoded = [_final_norm(params, "decoder_norm", x, config) for x in decoded]
    return [x @ tables["logits"] for x in decoded]


def admin_omegas(params: dict, batch: dict, config) -> dict[str, dict[str, np.ndarray]]:
    """omega of every sublayer, (L,) per kind, profiled in one pass (Liu et al. 2020, Admin).

    omega_1 = 1 and omega_{i+1}^2 = Var[omega_i x_{i-1}] + Var[f_i(x_{i-1})], in execution order and
    one chain per stack; the variance is over all elements of all real tokens.
    """
    following = {"encoder": 1.0, "decoder": 1.0}
    omegas: dict[str, dict[str, list[float]]] = {"encoder": {}, "decoder": {}}

    def profile(stack, layer, sublayer, inputs, branches):
        omega = following[stack]
        omegas[stack].setdefault(sublayer, []).append(omega)
        variance = np.var(omega * np.concatenate(inputs)) + np.var(np.concatenate(branches))
        following[stack] = math.sqrt(variance)
        return np.full(inputs[0].shape[-1], omega)

    forward(params, batch, config, profile)
    return {s: {k: np.array(v) for k, v in by_name.items()} for s, by_name in omegas.items()}


def _float64(tree: dict) -> dict:
    return {
        k: _float64(v) if isinstance(v, dict) else np.asarray(v, np.float64)
        for k, v in tree.items()
    }


def _layer(tree: dict, layer: int) -> dict:
    return {k: _layer(v, layer) if isinstance(v, dict) else v[layer] for k, v in tree.items()}


def _layers(stack: dict) -> list[dict]:
    return [_layer(stack, layer) for layer in range(len(stack["feed_forward"]["up"]))]


def _tables(params: dict, config) -> dict[str, np.ndarray]:
    if config.tied_embeddings == "all":
        table = params["embedding"]["table"]
        return {"source": table, "target": table, "logits": table.T}
    source, target = params["source_embedding"]["table"], params["target_embedding"]["table"]
    tied = config.tied_embeddings == "decoder"
    return {"source": source, "target": target,
            "logits": target.T if tied else params["logits"]["kernel"]}  # fmt: skip


def sinusoid(length: int, d_model: int) -> np.ndarray:
    """Vaswani et al. 2017, section 3.5: sin in the even columns, cos in the odd ones."""
    table = np.zeros((length, d_model))
    for position in range(length):
        for column in range(d_model):
            angle = position / 10000 ** (2 * (column // 2) / d_model)
            table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def _embed(table, params, side, ids, config):
    d_model = table.shape[1]
    if config.positions == "learned":
        positions = params[f"{side}_positions"]["table"][: len(ids)]
    else:
        positions = sinusoid(len(ids), d_model)
    return math.sqrt(d_model) * table[ids] + positions


def _normalise(weights: dict, x: np.ndarray, kind: str) -> np.ndarray:
    rows = []
    for row in x:
        if kind == "layer_norm":
            row = row - np.mean(row)
        rows.append(row / math.sqrt(np.mean(row**2) + EPSILON) * weights["scale"])
    return np.stack(rows) + (weights["bias"] if kind == "layer_norm" else 0.0)


def _final_norm(params, name, x, config):
    return _normalise(params[name], x, config.norm) if config.residual == "pre_ln" else x


def _sublayer(stack, layer, name, weights, branch, xs, config, shortcut):
    residual = weights[f"{name}_residual"]
    if config.residual == "pre_ln":
        norm = residual["pre_norm"]
        return [x + branch(_normalise(norm, x, config.norm), i) for i, x in enumerate(xs)]
    norm = residual["post_norm"]
    fs = [branch(x, i) for i, x in enumerate(xs)]
    factor = shortcut(stack, layer, name, xs, fs)
    return [_normalise(norm, factor * x + f, config.norm) for x, f in zip(xs, fs, strict=True)]


def _trained_shortcut(params: dict, config) -> Shortcut:
    def factor(stack, layer, sublayer, inputs, branches):
        if config.residual != "admin":
            return np.ones(inputs[0].shape[-1])
        return params[stack][f"{sublayer}_residual"]["shortcut"]["omega"][layer]

    return factor


def _attention(weights, queries, keys, causal=False):
    """softmax(q k^T / sqrt(K)) v, head by head and query by query."""
    num_heads, head_dim = weights["query"].shape[1:]
    out = np.zeros((len(queries), weights["output"].shape[-1]))
    for head in range(num_heads):
        q = queries @ weights["query"][:, head] + weights["query_bias"][head]
        k = keys @ weights["key"][:, head]
        v = keys @ weights["value"][:, head] + weights["value_bias"][head]
        for t in range(len(queries)):
            end = t + 1 if causal else len(keys)
            scores = k[:end] @ q[t] / math.sqrt(head_dim)
            probabilities = np.exp(scores - scores.max())
            probabilities /= probabilities.sum()
            out[t] += probabilities @ v[:end] @ weights["output"][head]
    return out + weights["output_bias"]


def _feed_forward(weights, x, config):
    up = x @ weights["up"] + weights["up_bias"]
    if config.activation == "relu":
        hidden = np.maximum(up, 0.0)
    elif config.activation == "gelu":  # the exact form, x Phi(x), not the tanh approximation
        hidden = up * 0.5 * (1 + np.vectorize(math.erf)(up / math.sqrt(2)))
    else:
        gate = x @ weights["gate"] + weights["gate_bias"]
        hidden = gate / (1 + np.exp(-gate)) * up
    return hidden @ weights["down"] + weights["down_bias"]
