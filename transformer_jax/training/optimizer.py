"""The learning rate's schedule and the optimizer: one chain, so one pass over the parameters.

SCHEDULES and OPTIMIZERS are the lists of both.
"""

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from transformer_jax.models.family import Role

# A glob of parameter paths, a factor on the learning rate, and the weight decay.
Group = tuple[str, float, float]
# What each parameter is, by its path; asked for only when a state is made or updated.
Roles = Callable[[], Mapping[str, Role]]


class Span(NamedTuple):
    """Steps count from 1. peak: where warm-up ends; last: the last one; decay: of a final decay."""

    peak: int
    last: int
    decay: int


def _inverse_sqrt(s, span):
    return jnp.sqrt(span.peak / s)


def _line_down(s, first, last):
    """1 until step `first`, then a line to 0 at the last step."""
    return 1 - jnp.clip((s - first) / max(last - first, 1), 0, 1)


def _linear(s, span):
    return _line_down(s, span.peak, span.last)


def _half_cosine(s, span):
    return (1 - jnp.cos(jnp.pi * _linear(s, span))) / 2


def _constant(s, span):
    return jnp.ones_like(s)


def _final_line(s, span):
    return _line_down(s, span.last - span.decay, span.last)


class Schedule(NamedTuple):
    """One row.

    Attributes:
      remains: (step, span) -> how much is left of the peak, from 1 on.
      ends: whether it comes down to the final learning rate at the last step; otherwise the rate at
        a step does not depend on the number of steps to come.
      decays_last: whether it reads `decay_steps`.
      by_width: whether the learning rate is a factor on (d_model * peak step)^-0.5.
    """

    remains: Callable[[Any, Span], Any]
    ends: bool = False
    decays_last: bool = False
    by_width: bool = False


