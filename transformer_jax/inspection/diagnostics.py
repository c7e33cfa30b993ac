"""What the lab measures of a model: pure functions of parameters and a batch.

They fit any checkpoint. A stack's sublayers stand in the order in which they run, n of them. Means
are over real tokens, so that padding does not count.
"""

import functools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.norm import EPSILON
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.models.transformer.residual import Scales, variance
from transformer_jax.models.transformer.schemes import Kind, Stack, depth, scheme, stacks
from transformer_jax.models.transformer.shapes import Batch, Model, Params
from transformer_jax.training.losses import Loss
from transformer_jax.training.optimizer import decays

# Rows of a batch that `make_diagnose` looks at.
ROWS = 8
_STACKS: tuple[Stack, ...] = ("encoder", "decoder")


class Observed(NamedTuple):
    """What a forward pass showed of one stack.

    Attributes:
      inputs, branches, outputs: of each sublayer the residual stream before it, what its branch
        adds (scaled, after dropout), and the stream after it.
      final: what leaves the stack, after its last norm.
      segments: the number of each token's text in its row; 0 is padding.
      entropy, largest_logit: of each query of each kind of attention, in nats.
    """

    inputs: Float[Array, "n B T D"]
    branches: Float[Array, "n B T D"]
    outputs: Float[Array, "n B T D"]
    final: Float[Array, "B T D"]
    segments: Int[Array, "B T"]
    entropy: dict[Kind, Float[Array, "L B H T"]]
    largest_logit: dict[Kind, Float[Array, "L B H T"]]

    @property
    def real(self) -> Bool[Array, "B T"]:
        """The tokens that are no padding."""
        return self.segments > 0


def observe(
    model: Model, params: Params, batch: Batch, rng: Key[Array, ""] | None = None
) -> tuple[Float[Array, "B T _"], dict[Stack, Observed]]:
    """One forward pass: the logits, and what each stack showed.

    rng: the key of dropout; None is deterministic.
    """
    logits, variables = model.apply(
        {"params": params},
        batch,
        deterministic=rng is None,
        rngs={} if rng is None else {"dropout": rng},
        mutable=["intermediates"],
    )
    shown, config = variables["intermediates"], model.config
    return logits, {stack: _observed(config, stack, shown, batch) for stack in stacks(config)}


def branch_variance(observed: Observed) -> Float[Array, "n"]:
    """Var[branch] of each sublayer, over all entries: what Admin's omega sums up."""
    return _variances(observed.branches, observed.real)


def shortcut_variance(
    config: TransformerConfig, params: Params, stack: Stack, observed: Observed
) -> Float[Array, "n"]:
    """Var[s x] of each sublayer, its skip scale times its input."""
    skip = _sublayers(config, params, stack).skip
    return _variances(skip[:, None, None] * observed.inputs, observed.real)


def dependency(
    config: TransformerConfig, params: Params, stack: Stack, observed: Observed
) -> Float[Array, "n n+1"]:
    """How much each sublayer's output consists of each branch (Liu et al. 2020, 2004.08249).

    Every sublayer's output x_i is a sum of components: the stack's input a_0 and the branches a_1
    to a_i, each as the skips and norms on its way have scaled it. Row i - 1 holds beta_ij = std of
    component j / std of x_i, over all entries, for j = 0 .. n; 0 for j > i. Squares of a row sum to
    1 where the components are uncorrelated, which they are nearly.

    Of ResiDual this follows the stream x, and not the sum beside it. Time and memory grow with n^2
    and n; where the diagonal is enough, `own_dependency` is cheap.
    """
    return _follow(config, params, stack, observed)[0]


def components(
    config: TransformerConfig, params: Params, stack: Stack, observed: Observed
) -> Float[Array, "n+2 B T D"]:
    """What the last sublayer's output is the sum of.

    They are the components a_0 .. a_n of `dependency`, and last what the biases of norms add.
    """
    return _follow(config, params, stack, observed)[1]


def own_dependency(
    config: TransformerConfig, params: Params, stack: Stack, observed: Observed
) -> Float[Array, "n"]:
    """beta_ii of `dependency`: how much each sublayer's output depends on its own branch."""
    row, kinds = scheme(config, stack), len(depth(config, stack).kinds)
    sublayers = _sublayers(config, params, stack)
    branches = observed.branches
    if row.post_norm:
        whole = sublayers.skip[:, None, None] * observed.inputs + branches
        if row.layer_shortcut:
            whole = whole.at[kinds - 1 :: kinds].add(observed.inputs[::kinds])
        branches = jax.vmap(functools.partial(_post_norm, config))(
            sublayers, branches[:, None], whole[:, None]
        )[:, 0]
    real = observed.real
    return jnp.sqrt(_variances(branches, real) / _variances(observed.outputs, real))


