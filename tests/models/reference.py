"""Slow Transformers in NumPy, float64, that the Linen models are compared with.

They are written for independence, not speed: a batch is first cut into its examples, and every
example runs alone, so that masks, segments and padding do not exist here. The only mask left is
the causal one, and it is a slice. Shapes: T query length, S key length, D d_model, H heads, K head
size.
"""

import math
from collections.abc import Callable

import numpy as np

EPSILON = 1e-5

# (stack, layer, sublayer, inputs of all examples, branches of all examples) -> factor of the inputs
Shortcut = Callable[[str, int, str, list[np.ndarray], list[np.ndarray]], np.ndarray]


def split(batch: dict, side: str) -> list[tuple[int, int]]:
    """(row, segment id) of every example of a batch, in order; side: inputs or targets."""
    segments = np.asarray(batch[f"{side}_segment_ids"])
    return [(row, int(s)) for row in range(len(segments)) for s in np.unique(segments[row]) if s]


def by_example(batch: dict, side: str, values) -> list[np.ndarray]:
    """What stands at the tokens of every example of a batch, in the order of `split`."""
    segments = np.asarray(batch[f"{side}_segment_ids"])
    return [np.asarray(values)[row, segments[row] == s] for row, s in split(batch, side)]


def forward(
    params: dict, batch: dict, config, shortcut: Shortcut | None = None
) -> list[np.ndarray]:
    """Logits (T, V), or (T, C) of labels, of every example of the batch, in the order of `split`.

    `shortcut` stands in for the omega of `params`.
    """
    params = _float64(params)
    shortcut = shortcut or _trained_shortcut(params, config)
    if config.architecture == "encoder_only":
        return [_head(params, x, config) for x in _encode(params, "", batch, config, shortcut)]
    encoded, side = None, ""
    if config.architecture == "encoder_decoder":
        encoded, side = _encode(params, "source_", batch, config, shortcut), "target_"
    examples = by_example(batch, "targets", batch["targets"])
    shifted = [np.concatenate([[config.bos_id], ids[:-1]]) for ids in examples]
    x = [_embed(params, side, ids, config) for ids in shifted]
    x = _stack("decoder", params, x, config, shortcut, causal=True, encoded=encoded)
    return [_tokens(params, side, h, config) for h in x]


def embed(params: dict, batch: dict, config) -> list[np.ndarray]:
    """The vector (D,) of every text, by an encoder-only model."""
    params = _float64(params)
    encoded = _encode(params, "", batch, config, _trained_shortcut(params, config))
    return [_pool(x, config) for x in encoded]


def admin_omegas(params: dict, batch: dict, config) -> dict[str, dict[str, np.ndarray]]:
    """omega of every sublayer, (L,) per kind, profiled in one pass (Liu et al. 2020, Admin).

    omega_1 = 1 and omega_{i+1}^2 = Var[omega_i x_{i-1}] + Var[f_i(x_{i-1})], in execution order and
    one chain per stack; the variance is over all elements of all real tokens.
    """
    following: dict[str, float] = {}
    omegas: dict[str, dict[str, list[float]]] = {}

    def profile(stack, layer, sublayer, inputs, branches):
        omega = following.get(stack, 1.0)
        omegas.setdefault(stack, {}).setdefault(sublayer, []).append(omega)
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


def _encode(params, side, batch, config, shortcut):
    x = [_embed(params, side, ids, config) for ids in by_example(batch, "inputs", batch["inputs"])]
    return _stack("encoder", params, x, config, shortcut)


def _stack(stack, params, xs, config, shortcut, causal=False, encoded=None):
    rotary = config.positions == "rotary"
    for layer, w in enumerate(_layers(params[stack])):
        branches = {
            "self_attention": lambda x, i, w=w: _attention(
                w["self_attention"], x, x, causal=causal, rotary=rotary
            )
        }
        if encoded is not None:
            branches["cross_attention"] = lambda x, i, w=w: _attention(
                w["cross_attention"], x, encoded[i]
            )
        branches["feed_forward"] = lambda x, i, w=w: _feed_forward(w["feed_forward"], x, config)
        for name, branch in branches.items():
            xs = _sublayer(stack, layer, name, w, branch, xs, config, shortcut)
    if config.residual == "pre_ln":
        xs = [_normalise(params[f"{stack}_norm"], x, config.norm) for x in xs]
    return xs