# With s = 1 for the first update, s = `steps` for the last one, and w = `warmup_steps`:
SCHEDULES = {
    # learning_rate * d_model^-0.5 * min(s^-0.5, s * w^-1.5) (Vaswani et al. 2017, equation 3, which
    # is learning_rate = 1)
    "noam": Schedule(_inverse_sqrt, by_width=True),
    # learning_rate * sqrt(w / s): the peak is at s = w (fairseq's)
    "inverse_sqrt": Schedule(_inverse_sqrt),
    # half a cosine from learning_rate at s = w to final_learning_rate at `steps`
    "cosine": Schedule(_half_cosine, ends=True),
    # a line between the same two points
    "linear": Schedule(_linear, ends=True),
    "constant": Schedule(_constant),
    # learning_rate until s = steps - decay_steps, then a line to final_learning_rate at `steps` (Hu
    # et al. 2024; a line is Haegele et al. 2024's)
    "warmup_stable_decay": Schedule(_final_line, ends=True, decays_last=True),
}


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

    Each row of `SCHEDULES` grows linearly as s / w while s = count + 1 is less than w =
    `warmup_steps`, so that the first update moves the parameters; 0 means that there is no warm-up.

    Raises:
      ValueError: for a name that has no row, a negative warm-up, or a final decay that is empty or
        overlaps the warm-up.
    """
    row = _row_of(SCHEDULES, "schedule", name)
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be 0 (no warm-up) or more, got {warmup_steps}")
    if row.decays_last and not 0 < decay_steps <= steps - warmup_steps:
        raise ValueError(
            f"{name} needs a decay of 1 to {steps - warmup_steps} steps, what is left of {steps} "
            f"after {warmup_steps} of warm-up; got decay_steps={decay_steps}"
        )
    # Without warm-up the peak is the first step.
    span = Span(max(warmup_steps, 1), steps, decay_steps)
    peak = learning_rate * (d_model * span.peak) ** -0.5 if row.by_width else learning_rate
    floor = final_learning_rate if row.ends else 0.0

    def schedule(count):
        s = jnp.asarray(count, jnp.float32) + 1
        decayed = floor + (peak - floor) * row.remains(s, span)
        return jnp.where(s < span.peak, peak * s / span.peak, decayed)

    return schedule


class Moments(NamedTuple):
    """What optimizers are made from: momentum, decay of second moments, and what avoids 1 / 0."""

    beta1: float
    beta2: float
    epsilon: float


def _adam(moments: Moments, roles: Roles) -> optax.GradientTransformation:
    return optax.scale_by_adam(*moments)


def _radam(moments: Moments, roles: Roles) -> optax.GradientTransformation:
    return optax.scale_by_radam(*moments)


def _lion(moments: Moments, roles: Roles) -> optax.GradientTransformation:
    return optax.scale_by_lion(moments.beta1, moments.beta2)


def _adafactor(moments: Moments, roles: Roles) -> optax.GradientTransformation:
    """All of it but the relative step size."""
    transform = optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )
    return _each_matrix(transform, roles)


def _muon(moments: Moments, roles: Roles) -> optax.GradientTransformation:
    def to_adams_size(update: Any, _) -> Any:
        # Orthogonal matrices have a root mean square of 1 / sqrt(longer side).
        return 0.2 * math.sqrt(max(update.shape)) * update

    dimensions = contrib.MuonDimensionNumbers(0, 1)
    one_matrix = optax.chain(
        contrib.scale_by_muon(beta=moments.beta1, weight_dimension_numbers=dimensions),
        optax.stateless(to_adams_size),
    )

    def label(name: str) -> str:
        role = roles()[name]
        return "muon" if role.matrix and role.stacked else "adam"

    rules: dict[Any, Any] = {"muon": _each_matrix(one_matrix, roles), "adam": _adam(moments, roles)}
    transform = optax.partition(rules, _by_name(label))

    def init(params: Any) -> Any:
        if not any(role.matrix and role.stacked for role in roles().values()):
            raise ValueError(
                'optimizer "muon" steps the matrices of scanned layers, of which this model has '
                'none: use "adam" or "adamw"'
            )
        return transform.init(params)

    return optax.GradientTransformation(init, transform.update)


class Optimizer(NamedTuple):
    """One row. decays: whether it takes a weight decay, apart from the gradient. reads: which
    `Moments` have an effect.
    """

    scale: Callable[[Moments, Roles], optax.GradientTransformation]
    decays: bool = True
    reads: tuple[str, ...] = Moments._fields


OPTIMIZERS = {
    # Kingma and Ba 2014, algorithm 1
    "adam": Optimizer(_adam, decays=False),
    # Adam, and every step takes learning rate * weight_decay * parameter off the parameters whose
    # role says so (Loshchilov and Hutter 2017); so do all that follow
    "adamw": Optimizer(_adam),
    # Liu et al. 2019, algorithm 2: while the variance is not tractable it steps by the momentum
    # alone
    "radam": Optimizer(_radam),
    # Shazeer and Stern 2018, algorithm 4, where the schedule is the relative step size rho. Second
    # moments of matrices of at least 128 x 128 are factored
    "adafactor": Optimizer(_adafactor, reads=()),
    # Chen et al. 2023, algorithm 2
    "lion": Optimizer(_lion, reads=("beta1", "beta2")),
    # Jordan et al. 2024 with Nesterov momentum beta1, for the matrices of stacks; Adam for all
    # else. Steps are scaled by 0.2 sqrt(longer side) to the size of Adam's (Liu et al. 2025,
    # equation 4), so that one learning rate serves both
    "muon": Optimizer(_muon),
}


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
    roles: Roles,
) -> optax.GradientTransformation:
    """Clips by the global norm (0: not), scales by a row of `OPTIMIZERS`, decays, sets the rate.

    Adafactor and Muon see the true matrices, (D, H K) of attention, and each layer's on its own.

    Args:
      groups: the first row whose glob fits a parameter's path, such as "encoder/feed_forward/up"
        ("*" also stands for "/"), gives a factor on its learning rate and its weight decay, where
        its role lets it decay. A factor of 0 freezes: such a parameter has no optimizer state and
        no part in the global norm that is clipped.
      roles: what each parameter is (`models.family.roles`).

    Raises:
      ValueError: for a name that has no row, when "adam" is asked to decay, for a negative factor
        or decay; and by the result's `init`, for a row that no parameter takes, or where "muon" has
        nothing to step.
    """
    row = _row_of(OPTIMIZERS, "optimizer", name)
    rows = (*groups, ("*", 1.0, weight_decay))
    for glob, factor, decay in rows:
        if factor < 0 or decay < 0:
            raise ValueError(
                f"a factor on the learning rate and a weight decay are 0 or more, got {factor} and "
                f"{decay} for {glob!r}"
            )
        if decay and not row.decays:
            raise ValueError(
                f'optimizer "{name}" has no weight decay, got weight_decay={decay} for {glob!r}: '
                'use "adamw", which decays apart from the gradient'
            )
    transform = optax.chain(
        optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity(),
        row.scale(Moments(beta1, beta2, epsilon), roles),
        _decay_and_factor(rows, roles),
        optax.scale_by_learning_rate(schedule),
    )
    if any(factor == 0 for _, factor, _ in rows):
        transform = optax.partition(
            {"trained": transform, "frozen": optax.set_to_zero()},
            _by_name(lambda name: "trained" if _group(rows, name)[1] else "frozen"),
        )

    def init(params):
        _check_rows_are_taken(groups, params)
        return transform.init(params)

    return optax.GradientTransformation(init, transform.update)


def _row_of(table: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in table:
        raise ValueError(f"unknown {what} {name!r}: expected one of {', '.join(table)}")
    return table[name]


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _by_name(label: Callable[[str], str]) -> Callable[[Any], Any]:
    """The function of a tree that puts label(path, as "embedding/table") in place of each leaf."""
    return lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: label(_name(path)), tree)


def _group(rows: Sequence[Group], name: str) -> Group:
    """The first row that fits a parameter; the last one fits all."""
    return next(row for row in rows if fnmatch.fnmatchcase(name, row[0]))


def _decay_and_factor(rows: Sequence[Group], roles: Roles) -> optax.GradientTransformation:
    """Adds each parameter's weight decay to its update, and multiplies both by its factor."""

    def update(path, update, param):
        _, factor, decay = _group(rows, _name(path))
        if decay and roles()[_name(path)].decay:
            update = update + decay * param
        return factor * update

    return optax.stateless(
        lambda updates, params: jax.tree_util.tree_map_with_path(update, updates, params)
    )


