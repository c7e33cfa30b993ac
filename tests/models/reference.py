"""Slow Transformers in NumPy, float64, that the Linen models are compared with.

They are written for independence, not speed: a batch is first cut into its examples, and every
example runs alone, so that masks, segments and padding do not exist here. The only mask left is
the causal one, and it is a slice. Shapes: T query length, S key length, D d_model, H heads, K head
size.
"""

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

# (stack, layer, sublayer, inputs and branches of all tokens) -> Admin's factor on the inputs
Shortcut = Callable[[str, int, str, np.ndarray, np.ndarray], np.ndarray]


def split(batch: dict, side: str) -> list[tuple[int, int]]:
    """(row, segment id) of every example of a batch, in order; side: inputs or targets."""
    segments = np.asarray(batch[f"{side}_segment_ids"])
    return [(row, int(s)) for row in range(len(segments)) for s in np.unique(segments[row]) if s]


def by_example(batch: dict, side: str, values) -> list[np.ndarray]:
    """What stands at the tokens of every example of a batch, in the order of `split`."""
    segments = np.asarray(batch[f"{side}_segment_ids"])
    return [np.asarray(values)[row, segments[row] == s] for row, s in split(batch, side)]


def forward(
    params: dict,
    batch: dict,
    config,
    shortcut: Shortcut | None = None,
    first_seen: Callable[[int], int] | None = None,
) -> list[np.ndarray]:
    """Logits (T, V), or (T, C) of labels, of every example of the batch, in the order of `split`.

    `shortcut` stands in for the omega of `params`. `first_seen`: the first token of its example
    that a decoder's token sees in self-attention, by its place.
    """
    params = _float64(params)
    if config.architecture == "encoder_only":
        return [_head(params, x, config) for x in _encode(params, "", batch, config, shortcut)]
    encoded, side = None, ""
    if config.architecture == "encoder_decoder":
        encoded, side = _encode(params, "source_", batch, config, shortcut), "target_"
    examples = by_example(batch, "targets", batch["targets"])
    shifted = [np.concatenate([[config.bos_id], ids[:-1]]) for ids in examples]
    x = [_embed(params, "decoder", side, ids, config) for ids in shifted]
    x = _stack("decoder", params, x, config, shortcut, True, encoded, first_seen)
    return [_capped(_tokens(params, side, h, config), config) for h in x]


