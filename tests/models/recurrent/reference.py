"""The recurrent models in slow NumPy, one text at a time, as their papers have them."""

import jax
import numpy as np

from tests.models.reference import by_example, sigmoid, softmax


def lstm(w, x, h, c, context=None):
    """The state after x; equations of Wu et al. 2016, section 3."""
    sums = np.tensordot(x, w["input"], 1) + np.tensordot(h, w["recurrent"], 1) + w["bias"]
    if context is not None:
        sums = sums + np.tensordot(context, w["context"], 1)
    i, f, g, o = sums
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru(w, x, h, context=None):
    """The state after x; Bahdanau et al. 2014, appendix A.1.1."""
    sums = np.tensordot(x, w["input"], 1) + w["bias"]
    if context is not None:
        sums = sums + np.tensordot(context, w["context"], 1)
    r, z = (sigmoid(sums[gate] + h @ w["recurrent"][:, gate]) for gate in (0, 1))
    candidate = np.tanh(sums[2] + (r * h) @ w["candidate"][:, 0])
    return (1 - z) * h + z * candidate


def gru_of_one_product(w, x, h):
    """The state after x, as PyTorch documents its GRU: the reset gate after the product."""
    ours, theirs = np.tensordot(x, w["input"], 1) + w["bias"], np.tensordot(h, w["recurrent"], 1)
    r, z = (sigmoid(ours[gate] + theirs[gate]) for gate in (0, 1))
    n = np.tanh(ours[2] + r * (theirs[2] + w["candidate_bias"]))
    return (1 - z) * n + z * h


def run(w, xs):
    """The outputs of a layer that has seen nothing before."""
    width, outputs = w["bias"].shape[1], []
    h = c = np.zeros(width)
    for x in xs:
        if "candidate" in w:
            h = gru(w, x, h)
        elif "candidate_bias" in w:
            h = gru_of_one_product(w, x, h)
        else:
            h, c = lstm(w, x, h, c)
        outputs.append(h)
    return np.array(outputs)


def both_ways(w, xs):
    backward = run(w["backward"], xs[::-1])[::-1]
    return np.concatenate([run(w["forward"], xs), backward], axis=1)


def context_of(w, encoded, h):
    """Appendix A.1.2: one score, one weight and one product at a time."""
    scores = []
    for annotation in encoded:
        hidden = np.tanh(h @ w["query"] + annotation @ w["key"] + w["key_bias"])
        scores.append(float(w["vector"] @ hidden))
    weights, context = softmax(np.array(scores)), np.zeros(encoded.shape[1])
    for weight, annotation in zip(weights, encoded, strict=True):
        context = context + weight * annotation
    return context


def embed(params, ids):
    table = params["embedding"]["table"]
    return table[ids] * params.get("scale", table.shape[1] ** 0.5)


def project(params, x):
    """Logits by the table of tokens, or by a kernel of their own."""
    own = params.get("logits", {"kernel": params["embedding"]["table"].T})
    return x @ own["kernel"] + params.get("logits_bias", {}).get("bias", 0.0)


def rnnsearch(params, source, target, attends=True):
    """Logits at each token of the target, which begins with what is read first."""
    encoded = embed(params, source)
    for layer in range(1, len(params["encoder"]) + 1):
        encoded = both_ways(params["encoder"][f"layer_{layer}"], encoded)
    w, logits = params["decoder"], []
    half = encoded.shape[1] // 2
    last = np.concatenate([encoded[-1, :half], encoded[0, half:]])
    names = sorted(name for name in w if name.startswith("layer_"))
    states = [np.zeros(half) for _ in names]
    states[0] = np.tanh(encoded[0, half:] @ w["bridge"] + w["bridge_bias"])
    for y in embed(params, target):
        x, context = y, last
        for number, name in enumerate(names):
            if number == 0 and attends:
                context = context_of(w[name], encoded, states[0])
                states[0] = gru(w[name], x, states[0], context)
            else:
                states[number] = gru(w[name], np.concatenate([x, context]), states[number])
            x = states[number]
        read = np.concatenate([x, y, context])
        sums = np.tensordot(read, w["readout"], 1) + w["readout_bias"]
        logits.append(params["embedding"]["table"] @ np.maximum(*sums))
    return np.array(logits)


def rnnencdec(params, source, target):
    return rnnsearch(params, source, target, attends=False)


def gnmt(params, source, target):
    """Likewise; a residual connection from the third layer on."""
    x, w = embed(params, source), params["encoder"]
    for number in range(1, len(w) + 1):
        if number == 1:
            x = both_ways(w["layer_1"], x)
        else:
            out = run(w[f"layer_{number}"], x)
            x = x + out if number > 2 else out
    encoded, w, logits = x, params["decoder"], []
    names = [f"layer_{number}" for number in range(1, len(w) + 1)]
    states = [(np.zeros(w[name]["bias"].shape[1]),) * 2 for name in names]
    for x in embed(params, target):
        context = context_of(w["layer_1"], encoded, states[0][0])
        for number, name in enumerate(names):
            if number == 0:
                states[0] = lstm(w[name], x, *states[0], context)
            else:
                states[number] = lstm(w[name], np.concatenate([x, context]), *states[number])
            x = x + states[number][0] if number > 1 else states[number][0]
        logits.append(params["embedding"]["table"] @ x)
    return np.array(logits)


def lstmn(params, source, target):
    """Logits of a language model; Cheng et al. 2016, equations 4 to 8."""
    del source
    xs = embed(params, target)
    for number in range(1, len(params["decoder"]) + 1):
        w, tape = params["decoder"][f"layer_{number}"], []
        read, outputs = np.zeros(xs.shape[1]), []
        for x in xs:
            h = c = np.zeros(xs.shape[1])
            if tape:
                query = x @ w["input_query"] + read @ w["query"] + w["query_bias"]
                scores = [w["vector"] @ np.tanh(old @ w["key"] + query) for old, _ in tape]
                for weight, (old_h, old_c) in zip(softmax(np.array(scores)), tape, strict=True):
                    h, c = h + weight * old_h, c + weight * old_c
            read = h
            tape.append(lstm(w, x, h, c))
            outputs.append(tape[-1][0])
        xs = np.array(outputs)
    return project(params, xs)


def layers_alone(params, source, target):
    """Logits of a language model of layers one after the other."""
    del source
    x = embed(params, target)
    for number in range(1, len(params["decoder"]) + 1):
        x = run(params["decoder"][f"layer_{number}"], x)
    return project(params, x)


LOGITS = {
    "rnnsearch": rnnsearch,
    "rnnencdec": rnnencdec,
    "gnmt": gnmt,
    "lstmn": lstmn,
    "gru": layers_alone,
    "lstm": layers_alone,
}


def forward(params, batch, config):
    """Logits (T, V) of every example of a batch, in the order of its rows."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    if config.embedding_scale is not None:
        params["scale"] = config.embedding_scale
    sources, targets = (by_example(batch, side, batch[side]) for side in ("inputs", "targets"))
    return [
        LOGITS[config.recurrence](params, source, np.append(config.bos_id, target[:-1]))
        for source, target in zip(sources, targets, strict=True)
    ]
