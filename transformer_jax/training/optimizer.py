"""The optimizer: one chain, so one pass over the parameters."""

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import optax

from transformer_jax.models.family import Role
from transformer_jax.models.layers.parameter import times
from transformer_jax.training.schedule import peak_rate
from transformer_jax.training.update_rules import (
    OPTIMIZERS,
    LayerWarmUp,
    OptimizerSettings,
    Roles,
    is_matrix_of_layers,
    map_named,
)


def make_optimizer(
    settings: OptimizerSettings, schedule: optax.Schedule, roles: Roles
) -> optax.GradientTransformation:
    """Clips by the global norm, scales by a row of `OPTIMIZERS`, decays, and sets the rate.

    Adafactor and Muon see the true matrices, (D, H K) of attention, and each layer's on its own.
    Where roles have shares of a parameterisation, these are factors on learning rate and epsilon.
    An independent weight decay is a share of the peak of the settings' own schedule.

    Raises:
      ValueError: when "adam" is asked to decay, for a negative factor or decay; and by the result's
        `init`, for a row that no parameter takes, for layers or steps below 1, or where "muon" has
        nothing to step.
    """
    row, groups = OPTIMIZERS[settings.name], settings.all_groups
    for glob, factor, decay in groups:
        if factor < 0 or decay < 0:
            raise ValueError(
                "optimizer.groups: a factor on the learning rate and a weight decay are 0 or more, "
                f"got {factor} and {decay} for {glob!r}"
            )
        if decay and not row.decays:
            raise ValueError(
                f"optimizer.name={settings.name!r} has no weight decay, got optimizer.weight_decay="
                f"{decay} for {glob!r}: use 'adamw', which decays apart from the gradient"
            )
    norm = settings.clip_norm
    clip = optax.clip_by_global_norm(norm) if norm else optax.identity()
    transform = optax.chain(
        optax.chain(clip, _over_epsilon(roles)),
        row.scale(settings, roles),
        _decay_and_factor(settings, roles),
        optax.scale_by_learning_rate(schedule),
    )
    if settings.weight_decay_power == 2:
        transform = _with_share_left(transform, schedule, peak_rate(settings))
    if settings.layer_warm_ups:
        transform = optax.chain(transform, _warm_layers_up(settings, roles))
    transform = row.around(transform, settings, schedule)
    if any(factor == 0 for _, factor, _ in groups):

        def label(name: str, _) -> str:
            return "frozen" if settings.is_frozen(name) else "trained"

        rules: dict[Any, Any] = {"trained": transform, "frozen": optax.set_to_zero()}
        transform = optax.partition(rules, functools.partial(map_named, label))

    def init(params):
        _check_rows_are_taken(settings, roles)
        if settings.weight_decay_power == 2 and not any(map(is_matrix_of_layers, roles().values())):
            raise ValueError(
                "optimizer.weight_decay_power=2 is of the matrices of scanned layers, of which "
                "this model has none: set it to 1"
            )
        if settings.layer_warm_ups:
            _check_layers(settings.layer_warm_ups, roles)
        return transform.init(params)

    return optax.GradientTransformation(init, transform.update)


def _warm_layers_up(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    """Updates of the rows' layers times s / steps in step s after the burn-in, up to 1."""

    def init(params):
        return optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))

    def update(updates, state, params=None):
        count = jnp.asarray(state.count, jnp.float32)
        s = jnp.maximum(count + 1 - settings.burn_in_steps, 0.0)

        def scaled(name, update):
            if not roles()[name].stacked:
                return update
            factor = jnp.ones(update.shape[0])
            for glob, first, last, steps in settings.layer_warm_ups:
                if fnmatch.fnmatchcase(name, glob):
                    factor = factor.at[first - 1 : last].mul(jnp.minimum(s / steps, 1.0))
            return update * factor.reshape(-1, *[1] * (update.ndim - 1))

        updates = map_named(scaled, updates)
        return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def _check_layers(rows: Sequence[LayerWarmUp], roles: Roles) -> None:
    layers = {path: role.shape[0] for path, role in roles().items() if role.stacked}
    for glob, first, last, steps in rows:
        what = f"optimizer.layer_warm_ups: {(glob, first, last, steps)!r}"
        most = max((n for p, n in layers.items() if fnmatch.fnmatchcase(p, glob)), default=0)
        if not most:
            raise ValueError(f"{what} fits no parameter of layers: `inspect` shows their axes")
        if not 1 <= first <= last <= most:
            raise ValueError(f"{what} goes from layer {first} to {last}: there are 1 to {most}")
        if steps < 1:
            raise ValueError(f"{what} takes {steps} steps: expected at least 1")


