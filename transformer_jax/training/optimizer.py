"""The learning rate's schedule and the optimizer: one chain, so one pass over the parameters."""

import fnmatch
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

# A glob of parameter paths, a factor on the learning rate, and the weight decay.
Group = tuple[str, float, float]


def make_schedule(
    *,
    name: str,
    learning_rate: float,
    warmup_steps: int,
    decay_steps: int,
    steps: int,
    final_learning_rate: float,
    d_model: int,
) -> optax.Schedule:
    """Returns count -> learning rate, where `count` updates have been made before this one.

    With s = count + 1, so that the first update (s = 1) moves the parameters and the last one is
    s = `steps`; w = `warmup_steps`, and 0 means that there is no warm-up:

      noam          learning_rate * d_model^-0.5 * min(s^-0.5, s * w^-1.5)
                    (Vaswani et al. 2017, equation 3, which is learning_rate = 1)
      inverse_sqrt  learning_rate * sqrt(w / s)            (peak at s = w; fairseq's)
      cosine        half a cosine from learning_rate at s = w to final_learning_rate at `steps`
      linear        a line between the same two points
      constant      learning_rate
      warmup_stable_decay
                    learning_rate until s = steps - decay_steps, then a line to final_learning_rate
                    at `steps` (Hu et al. 2024; a line is Haegele et al. 2024's)

    Each grows linearly as s / w while s < w.

    Raises:
      ValueError: for a name that is none of these, a negative warm-up, or a "warmup_stable_decay"
        without decay or whose warm-up and decay overlap.
    """
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be 0 (no warm-up) or more, got {warmup_steps}")
    if name == "warmup_stable_decay" and not 0 < decay_steps <= steps - warmup_steps:
        raise ValueError(
            f"warmup_stable_decay needs a decay of 1 to {steps - warmup_steps} steps, what is left "
            f"of {steps} after {warmup_steps} of warm-up; got decay_steps={decay_steps}"
        )
    # Without warm-up the peak is the first step.
    peak_step = max(warmup_steps, 1)

    def inverse_sqrt(s):
        return jnp.sqrt(peak_step / s)

    def line_down(s, first):
        """1 until step `first`, then a line to 0 at the last step."""
        return 1 - jnp.clip((s - first) / max(steps - first, 1), 0, 1)

    def remaining(s):
        return line_down(s, peak_step)

    def stable_remaining(s):
        return line_down(s, steps - decay_steps)

    def half_cosine(s):
        return (1 - jnp.cos(jnp.pi * remaining(s))) / 2

    def constant(s):
        return jnp.ones_like(s)

    match name:
        case "noam":
            peak, floor, decay = learning_rate * (d_model * peak_step) ** -0.5, 0.0, inverse_sqrt
        case "inverse_sqrt":
            peak, floor, decay = learning_rate, 0.0, inverse_sqrt
        case "cosine":
            peak, floor, decay = learning_rate, final_learning_rate, half_cosine
        case "linear":
            peak, floor, decay = learning_rate, final_learning_rate, remaining
        case "constant":
            peak, floor, decay = learning_rate, 0.0, constant
        case "warmup_stable_decay":
            peak, floor, decay = learning_rate, final_learning_rate, stable_remaining
        case _:
            raise ValueError(
                f"unknown schedule {name!r}: expected noam, inverse_sqrt, cosine, linear, constant "
                "or warmup_stable_decay"
            )

    def schedule(count):
        s = jnp.asarray(count, jnp.float32) + 1
        return jnp.where(s < peak_step, peak * s / peak_step, floor + (peak - floor) * decay(s))

    return schedule


def make_optimizer(
    *,
    name: str,
    schedule: optax.Schedule,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    clip_norm: float,
    groups: Sequence[Group],
) -> optax.GradientTransformation:
    """Clips by the global norm (0: not), scales as `name` says, decays weights, sets the rate.

    adam: Kingma and Ba 2014, algorithm 1. adamw: the same, and every step takes learning rate *
    weight_decay * parameter off the parameters that `decays` names (Loshchilov and Hutter 2017);
    so do all that follow.
    radam: Liu et al. 2019, algorithm 2; while the variance is not tractable it steps by the
    momentum alone, as in that algorithm.
    adafactor: Shazeer and Stern 2018, algorithm 4, where `schedule` is the relative step size rho.
    Second moments of matrices of at least 128 x 128 are factored. Takes no beta or epsilon.
    lion: Chen et al. 2023, algorithm 2. Takes no epsilon.
    muon: Jordan et al. 2024 with Nesterov momentum `beta1`, for the matrices of attention and
    feed-forward sublayers; Adam for all else. Steps are scaled by 0.2 sqrt(longer side) to the size
    of Adam's (Liu et al. 2025, equation 4), so that one learning rate serves both.

    Adafactor and Muon see the true matrices, (D, H K) of attention, and each layer's on its own.

    groups: the first row whose glob fits a parameter's path, such as "encoder/feed_forward/up"
      ("*" also stands for "/"), gives a factor on its learning rate and its weight decay, where
      `decays` names it. A factor of 0 freezes: such a parameter has no optimizer state and no part
      in the global norm that is clipped.

    Raises:
      ValueError: for another name, when "adam" is asked to decay, for a negative factor or decay;
        and by the result's `init`, for a row that no parameter takes.
    """
    rows = (*groups, ("*", 1.0, weight_decay))
    for glob, factor, decay in rows:
        if factor < 0 or decay < 0:
            raise ValueError(
                f"a factor on the learning rate and a weight decay are 0 or more, got {factor} and "
                f"{decay} for {glob!r}"
            )
        if name == "adam" and decay:
            raise ValueError(
                f'optimizer "adam" has no weight decay, got weight_decay={decay} for {glob!r}: '
                'use "adamw", which decays apart from the gradient'
            )
    adam = optax.scale_by_adam(beta1, beta2, epsilon)
    match name:
        case "adam" | "adamw":
            scale = adam
        case "radam":
            scale = optax.scale_by_radam(beta1, beta2, epsilon)
        case "adafactor":
            scale = _each_matrix(_adafactor())
        case "lion":
            scale = optax.scale_by_lion(beta1, beta2)
        case "muon":
            scale = optax.partition(
                {"muon": _each_matrix(_muon(beta1)), "adam": adam}, _by_path(_muon_or_adam)
            )
        case _:
            raise ValueError(
                f"unknown optimizer {name!r}: expected adam, adamw, radam, adafactor, lion or muon"
            )
    transform = optax.chain(
        optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity(),
        scale,
        _decay_and_factor(rows),
        optax.scale_by_learning_rate(schedule),
    )
    if any(factor == 0 for _, factor, _ in rows):
        transform = optax.partition(
            {"trained": transform, "frozen": optax.set_to_zero()},
            _by_path(lambda path: "trained" if _row(rows, path)[1] else "frozen"),
        )

    def init(params):
        _check_rows_are_taken(groups, params)
        return transform.init(params)

    return optax.GradientTransformation(init, transform.update)