def sum_of_squared_dependencies(
    config: TransformerConfig, params: Params, stack: Stack, observed: Observed
) -> Float[Array, ""]:
    """sum_i beta_ii^2, to which the output change is proportional (Liu et al. 2020, theorem 2)."""
    return jnp.sum(jnp.square(own_dependency(config, params, stack, observed)))


def random_sign_step(key: Key[Array, ""], params: Params, size: float) -> Params:
    """W + size * sign(N(0, 1)) for the kernels of the stacks' sublayers.

    Embeddings and heads stay, and so do biases, norms and omega. Every kernel has a key by its
    path, so that two schemes get the same draw on kernels that they share.
    """

    def move(path, kernel):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        own = jax.random.fold_in(key, np.uint32(zlib.crc32(name.encode())))
        return kernel + size * jax.random.rademacher(own, kernel.shape, kernel.dtype)

    return _map_kernels(move, params)


def gradient_sign_step(gradient: Params, params: Params, size: float) -> Params:
    """W - size * sign(gradient) for the same kernels as `random_sign_step`: a step like Adam's."""

    def move(_, kernel, gradient):
        return kernel - size * jnp.sign(gradient)

    return _map_kernels(move, params, gradient)


def output_change(before: Observed, after: Observed, size: float = 1.0) -> Float[Array, ""]:
    """|F(x, W) - F(x, W*)|^2 of a token / (D size^2), where F is what leaves the stack.

    A mean over tokens. size: of the step from W to W* in every entry.
    """
    squares = jnp.mean(jnp.square(after.final - before.final), axis=-1)
    return jnp.mean(squares, where=before.real) / size**2


def output_gradient_norms(
    model: Model, loss: Loss, params: Params, batch: Batch
) -> dict[Stack, Float[Array, "n"]]:
    """Norm of the gradient of the mean loss with respect to each sublayer's output.

    loss: of the outputs, which are deterministic.
    """

    def mean_loss(perturbations):
        variables = {"params": params, "perturbations": perturbations}
        loss_sum, weight, _ = loss(model.apply(variables, batch, deterministic=True), batch)
        return loss_sum / weight

    def perturbations():
        asked = {"deterministic": True, "mutable": ["perturbations"]}
        _, variables = model.apply({"params": params}, batch, **asked)
        return variables["perturbations"]

    shapes = jax.eval_shape(perturbations)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    gradients = jax.grad(mean_loss)(zeros)

    def norms(stack):
        kinds = depth(model.config, stack).kinds
        outputs = _in_order([gradients[stack][f"{kind}_residual"]["output"] for kind in kinds])
        return jnp.sqrt(jnp.sum(jnp.square(outputs), axis=(1, 2, 3)))

    return {stack: norms(stack) for stack in stacks(model.config)}


def update_ratio(before: Params, after: Params) -> dict[Stack, Float[Array, "L"]]:
    """|W' - W| / |W| of each layer of each stack, over all its kernels together."""

    def norms(kernels):
        axes = [tuple(range(1, kernel.ndim)) for kernel in kernels]
        squares = [jnp.sum(jnp.square(k), axis=a) for k, a in zip(kernels, axes, strict=True)]
        return jnp.sqrt(sum(squares))

    update = jax.tree.map(jnp.subtract, after, before)
    return {
        stack: norms(_kernels(update[stack])) / norms(_kernels(before[stack]))
        for stack in _STACKS
        if stack in before
    }


def token_similarity(observed: Observed) -> Float[Array, "n"]:
    """Mean cosine between different tokens of the same text, after each sublayer.

    It nears 1 where the stack's rank collapses (Dong et al. 2021, 2103.03404). Over all pairs of
    the batch; not a number where there are none.
    """
    rows, length = observed.segments.shape
    # A number of its own for each text, and one for each row's padding.
    texts = observed.segments + (length + 1) * jnp.arange(rows)[:, None]
    texts, total = texts.reshape(-1), rows * (length + 1)
    counts = jax.ops.segment_sum(observed.real.reshape(-1).astype(jnp.float32), texts, total)
    pairs = jnp.sum(counts * (counts - 1))

    def mean_cosine(x):
        norms = jnp.linalg.norm(x, axis=-1, keepdims=True)
        units = jnp.where(observed.real[..., None], x / jnp.maximum(norms, 1e-30), 0.0)
        # |sum of u|^2 holds every ordered pair, and each token with itself.
        sums = jax.ops.segment_sum(units.reshape(texts.size, -1), texts, total)
        return (jnp.sum(jnp.square(sums)) - jnp.sum(jnp.square(units))) / pairs

    return jax.lax.map(mean_cosine, observed.outputs)


def attention_entropy(observed: Observed, kind: Kind) -> Float[Array, "L"]:
    """Mean entropy of attention over heads and queries, in nats; "feed_forward" has none."""
    return jnp.mean(observed.entropy[kind], axis=(1, 2, 3), where=_queries(observed))