def tell(
    params: dict, batch: dict, config, shortcut: Shortcut | None = None
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Logits (N, C+1) and boxes (N, 4) of every image of the batch, by each layer of the decoder.

    A layer's own come from a decoder that ends with it.
    """
    params = _float64(params)
    encoded = _encode(params, "source_", batch, config, shortcut)
    table, lengths = params["queries"]["table"], [len(x) for x in encoded]
    x, offsets = [table] * len(encoded), None
    if config.positions_in == "attention":
        x = [np.zeros_like(table)] * len(encoded)
        places = [_places(params, "source_", length, config) for length in lengths]
        offsets = [table] * len(encoded), places
    layers = []
    for number in range(1, config.num_decoder_layers + 1):
        first = jax.tree.map(operator.itemgetter(slice(number)), params["decoder"])
        shallow = params | {"decoder": first}
        hidden = _stack("decoder", shallow, x, config, shortcut, False, encoded, offsets=offsets)
        layers.append([_box_head(params["box_head"], h) for h in hidden])
    return layers


def _box_head(weights: dict, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logits = x @ weights["labels"] + weights["labels_bias"]
    for name in ("first", "second"):
        x = np.maximum(x @ weights[name] + weights[f"{name}_bias"], 0.0)
    return logits, sigmoid(x @ weights["boxes"] + weights["boxes_bias"])


def embed(params: dict, batch: dict, config) -> list[np.ndarray]:
    """The vector (D,) of every text, by an encoder-only model."""
    params = _float64(params)
    return [_pool(x, config) for x in _encode(params, "", batch, config)]


def admin_omegas(params: dict, batch: dict, config) -> dict[str, dict[str, np.ndarray]]:
    """omega of every sublayer, (L,) per kind, profiled in one pass (Liu et al. 2020, Admin).

    omega_1 = 1 and omega_{i+1}^2 = Var[omega_i x_{i-1}] + Var[f_i(x_{i-1})], in execution order and
    one chain per stack; the variance is over all elements of all real tokens. Where it is 0, omega
    stays.
    """
    following: dict[str, float] = {}  # anew with each pass through a stack
    omegas: dict[str, dict[str, list[float]]] = {}

    def profile(stack, layer, sublayer, inputs, branches):
        omega = 1.0 if (layer, sublayer) == (0, "self_attention") else following[stack]
        omegas.setdefault(stack, {}).setdefault(sublayer, []).append(omega)
        following[stack] = math.sqrt(np.var(omega * inputs) + np.var(branches)) or omega
        return np.full(inputs.shape[-1], omega)

    if config.architecture == "encoder_set":
        tell(params, batch, config, profile)
        # Each layer's decoder begins anew, so that the last one's omegas come last.
        last = config.num_decoder_layers
        omegas["decoder"] = {k: v[-last:] for k, v in omegas["decoder"].items()}
    else:
        forward(params, batch, config, profile)
    return {s: {k: np.array(v) for k, v in by_name.items()} for s, by_name in omegas.items()}


def _float64(tree: dict) -> dict:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def _layers(stack: dict) -> list[dict]:
    numbers = range(len(stack["feed_forward"]["up"]))
    return [jax.tree.map(operator.itemgetter(number), stack) for number in numbers]


def _encode(params, side, batch, config, shortcut=None):
    texts = by_example(batch, "inputs", batch["inputs"])
    x = [_embed(params, "encoder", side, ids, config) for ids in texts]
    offsets = None
    if config.positions_in == "attention":
        offsets = ([_places(params, side, len(ids), config) for ids in texts],) * 2
    return _stack("encoder", params, x, config, shortcut, offsets=offsets)


def _residual(config, stack: str) -> str:
    return config.encoder_residual if stack == "encoder" else config.decoder_residual


def _stack(
    stack, params, xs, config, shortcut, causal=False, encoded=None, first_seen=None, offsets=None
):
    """What leaves a stack, example by example; between sublayers they stand below each other.

    offsets: what is added to queries, and to keys of what is encoded, in attention.
    """
    own_offsets, their_offsets = offsets or ([0.0] * len(xs),) * 2
    ends = np.cumsum([len(x) for x in xs])[:-1]
    residual = _residual(config, stack)
    inner = residual == "sub_ln"
    x = bottom = np.concatenate(xs)
    added = []
    for layer, w in enumerate(_layers(params[stack])):
        below = x

        def attend(x, w=w, layer=layer):
            of_layer = w.get("self_attention_bias", {})
            weights = w["self_attention"] | params.get(f"{stack}_bias", {}) | of_layer
            kind = config.layer_pattern[layer % len(config.layer_pattern)]
            return [
                _attention(weights, h, h, (shift, shift), config, causal, kind, inner, first_seen)
                for h, shift in zip(x, own_offsets, strict=True)
            ]

        def look(x, w=w):
            offsets = zip(own_offsets, their_offsets, strict=True)
            rows = zip(x, encoded or [], offsets, strict=True)
            return [_attention(w["cross_attention"], h, e, o, config) for h, e, o in rows]

        def feed_forward(x, w=w):
            return [_feed_forward(w["feed_forward"], h, config, inner) for h in x]

        branches = {"self_attention": attend, "cross_attention": look, "feed_forward": feed_forward}
        if encoded is None:
            del branches["cross_attention"]
        for kind, branch in branches.items():

            def f(x, branch=branch):
                added.append(np.concatenate(branch(np.split(x, ends))))
                return added[-1]

            tree = w.get(f"{kind}_residual", {})
            at = Sublayer(stack, layer, kind, len(branches), config, tree, below, bottom, shortcut)
            x = SUBLAYERS[residual](at, x, f)
    of_set = stack == "decoder" and config.architecture == "encoder_set"
    if residual in FINAL_NORM or (of_set and residual != "residual_dual"):
        x = normalise(params.get(f"{stack}_norm", {}), x, config)
    elif residual == "residual_dual":
        x = x + normalise(params[f"{stack}_norm"], bottom + sum(added), config)
    return np.split(x, ends)


# The residual schemes, each as its paper writes it


@dataclasses.dataclass
class Sublayer:
    """One sublayer: where it stands, its parameters, the inputs of its layer and its stack."""

    stack: str
    layer: int
    kind: str
    kinds: int
    config: Any
    weights: dict
    below: np.ndarray
    bottom: np.ndarray
    shortcut: Shortcut | None

    @property
    def layers(self) -> int:
        return getattr(self.config, f"num_{self.stack}_layers")

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return normalise(self.weights.get(name, {}), x, self.config)


def post_ln(at: Sublayer, x, f):
    return at.norm("post_norm", x + f(x))


def pre_ln(at: Sublayer, x, f):
    return x + f(at.norm("pre_norm", x))


def admin(at: Sublayer, x, f):
    branch = f(x)
    if at.shortcut is None:
        omega = at.weights["shortcut"]["omega"]
    else:
        omega = at.shortcut(at.stack, at.layer, at.kind, x, branch)
    return at.norm("post_norm", omega * x + branch)


def deepnorm(at: Sublayer, x, f):
    N, M = at.config.num_encoder_layers, at.config.num_decoder_layers
    if at.config.architecture == "encoder_only":
        alpha = (2 * N) ** 0.25
    elif at.config.architecture == "decoder_only":
        alpha = (2 * M) ** 0.25
    else:
        alpha = 0.81 * (N**4 * M) ** (1 / 16) if at.stack == "encoder" else (3 * M) ** 0.25
    return at.norm("post_norm", alpha * x + f(x))


def no_norm(at: Sublayer, x, f):
    return x + f(x)


def rezero(at: Sublayer, x, f):
    return x + at.weights["branch_scale"]["scale"] * f(x)


def sandwich(at: Sublayer, x, f):
    return x + at.norm("branch_norm", f(at.norm("pre_norm", x)))


def parallel(at: Sublayer, x, f):
    return x + f(at.norm("pre_norm", at.below))


def branch_ln(at: Sublayer, x, f):
    return x + at.norm("branch_norm", f(x))


def pre_ln_first_bare(at: Sublayer, x, f):
    first = at.layer == 0 and at.kind == "self_attention"
    return x + f(x if first else at.norm("pre_norm", x))


def layer_scale(at: Sublayer, x, f):
    return x + at.weights["branch_scale"]["scale"] * f(at.norm("pre_norm", x))


def bottom_to_top(at: Sublayer, x, f):
    last = at.kind == "feed_forward"
    return at.norm("post_norm", (at.below if last else 0.0) + x + f(x))


def keel(at: Sublayer, x, f):
    branch = f(at.norm("pre_norm", x))
    if at.layer == 0:
        first = at.kind == "self_attention"
        return x + branch if first else at.norm("post_norm", x + branch)
    return at.norm("post_norm", at.layers * at.kinds * x + branch)


def depth_scaled(at: Sublayer, x, f):
    return x + (2 / at.layers) ** at.config.depth_exponent * f(at.norm("pre_norm", x))


def ln_scaling(at: Sublayer, x, f):
    return x + f(at.norm("pre_norm", x) / math.sqrt(at.layer + 1))


def mix_ln(at: Sublayer, x, f):
    return post_ln(at, x, f) if at.layer < at.layers // 4 else pre_ln(at, x, f)


def hybrid_norm(at: Sublayer, x, f):
    return no_norm(at, x, f) if at.kind == "feed_forward" else post_ln(at, x, f)


def x0(at: Sublayer, x, f):
    if at.kind == "self_attention":
        a, b = (at.weights[f"{name}_scale"]["scale"] for name in ("stream", "input"))
        x = a * x + b * at.bottom
    return pre_ln(at, x, f)


# What differs only in the draws of parameters is one function here.
SUBLAYERS = {
    "post_ln": post_ln,
    "pre_ln": pre_ln,
    "admin": admin,
    "admin_constant": admin,
    "deepnorm": deepnorm,
    "rezero": rezero,
    "t_fixup": no_norm,
    "gpt2": pre_ln,
    "parallel": parallel,
    "branch_ln": branch_ln,
    "pre_ln_first_bare": pre_ln_first_bare,
    "sandwich": sandwich,
    "peri_ln": sandwich,
    "sub_ln": pre_ln,
    "layer_scale": layer_scale,
    "b2t": bottom_to_top,
    "residual_dual": post_ln,
    "keel": keel,
    "ds_init": post_ln,
    "depth_scaled": depth_scaled,
    "ln_scaling": ln_scaling,
    "mix_ln": mix_ln,
    "hybrid_norm": hybrid_norm,
    "x0": x0,
}
FINAL_NORM = """parallel branch_ln pre_ln_first_bare pre_ln gpt2 sandwich peri_ln sub_ln layer_scale
depth_scaled ln_scaling mix_ln hybrid_norm x0""".split()


# The parts


def _head(params, x, config):
    if config.head == "masked_tokens":
        weights = params["token_head"]
        x = _gelu(x @ weights["transform"] + weights["transform_bias"])
        x = normalise(weights["norm"], x, config)
        return _capped(_tokens(params, "", x, config) + weights["logits_bias"], config)
    if config.head == "classes":
        x = np.tile(_pool(x, config), (len(x), 1))
    layers = {"pooler": np.tanh, "relu_pooler": lambda y: np.maximum(y, 0), "gelu_pooler": _gelu}
    if config.head == "classes" and config.pooling in layers:
        weights = params["label_head"]
        x = layers[config.pooling](x @ weights["transform"] + weights["transform_bias"])
    return x @ params["label_head"]["labels"] + params["label_head"]["labels_bias"]


def _pool(x, config):
    return np.mean(x, axis=0) if config.pooling == "mean" else x[0]


def _table(params, side):
    return params["embedding" if "embedding" in params else f"{side}embedding"]["table"]


def _tokens(params, side, x, config):
    bias = params.get("logits_bias", {}).get("bias", 0.0)
    if config.tied_embeddings in ("none", "inputs"):
        return x @ params["logits"]["kernel"] + bias
    return x @ _table(params, side).T + bias


def _capped(logits, config):
    cap = config.logits_softcap
    return cap * np.tanh(logits / cap) if cap else logits


def sinusoid(length: int, d_model: int) -> np.ndarray:
    """Vaswani et al. 2017, section 3.5: sin in the even columns, cos in the odd ones."""
    table = np.zeros((length, d_model))
    for position in range(length):
        for column in range(d_model):
            angle = position / 10000 ** (2 * (column // 2) / d_model)
            table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def _embed(params, stack, side, ids, config):
    table = _table(params, side)
    x = math.sqrt(table.shape[1]) * table[ids]
    if config.positions_in == "stream":
        x = x + _places(params, side, len(ids), config)
    if config.embedding_norm or _residual(config, stack) in ("peri_ln", "x0"):
        x = normalise(params[f"{side}positions"]["norm"], x, config)
    return x


def _places(params, side, length, config):
    """What is added to so many tokens, or to the queries and keys of these."""
    if config.positions == "learned":
        return params[f"{side}positions"]["table"][:length]
    return sinusoid(length, config.d_model) if config.positions == "sinusoidal" else 0.0


def normalise(weights: dict, x: np.ndarray, config) -> np.ndarray:
    """A norm of every row of x, by `config.norm`."""
    rows = []
    if config.norm in ("dyt", "derf"):
        inside = weights["alpha"] * x + weights.get("shift", 0.0)
        inside = np.tanh(inside) if config.norm == "dyt" else np.vectorize(math.erf)(inside)
        return inside * weights["scale"] + weights.get("bias", 0.0)
    for row in x:
        if config.norm != "rms_norm":
            row = row - np.mean(row)
        rows.append(row / math.sqrt(np.mean(row**2) + config.norm_epsilon))
    return np.stack(rows) * weights.get("scale", 1.0) + weights.get("bias", 0.0)


def turn(x: np.ndarray, config, own_base: float | None = None) -> np.ndarray:
    """Rotary positions (Su et al. 2021) of one head, x (T, K), as products of complex numbers.

    Of the first channels alone; of scalings: the linear one, which slows all of them down but those
    of a base of its own.
    """
    base = config.rotary_base if own_base is None else own_base
    channels = int(x.shape[1] * config.rotary_fraction)
    half, turned = channels // 2, x.copy()
    scaling = config.rotary_scaling if own_base is None else ()
    slower = float(scaling[1].removeprefix("factor=")) if scaling else 1
    for position, row in enumerate(x):
        for pair in range(half):
            angle = position * base ** (-2 * pair / channels) / slower
            z = complex(row[pair], row[pair + half]) * complex(math.cos(angle), math.sin(angle))
            turned[position, pair], turned[position, pair + half] = z.real, z.imag
    return turned


def distance_vector(distance: int, d_model: int, most: int | None) -> np.ndarray:
    """R of a query's place less its key's, as Transformer-XL's code has it: sines, then cosines."""
    if most is not None:
        distance = max(-most, min(distance, most))
    angles = [distance / 10000 ** (2 * i / d_model) for i in range(d_model // 2)]
    return np.array([*map(math.sin, angles), *map(math.cos, angles)])


def bucket(relative_position: int, bidirectional: bool) -> int:
    """T5's `_relative_position_bucket` (Raffel et al. 2020, code), of a key's place less a query's.

    num_buckets=32, max_distance=128.
    """
    ret, num_buckets, n = 0, 32, -relative_position
    if bidirectional:
        num_buckets //= 2
        ret += num_buckets if n < 0 else 0
        n = abs(n)
    else:
        n = max(n, 0)
    max_exact = num_buckets // 2
    if n < max_exact:
        return ret + n
    growth = math.log(n / max_exact) / math.log(128 / max_exact) * (num_buckets - max_exact)
    # Powers of 2 are exact steps, which rounding must not miss.
    return ret + min(max_exact + math.floor(growth + 1e-6), num_buckets - 1)


def softmax(scores: np.ndarray) -> np.ndarray:
    """What a query of a head gives to each key; called in the order of computation."""
    probabilities = np.exp(scores - scores.max())
    return probabilities / probabilities.sum()


def attention_weights(scores: np.ndarray, config, sink: float) -> np.ndarray:
    """The same by `config.attention_weights`; the score of a key that is not seen is -inf."""
    number = np.sum(scores > -np.inf)
    match config.attention_weights:
        case "off_by_one":
            return softmax(np.append(scores, 0.0))[:-1]
        case "sink":
            return softmax(np.append(scores, sink))[:-1]
        case "sigmoid":
            return 1 / (1 + number * np.exp(-scores))
        case "relu":
            return np.maximum(scores, 0.0) / number
    return softmax(scores)


def _attention(
    weights, queries, keys, offsets, config, causal=False, kind=None, inner=False, first_seen=None
):
    """The weighted sums of values, head by head and query by query.

    offsets: what is added to queries and keys, and not to values.
    kind: of self-attention, where rotary or relative positions, if that is what there is, have a
    part; None: it is cross-attention.
    inner: a norm over all heads' outputs before the last product. first_seen: as of `forward`.
    """
    num_heads, head_dim = weights["query"].shape[1:]
    heads, zeros = np.zeros((len(queries), num_heads, head_dim)), np.zeros(num_heads)

    def inward(x, name):
        bias = weights.get(f"{name}_bias", zeros)
        count = num_heads if name == "query" else config.num_kv_heads or num_heads
        served = [h * count // num_heads for h in range(num_heads)]  # adjacent ones share a key
        x = np.stack([x @ weights[name][:, h] + bias[h] for h in served], axis=1)
        if f"{name}_norm" not in weights and (name == "value" or not config.qk_norm):
            return x
        shape = (len(x), -1) if config.qk_norm_over == "heads" else (-1, head_dim)
        norm = weights.get(f"{name}_norm", {})
        return normalise(norm, x.reshape(shape), config).reshape(x.shape)

    all_queries, all_keys = inward(queries + offsets[0], "query"), inward(keys + offsets[1], "key")
    values = inward(keys, "value")
    for head in range(num_heads):
        q, k, v = all_queries[:, head], all_keys[:, head], values[:, head]
        if kind in ("full", "window") and config.positions == "rotary":
            base = config.window_rotary_base if kind == "window" else None
            q, k = (turn(x, config, base) for x in (q, k))
        for t in range(len(queries)):
            end = t + 1 if causal else len(keys)
            if config.attention_score == "additive":
                scores = np.tanh(q[t] + k[:end]) @ weights["score"]["vector"][head]
            elif kind and config.positions == "distance":
                # Dai et al. 2019, section 3.3: (a), (b), (c) and (d)
                of_keys, of_distances = weights["u"][head], weights["v"][head]
                W = weights["distance"][:, head]
                R = [distance_vector(t - s, len(W), config.max_distance) for s in range(end)]
                scores = np.array(
                    [
                        q[t] @ x + q[t] @ (r @ W) + of_keys @ x + of_distances @ (r @ W)
                        for x, r in zip(k[:end], R, strict=True)
                    ]
                )
            else:
                scores = k[:end] @ q[t]
            if config.attention_score == "scaled_dot_product":
                scores = scores / math.sqrt(head_dim)
            if kind and config.positions.startswith("relative"):
                buckets = [bucket(s - t, bidirectional=not causal) for s in range(end)]
                scores = scores + weights["table"][buckets, head]
            if config.attention_softcap:  # before anything is masked
                scores = config.attention_softcap * np.tanh(scores / config.attention_softcap)
            if first_seen:
                scores[: first_seen(t)] = -np.inf
            if kind in ("window", "window_unturned"):
                scores[[s for s in range(end) if abs(t - s) >= config.window]] = -np.inf
            sink = weights["sink"][head] if "sink" in weights else 0.0
            heads[t, head] = attention_weights(scores, config, sink) @ v[:end]
    out = heads.reshape(len(queries), -1)
    if inner:
        out = normalise(weights["inner_norm"], out, config)
    if config.attention_gate != "none":
        gates = sigmoid(np.tensordot(queries, weights["gate"], 1))
        out = (out.reshape(heads.shape) * gates.reshape(*gates.shape[:2], -1)).reshape(out.shape)
    return out @ weights["output"].reshape(out.shape[1], -1) + weights.get("output_bias", 0.0)


def _gelu(x):
    """The exact form, x Phi(x), not the tanh approximation."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def sigmoid(x):
    return (1 + np.tanh(x / 2)) / 2


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": _gelu,
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "swish": lambda x: x * sigmoid(x),
}
# Of the gate, which then multiplies x W_up.
GATES = {"swiglu": "swish", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "reglu": "relu"}
ACTIVATIONS |= {name: ACTIVATIONS[gate] for name, gate in GATES.items()}


def _feed_forward(weights, x, config, inner=False):
    up = x @ weights["up"] + weights["up_bias"]
    gated = "gate" in weights
    activated = x @ weights["gate"] + weights["gate_bias"] if gated else up
    hidden = ACTIVATIONS[config.activation](activated) * (up if gated else 1.0)
    if inner:
        hidden = normalise(weights["inner_norm"], hidden, config)
    return hidden @ weights["down"] + weights["down_bias"]
