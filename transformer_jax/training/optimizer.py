"""The optimizer: one chain, so one pass over the parameters."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer_jax.models.family import Role, parameter_name
from transformer_jax.models.layers.parameter import times
from transformer_jax.training.update_rules import OPTIMIZERS, Moments, Optimizer, Roles, by_name

# A glob of parameter paths, a factor on the learning rate, and the weight decay.
Group = tuple[str, float, float]
# A glob of parameter paths, the first and the last of some layers, from 1, and steps.
LayerWarmUp = tuple[str, int, int, int]


def make_optimizer(
    *,
    name: str,
    schedule: optax.Schedule,
    peak: Any,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    clip_norm: float,
    groups: Sequence[Group],
    roles: Roles,
    layer_warm_ups: Sequence[LayerWarmUp] = (),
    burn_in_steps: int = 0,
) -> optax.GradientTransformation:
    """Clips by the global norm (0: not), scales by a row of `OPTIMIZERS`, decays, sets the rate.

    Adafactor and Muon see the true matrices, (D, H K) of attention, and each layer's on its own.
    Where roles have shares of a parameterisation, these are factors on learning rate and epsilon.

    Args:
      peak: the schedule's, which an independent weight decay is a share of.
      groups: the first row whose glob fits a parameter's path, such as "encoder/feed_forward/up"
        ("*" also stands for "/"), gives a factor on its learning rate and its weight decay, where
        its role lets it decay. A factor of 0 freezes: such a parameter has no optimizer state and
        no part in the global norm that is clipped.
      roles: what each parameter is (`models.family.roles`).
      layer_warm_ups: each row gives the layers of its parameters a linear warm-up of their own,
        besides that of the schedule, of which their rates are s / steps in step s.
      burn_in_steps: of the schedule, after which layers begin to warm up.

    Raises:
      ValueError: for a name that has no row, when "adam" is asked to decay, for a negative factor
        or decay, for layers or steps below 1; and by the result's `init`, for a row that no
        parameter takes, or where "muon" has nothing to step.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}: expected one of {', '.join(OPTIMIZERS)}")
    row = OPTIMIZERS[name]
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
    clip = optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity()
    transform = optax.chain(
        optax.chain(clip, _over_epsilon(roles)),
        row.scale(Moments(beta1, beta2, epsilon), roles),
        _decay_and_factor(rows, roles, row, peak),
        optax.scale_by_learning_rate(schedule),
    )
    if layer_warm_ups:
        transform = optax.chain(transform, _warm_layers_up(layer_warm_ups, roles, burn_in_steps))
    if any(factor == 0 for _, factor, _ in rows):
        transform = optax.partition(
            {"trained": transform, "frozen": optax.set_to_zero()},
            by_name(lambda name: "trained" if _group(rows, name)[1] else "frozen"),
        )

    def init(params):
        _check_rows_are_taken(groups, params)
        if layer_warm_ups:
            _check_layers(layer_warm_ups, params, roles)
        return transform.init(params)

    return optax.GradientTransformation(init, transform.update)


def _warm_layers_up(
    rows: Sequence[LayerWarmUp], roles: Roles, burn_in_steps: int
) -> optax.GradientTransformation:
    """Updates of the rows' layers times s / steps in step s after the burn-in, up to 1."""

    def init(params):
        return optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))

    def update(updates, state, params=None):
        s = jnp.maximum(jnp.asarray(state.count, jnp.float32) + 1 - burn_in_steps, 0.0)

        def scaled(path, update):
            if not roles()[parameter_name(path)].stacked:
                return update
            factor = jnp.ones(update.shape[0])
            for glob, first, last, steps in rows:
                if fnmatch.fnmatchcase(parameter_name(path), glob):
                    factor = factor.at[first - 1 : last].mul(jnp.minimum(s / steps, 1.0))
            return update * factor.reshape(-1, *[1] * (update.ndim - 1))

        updates = jax.tree_util.tree_map_with_path(scaled, updates)
        return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def _check_layers(rows: Sequence[LayerWarmUp], params: Any, roles: Roles) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    layers = {
        parameter_name(p): leaf.shape[0] for p, leaf in leaves if roles()[parameter_name(p)].stacked
    }
    for glob, first, last, steps in rows:
        what = f"optimizer.layer_warm_ups: {(glob, first, last, steps)!r}"
        most = max((n for p, n in layers.items() if fnmatch.fnmatchcase(p, glob)), default=0)
        if not most:
            raise ValueError(f"{what} fits no parameter of layers: --mode=inspect shows their axes")
        if not 1 <= first <= last <= most:
            raise ValueError(f"{what} goes from layer {first} to {last}: there are 1 to {most}")
        if steps < 1:
            raise ValueError(f"{what} takes {steps} steps: expected at least 1")