def _check_rows_are_taken(groups: Sequence[Group], params: Any) -> None:
    names = [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    rows = (*groups, ("*", 1.0, 0.0))
    for row in groups:
        if row not in [_group(rows, name) for name in names]:
            raise ValueError(
                f"optimizer.groups: {row[0]!r} fits no parameter that an earlier row has not "
                'taken; globs are of whole paths, such as "encoder/*" (`--mode=inspect` lists them)'
            )


def _each_matrix(
    transform: optax.GradientTransformation, roles: Roles
) -> optax.GradientTransformation:
    """`transform` on each matrix and each vector of each layer, as if it were all there is."""

    def unfold(path, array):
        return _unfold(roles()[_name(path)], array)

    def init(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, param: jax.vmap(transform.init)(unfold(path, param)), params
        )

    def update(updates, state, params=None):
        def one(path, update, state, param):
            matrices: Any = unfold(path, update)
            matrices, state = jax.vmap(transform.update)(matrices, state, unfold(path, param))
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


def _unfold(role: Role, array: jax.Array) -> jax.Array:
    """(layers, inputs, outputs) of a parameter of matrices, (layers, outputs) of one of vectors.

    Numbers of which a stack has one a layer are one vector.
    """
    own = array.shape[int(role.stacked and array.ndim > 1) :]
    if role.matrix is None:
        return array.reshape(-1, math.prod(own))
    inputs, _ = role.matrix
    return array.reshape(-1, math.prod(own[:inputs]), math.prod(own[inputs:]))