def largest_logit(observed: Observed, kind: Kind) -> Float[Array, "L"]:
    """The largest attention logit of all heads and queries."""
    logits = observed.largest_logit[kind]
    return jnp.max(logits, axis=(1, 2, 3), where=_queries(observed), initial=-jnp.inf)


def make_diagnose(
    model: Model, loss: Loss
) -> Callable[[Params, Params, Batch], dict[str, Float[Array, "*n"]]]:
    """Compiles what training logs: (params before a step, those after it, batch) -> numbers.

    Of each stack: "decoder/branch_variance", "decoder/dependency" (beta_ii),
    "decoder/output_gradient_norm", "decoder/token_similarity" (n,); "decoder/update_ratio",
    "decoder/self_attention/entropy", "decoder/self_attention/largest_logit" (L,); and
    "decoder/output_change" () by this step, with a size of 1. All of the parameters before the
    step, without dropout, on the first `ROWS` rows of the batch.
    """

    def diagnose(before, after, batch):
        batch = jax.tree.map(lambda rows: rows[:ROWS], batch)
        _, observed = observe(model, before, batch)
        _, moved = observe(model, after, batch)
        gradient_norms = output_gradient_norms(model, loss, before, batch)
        ratios = update_ratio(before, after)
        found = {}
        for stack, seen in observed.items():
            found |= {
                f"{stack}/branch_variance": branch_variance(seen),
                f"{stack}/dependency": own_dependency(model.config, before, stack, seen),
                f"{stack}/output_gradient_norm": gradient_norms[stack],
                f"{stack}/token_similarity": token_similarity(seen),
                f"{stack}/update_ratio": ratios[stack],
                f"{stack}/output_change": output_change(seen, moved[stack]),
            }
            for kind in seen.entropy:
                found[f"{stack}/{kind}/entropy"] = attention_entropy(seen, kind)
                found[f"{stack}/{kind}/largest_logit"] = largest_logit(seen, kind)
        return jax.tree.map(constrain, found)

    return jax.jit(diagnose)


def profile(
    model: Model, params: Params, batch: Batch, key: Key[Array, ""]
) -> dict[Stack, list[dict[str, Any]]]:
    """What Admin's profiling measured, for every sublayer of the stacks that it fills in.

    Args:
      params, batch, key: the initial parameters, and what `models.transformer.initialise` drew them
        from.

    Returns:
      Of each stack one row a sublayer: its number "sublayer" and its "layer", both from 1, its
      "kind", "omega", "shortcut_variance" and "branch_variance". The next omega is the root of the
      sum of the two variances.
    """
    config = model.config
    _, dropout = jax.random.split(key)

    def measure(params, batch):
        _, observed = observe(model, params, batch, dropout)
        found = {
            stack: (
                jnp.mean(_sublayers(config, params, stack).skip, axis=-1),
                shortcut_variance(config, params, stack, observed[stack]),
                branch_variance(observed[stack]),
            )
            for stack in observed
            if scheme(config, stack).profiled
        }
        return jax.tree.map(constrain, found)

    def rows(stack, values):
        kinds = depth(config, stack).kinds
        names = ("omega", "shortcut_variance", "branch_variance")
        return [
            {
                "sublayer": number + 1,
                "layer": number // len(kinds) + 1,
                "kind": kinds[number % len(kinds)],
                **dict(zip(names, map(float, row), strict=True)),
            }
            for number, row in enumerate(zip(*values, strict=True))
        ]

    measured = jax.device_get(jax.jit(measure)(params, batch))
    return {stack: rows(stack, values) for stack, values in measured.items()}


def _observed(config: TransformerConfig, stack: Stack, shown: Any, batch: Batch) -> Observed:
    kinds = depth(config, stack).kinds
    attentions: list[Kind] = [kind for kind in kinds if kind != "feed_forward"]
    side = "inputs" if stack == "encoder" else "targets"

    def of_sublayers(name):
        return _in_order([shown[stack][f"{kind}_residual"][name] for kind in kinds])

    def of_attention(name) -> dict[Kind, Array]:
        return {kind: shown[stack][kind][name] for kind in attentions}

    return Observed(
        inputs=of_sublayers("input"),
        branches=of_sublayers("branch"),
        outputs=of_sublayers("output"),
        final=shown[f"{stack}_output"],
        segments=batch[f"{side}_segment_ids"],
        entropy=of_attention("entropy"),
        largest_logit=of_attention("largest_logit"),
    )


def _in_order(kinds: list[Float[Array, "L *shape"]]) -> Float[Array, "n *shape"]:
    """Sublayers as they run, from those of each kind."""
    sublayers = jnp.stack(kinds, axis=1)
    return sublayers.reshape(-1, *sublayers.shape[2:])