def adam_state(opt_state: optax.OptState) -> Any:
    """Adam's `count`, and its moments `mu` and `nu`, where all steps are Adam's."""
    return optax.tree.get(opt_state, "ScaleByAdamState")


def adam_preconditioner(
    opt_state: optax.OptState, settings: OptimizerSettings, roles: Mapping[str, Role]
) -> Any | None:
    """P of Adam's steps, learning rate * P^-1 * momentum: (1 - beta1^t) (sqrt(v^) + epsilon).

    Where a parameterisation or a group has factors on learning rates, P is divided by them. The
    optimizer has made a step. None where not all steps of all parameters are Adam's, at rates that
    the schedule and the groups give.
    """
    row, beta1, beta2 = OPTIMIZERS[settings.name], settings.beta1, settings.beta2
    frozen = any(factor == 0 for _, factor, _ in settings.groups)
    if not row.adam or frozen or settings.layer_warm_ups:
        return None
    adam = adam_state(opt_state)
    t = adam.count

    def diagonal(name, nu):
        role = roles[name]
        size = jnp.sqrt(nu / (1 - beta2**t)) + settings.epsilon
        rate = row.rate(role) * settings.group(name)[1]
        return (1 - beta1**t) * role.share.epsilon * size / rate

    return map_named(diagonal, adam.nu)


def _over_epsilon(roles: Roles) -> optax.GradientTransformation:
    """Gradients over their factors on epsilon: steps by second moments have no other size than that
    beside epsilon, but RAdam's first, which are by the momentum alone."""

    def update(name, update, _):
        return times(1 / roles()[name].share.epsilon, update)

    return optax.stateless(functools.partial(map_named, update))


def _decay_and_factor(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    """Multiplies each parameter's update by what its parameterisation says, adds its weight decay,
    and multiplies both by its group's factor; but what is independent of the learning rate.

    Matrices of layers decay by `share` of it, which `_with_share_left` gives.
    """
    row, peak = OPTIMIZERS[settings.name], peak_rate(settings)

    def decayed(share, name, update, param):
        role = roles()[name]
        _, factor, decay = settings.group(name)
        update = times(row.rate(role), update)
        if not (decay and role.decay):
            return factor * update
        if is_matrix_of_layers(role):
            decay = decay * share
        if row.independent:
            return factor * update + decay / peak * param
        return factor * (update + decay * param)

    def update(updates, state, params=None, *, share=1.0, **_):
        return map_named(functools.partial(decayed, share), updates, params), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _with_share_left(
    chain: optax.GradientTransformation, schedule: optax.Schedule, peak: Any
) -> optax.GradientTransformation:
    """The chain, whose parts learn what share of its peak the schedule has left in this step.

    The last part counts the steps of the schedule.
    """

    def update(updates, state, params=None):
        share = schedule(state[-1].count) / peak
        return chain.update(updates, state, params, share=share)  # pyright: ignore

    return optax.GradientTransformation(chain.init, update)


def _check_rows_are_taken(settings: OptimizerSettings, roles: Roles) -> None:
    rows = [settings.group(name) for name in roles()]
    for row in settings.groups:
        if row not in rows:
            raise ValueError(
                f"optimizer.groups: {row[0]!r} fits no parameter that an earlier row has not "
                'taken; globs are of whole paths, such as "encoder/*" (`inspect` lists them)'
            )