def adam_state(opt_state: optax.OptState) -> Any:
    """Adam's `count`, and its moments `mu` and `nu`, where all steps are Adam's."""
    return next(s for s in jax.tree.leaves(opt_state, is_leaf=_is_adam) if _is_adam(s))


def adam_preconditioner(
    opt_state: optax.OptState, settings: Any, roles: Mapping[str, Role]
) -> Any | None:
    """P of Adam's steps, learning rate * P^-1 * momentum: (1 - beta1^t) (sqrt(v^) + epsilon).

    Where a parameterisation or a group has factors on learning rates, P is divided by them. The
    optimizer has made a step. None where not all steps of all parameters are Adam's, at rates that
    the schedule and the groups give.

    settings: `config.optimizer`.
    """
    row, groups = OPTIMIZERS[settings.name], settings.groups
    frozen = any(factor == 0 for _, factor, _ in groups)
    if not row.adam or frozen or settings.layer_warm_ups:
        return None
    rows = (*groups, ("*", 1.0, 0.0))
    adam = adam_state(opt_state)
    t = adam.count

    def diagonal(path, nu):
        role = roles[parameter_name(path)]
        size = jnp.sqrt(nu / (1 - settings.beta2**t)) + settings.epsilon
        rate = row.rate(role) * _group(rows, parameter_name(path))[1]
        return (1 - settings.beta1**t) * role.share.epsilon * size / rate

    return jax.tree_util.tree_map_with_path(diagonal, adam.nu)


def _is_adam(state: Any) -> bool:
    return isinstance(state, optax.ScaleByAdamState)


def _group(rows: Sequence[Group], name: str) -> Group:
    """The first row that fits a parameter; the last one fits all."""
    return next(row for row in rows if fnmatch.fnmatchcase(name, row[0]))


def _over_epsilon(roles: Roles) -> optax.GradientTransformation:
    """Gradients over their factors on epsilon: steps by second moments have no other size than that
    beside epsilon, but RAdam's first, which are by the momentum alone."""

    def update(path, update, _):
        return times(1 / roles()[parameter_name(path)].share.epsilon, update)

    return optax.stateless(
        lambda updates, params: jax.tree_util.tree_map_with_path(update, updates, params)
    )


def _decay_and_factor(
    rows: Sequence[Group], roles: Roles, row: Optimizer, peak: Any
) -> optax.GradientTransformation:
    """Multiplies each parameter's update by what its parameterisation says, adds its weight decay,
    and multiplies both by its group's factor; but what is independent of the learning rate."""

    def update(path, update, param):
        role = roles()[parameter_name(path)]
        _, factor, decay = _group(rows, parameter_name(path))
        update = times(row.rate(role), update)
        if not (decay and role.decay):
            return factor * update
        if row.independent:
            return factor * update + decay / peak * param
        return factor * (update + decay * param)

    return optax.stateless(
        lambda updates, params: jax.tree_util.tree_map_with_path(update, updates, params)
    )


def _check_rows_are_taken(groups: Sequence[Group], params: Any) -> None:
    names = [parameter_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    rows = (*groups, ("*", 1.0, 0.0))
    for row in groups:
        if row not in [_group(rows, name) for name in names]:
            raise ValueError(
                f"optimizer.groups: {row[0]!r} fits no parameter that an earlier row has not "
                'taken; globs are of whole paths, such as "encoder/*" (`--mode=inspect` lists them)'
            )