def _head(params, x, config):
    if config.head == "tokens":
        weights = params["token_head"]
        x = _gelu(x @ weights["transform"] + weights["transform_bias"])
        x = _normalise(weights["norm"], x, config.norm)
        return _tokens(params, "", x, config) + weights["logits_bias"]
    if config.head == "classes":
        x = np.tile(_pool(x, config), (len(x), 1))
    return x @ params["label_head"]["labels"] + params["label_head"]["labels_bias"]


def _pool(x, config):
    return x[0] if config.pooling == "first" else np.mean(x, axis=0)


def _table(params, side):
    return params["embedding" if "embedding" in params else f"{side}embedding"]["table"]


def _tokens(params, side, x, config):
    if config.tied_embeddings == "none":
        return x @ params["logits"]["kernel"]
    return x @ _table(params, side).T


def sinusoid(length: int, d_model: int) -> np.ndarray:
    """Vaswani et al. 2017, section 3.5: sin in the even columns, cos in the odd ones."""
    table = np.zeros((length, d_model))
    for position in range(length):
        for column in range(d_model):
            angle = position / 10000 ** (2 * (column // 2) / d_model)
            table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def _embed(params, side, ids, config):
    table = _table(params, side)
    d_model = table.shape[1]
    x = math.sqrt(d_model) * table[ids]
    if config.positions == "learned":
        x = x + params[f"{side}positions"]["table"][: len(ids)]
    elif config.positions == "sinusoidal":
        x = x + sinusoid(len(ids), d_model)
    if config.embedding_norm:
        x = _normalise(params[f"{side}positions"]["norm"], x, config.norm)
    return x


def _normalise(weights: dict, x: np.ndarray, kind: str) -> np.ndarray:
    rows = []
    for row in x:
        if kind == "layer_norm":
            row = row - np.mean(row)
        rows.append(row / math.sqrt(np.mean(row**2) + EPSILON) * weights["scale"])
    return np.stack(rows) + (weights["bias"] if kind == "layer_norm" else 0.0)


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


def turn(x: np.ndarray) -> np.ndarray:
    """Rotary positions (Su et al. 2021) of one head, x (T, K), as products of complex numbers."""
    half = x.shape[1] // 2
    turned = np.zeros_like(x)
    for position, row in enumerate(x):
        for pair in range(half):
            angle = position * 10000 ** (-2 * pair / x.shape[1])
            z = complex(row[pair], row[pair + half]) * complex(math.cos(angle), math.sin(angle))
            turned[position, pair], turned[position, pair + half] = z.real, z.imag
    return turned


def _attention(weights, queries, keys, causal=False, rotary=False):
    """softmax(q k^T / sqrt(K)) v, head by head and query by query."""
    num_heads, head_dim = weights["query"].shape[1:]
    out = np.zeros((len(queries), weights["output"].shape[-1]))
    for head in range(num_heads):
        q = queries @ weights["query"][:, head] + weights["query_bias"][head]
        k = keys @ weights["key"][:, head]
        if rotary:
            q, k = turn(q), turn(k)
        v = keys @ weights["value"][:, head] + weights["value_bias"][head]
        for t in range(len(queries)):
            end = t + 1 if causal else len(keys)
            scores = k[:end] @ q[t] / math.sqrt(head_dim)
            probabilities = np.exp(scores - scores.max())
            probabilities /= probabilities.sum()
            out[t] += probabilities @ v[:end] @ weights["output"][head]
    return out + weights["output_bias"]


def _gelu(x):
    """The exact form, x Phi(x), not the tanh approximation."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _feed_forward(weights, x, config):
    up = x @ weights["up"] + weights["up_bias"]
    if config.activation == "relu":
        hidden = np.maximum(up, 0.0)
    elif config.activation == "gelu":
        hidden = _gelu(up)
    else:
        gate = x @ weights["gate"] + weights["gate_bias"]
        hidden = gate / (1 + np.exp(-gate)) * up
    return hidden @ weights["down"] + weights["down_bias"]