def _variances(x: Float[Array, "n B T D"], real: Bool[Array, "B T"]) -> Float[Array, "n"]:
    return jax.vmap(lambda x: variance(x, real))(x)


class _Sublayers(NamedTuple):
    """What a stack's sublayers do to the stream beside their branches: arrays of all n, or of one.

    Attributes:
      skip: the scale s.
      normed: whether POST is there.
      scale, bias: those of POST.
    """

    skip: Float[Array, "*n D"]
    normed: Bool[Array, "*n"]
    scale: Float[Array, "*n D"]
    bias: Float[Array, "*n D"]


def _sublayers(config: TransformerConfig, params: Params, stack: Stack) -> _Sublayers:
    row, at = scheme(config, stack), depth(config, stack)
    residuals = [params[stack].get(f"{kind}_residual", {}) for kind in at.kinds]
    scales, size = Scales.of(config, stack), (at.sublayers, config.d_model)

    def of_norm(name, neutral):
        # RMSNorm has no bias.
        if not row.post_norm or name not in residuals[0]["post_norm"]:
            return jnp.full(size, neutral)
        return _in_order([residual["post_norm"][name] for residual in residuals])

    if row.trained_skip:
        skip = _in_order([residual["shortcut"]["omega"] for residual in residuals])
    else:
        skip = jnp.ones(size[:1]) if scales.skip is None else scales.skip.reshape(-1)
        skip = jnp.broadcast_to(skip[:, None], size)
    normed = jnp.full(size[0], row.post_norm) if scales.normed is None else scales.normed
    return _Sublayers(skip, normed.reshape(-1), of_norm("scale", 1.0), of_norm("bias", 0.0))


def _post_norm(
    config: TransformerConfig,
    sublayer: _Sublayers,
    parts: Float[Array, "N B T D"],
    whole: Float[Array, "1 B T D"],
) -> Float[Array, "N B T D"]:
    """What POST makes of each part of what it normalises, where it is there; without its bias.

    A norm is linear but for the deviation that it divides by, which is that of the whole.
    """
    before = parts
    if config.norm == "layer_norm":
        parts, whole = (x - jnp.mean(x, axis=-1, keepdims=True) for x in (parts, whole))
    deviation = jnp.sqrt(jnp.mean(jnp.square(whole), axis=-1, keepdims=True) + EPSILON)
    after = parts * (sublayer.scale[None, None, None] / deviation)
    return jnp.where(sublayer.normed, after, before)


def _follow(
    config: TransformerConfig, params: Params, stack: Stack, observed: Observed
) -> tuple[Float[Array, "n n+1"], Float[Array, "n+2 B T D"]]:
    """The recursion of `dependency` and of `components`, a scan over layers."""
    row, at = scheme(config, stack), depth(config, stack)
    n, kinds = at.sublayers, len(at.kinds)

    def layer(parts, own):
        bottom, betas = parts, []
        for index in range(kinds):
            number, branch, sublayer = jax.tree.map(lambda leaf, at=index: leaf[at], own)
            parts = sublayer.skip[None, None, None] * parts
            if row.layer_shortcut and index == kinds - 1:
                parts = parts + bottom
            parts = parts.at[number].add(branch)
            if row.post_norm:
                whole = jnp.sum(parts, axis=0, keepdims=True)
                parts = _post_norm(config, sublayer, parts, whole)
                bias = jnp.where(sublayer.normed, sublayer.bias, 0.0)
                parts = parts.at[-1].add(bias[None, None])
            whole = variance(jnp.sum(parts, axis=0), observed.real)
            betas.append(jnp.sqrt(_variances(parts[:-1], observed.real) / whole))
        return parts, jnp.stack(betas)

    sublayers = (jnp.arange(1, n + 1), observed.branches, _sublayers(config, params, stack))
    layers = jax.tree.map(lambda leaf: leaf.reshape(-1, kinds, *leaf.shape[1:]), sublayers)
    start = jnp.zeros((n + 2, *observed.inputs.shape[1:])).at[0].set(observed.inputs[0])
    parts, betas = jax.lax.scan(layer, start, layers)
    return betas.reshape(n, n + 1), parts


def _map_kernels(move: Callable, params: Params, *others: Params) -> Params:
    """The parameters with move(path, kernel, ...) in the place of every kernel of the stacks."""

    def moved(path, leaf, *rest):
        return move(path, leaf, *rest) if path[0].key in _STACKS and decays(path) else leaf

    return jax.tree_util.tree_map_with_path(moved, params, *others)


def _kernels(params: Params) -> list[Array]:
    return [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params) if decays(path)]


def _queries(observed: Observed) -> Bool[Array, "1 B 1 T"]:
    return observed.real[None, :, None]