def decays(path: tuple) -> bool:
    """Whether weight decay applies to the parameter at a path of JAX's.

    It does not apply to the scales of norms, Admin's omega and biases, known by the last key of
    the path: "scale", "omega", and whatever ends in "bias".
    """
    leaf = path[-1].key
    return not (leaf in ("scale", "omega") or leaf.endswith("bias"))


def _by_path(label: Callable[[tuple], str]) -> Callable[[Any], Any]:
    """The function of a tree that puts label(path) in the place of every leaf."""
    return lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: label(path), tree)


def _row(rows: Sequence[Group], path: tuple) -> Group:
    """The first row that fits a parameter; the last one fits all."""
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return next(row for row in rows if fnmatch.fnmatchcase(name, row[0]))


def _decay_and_factor(rows: Sequence[Group]) -> optax.GradientTransformation:
    """Adds each parameter's weight decay to its update, and multiplies both by its factor."""

    def update(path, update, param):
        _, factor, decay = _row(rows, path)
        if decay and decays(path):
            update = update + decay * param
        return factor * update

    return optax.stateless(
        lambda updates, params: jax.tree_util.tree_map_with_path(update, updates, params)
    )


def _check_rows_are_taken(groups: Sequence[Group], params: Any) -> None:
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    rows = (*groups, ("*", 1.0, 0.0))
    for row in groups:
        if row not in [_row(rows, path) for path in paths]:
            raise ValueError(
                f"optimizer.groups: {row[0]!r} fits no parameter that an earlier row has not "
                'taken; globs are of whole paths, such as "encoder/*" (`--mode=inspect` lists them)'
            )


def _adafactor() -> optax.GradientTransformation:
    """Algorithm 4 of Shazeer and Stern 2018, but for the relative step size."""
    return optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )


def _muon(beta: float) -> optax.GradientTransformation:
    """For one matrix. Orthogonal matrices have a root mean square of 1 / sqrt(longer side)."""

    def to_adams_size(update: Any, _) -> Any:
        return 0.2 * math.sqrt(max(update.shape)) * update

    return optax.chain(
        contrib.scale_by_muon(
            beta=beta, weight_dimension_numbers=contrib.MuonDimensionNumbers(0, 1)
        ),
        optax.stateless(to_adams_size),
    )


def _muon_or_adam(path: tuple) -> str:
    matrices = ("query", "key", "value", "output", "up", "gate", "down")
    return "muon" if path[-1].key in matrices else "adam"


def _each_matrix(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """`transform` on each matrix and each vector of each layer, as if it were all there is."""

    def init(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, param: jax.vmap(transform.init)(_unfold(path, param)), params
        )

    def update(updates, state, params=None):
        def one(path, update, state, param):
            matrices: Any = _unfold(path, update)
            matrices, state = jax.vmap(transform.update)(matrices, state, _unfold(path, param))
            return matrices.reshape(update.shape), state

        leaves, structure = jax.tree_util.tree_flatten_with_path(updates)
        states, params = structure.flatten_up_to(state), structure.flatten_up_to(params)
        results = [
            one(*leaf, state, param)
            for leaf, state, param in zip(leaves, states, params, strict=True)
        ]
        columns = ([result[column] for result in results] for column in (0, 1))
        return tuple(map(structure.unflatten, columns))

    return optax.GradientTransformation(init, update)


def _unfold(path: tuple, array: jax.Array) -> jax.Array:
    """(layers, inputs, outputs) of a parameter of matrices, (layers, outputs) of one of vectors.

    The last axes are a layer's own, by the parameter's name; those before them count layers.
    """
    match path[-1].key:
        case "query" | "key" | "value":
            inputs, outputs = 1, 2
        case "output":
            inputs, outputs = 2, 1
        case "query_bias" | "value_bias":
            inputs, outputs = 0, 2
        case _:
            inputs, outputs = int(decays(path)), 1
    own = array.shape[max(array.ndim - inputs - outputs, 0) :]
    sizes = [math.prod(own[:-outputs])] * (inputs > 0) + [math.prod(own[-outputs:])]
    return array.reshape(-1, *sizes)
