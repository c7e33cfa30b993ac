"""How gradients become steps, before the learning rate: OPTIMIZERS is the list."""

import dataclasses
import fnmatch
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from optax import contrib

from transformer_jax.models.family import Role, parameter_name
from transformer_jax.training.soap import scale_by_soap

# What each parameter is, by its path; asked for only when a state is made or updated.
Roles = Callable[[], Mapping[str, Role]]


# A glob of parameter paths, a factor on the learning rate, and the weight decay.
Group = tuple[str, float, float]
# A glob of parameter paths, the first and the last of some layers, from 1, and steps.
LayerWarmUp = tuple[str, int, int, int]
# Of AdEMAMix, as in its authors' README: the factor on the slow momentum, and its half-life as a
# share of the steps (that of 0.9999 in 256,000).
_SLOW_SHARE, SLOW_HALF_LIFE = 8.0, 0.027


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """`config.optimizer`, and the two numbers that its schedule depends on in addition.

    Attributes:
      name, schedule, decay_shape: keys of `OPTIMIZERS`, `SCHEDULES` and `DECAY_SHAPES`.
      learning_rate: may be traced.
      weight_decay_power: of what the schedule has left of its peak, by which matrices of layers
        decay; all else that does decays as with 1.
      clip_norm: the largest global norm of a gradient (0: any).
      groups: the first row whose glob fits a parameter's path, such as "encoder/feed_forward/up"
        ("*" also stands for "/"), gives a factor on its learning rate and its weight decay, where
        its role lets it decay. A factor of 0 freezes: such a parameter has no optimizer state and
        no gradient, so no part in the global norm.
      layer_warm_ups: each row gives the layers of its parameters a linear warm-up of their own,
        in addition to the schedule's, of which their rates are s / steps in step s.
      burn_in_steps: those at a rate of 0, after which the schedule and layers begin to warm up.
      steps: those of the training.
      width: what the factor of a schedule by width is made of.
    """

    name: str
    schedule: str
    learning_rate: Any
    final_learning_rate: float
    warmup_steps: int
    burn_in_steps: int
    decay_steps: int
    decay_shape: str
    stable_steps: int
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    weight_decay_power: int
    clip_norm: float
    groups: tuple[Group, ...]
    layer_warm_ups: tuple[LayerWarmUp, ...]
    steps: int
    width: int

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """The groups, of which the last one takes all parameters that are left."""
        return (*self.groups, ("*", 1.0, self.weight_decay))

    def group(self, name: str) -> Group:
        """The first group that a parameter, by its path, fits into."""
        return next(group for group in self.all_groups if fnmatch.fnmatchcase(name, group[0]))

    def is_frozen(self, name: str) -> bool:
        """Whether a parameter, by its path, keeps its value."""
        return self.group(name)[1] == 0


def _adam(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    return optax.scale_by_adam(settings.beta1, settings.beta2, settings.epsilon)


def _gi_adam(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    adam = optax.scale_by_adam(settings.beta1, settings.beta2, settings.epsilon)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        squares = jax.tree.map(jnp.square, updates)
        begun = optax.tree.where(state.count == 0, squares, state.nu)
        return adam.update(updates, state._replace(nu=begun))

    # Checkpoints of this rule have a second count, which nothing reads any more.
    unused = optax.scale_by_schedule(lambda count: 1.0)
    return optax.chain(optax.GradientTransformation(adam.init, update), unused)


def _stable_adam(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    adam = optax.scale_by_adam(settings.beta1, settings.beta2, settings.epsilon)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        directions, state = adam.update(updates, state, params)
        correction = 1 - settings.beta2**state.count

        def clipped(name, direction, gradient, second):
            """Over `rms_ratio`, where that exceeds 1."""
            role = roles()[name]
            rms = rms_ratio(role, gradient, second / correction, settings.epsilon)
            return (_unfold(role, direction) / jnp.maximum(1.0, rms)).reshape(direction.shape)

        return map_named(clipped, directions, updates, state.nu), state

    return optax.GradientTransformation(adam.init, update)


def _lamb(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    ratio = _each_matrix(optax.scale_by_trust_ratio(), roles)
    return optax.chain(_adam(settings, roles), ratio)


def _radam(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    return optax.scale_by_radam(settings.beta1, settings.beta2, settings.epsilon)


def _lion(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    return optax.scale_by_lion(settings.beta1, settings.beta2)


def _adafactor(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    """All of it but the relative step size."""
    transform = optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )
    return _each_matrix(transform, roles)


def _signum(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    return optax.chain(optax.trace(settings.beta1), optax.scale_by_sign())


def _ademamix(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    """The slow momentum's share and half-life grow up to the last step, both on a line."""
    first, last = -1 / jnp.log2(settings.beta1), SLOW_HALF_LIFE * settings.steps

    def done(count: Any) -> Any:
        return jnp.minimum((count + 1) / settings.steps, 1.0)

    return contrib.scale_by_ademamix(
        settings.beta1,
        settings.beta2,
        lambda count: 0.5 ** (1 / (first + (last - first) * done(count))),
        lambda count: _SLOW_SHARE * done(count),
        settings.epsilon,
    )


def _adam_without_momentum(
    settings: OptimizerSettings, roles: Roles
) -> optax.GradientTransformation:
    return optax.scale_by_rms(
        settings.beta2, settings.epsilon, eps_in_sqrt=False, bias_correction=True
    )


def _schedule_free(
    transform: optax.GradientTransformation, settings: OptimizerSettings, schedule: optax.Schedule
) -> optax.GradientTransformation:
    if not settings.beta1:
        raise ValueError(
            "optimizer.beta1=0 leaves 'schedule_free' no share of the average in the parameters "
            "that it trains: make it more, or use 'adamw'"
        )

    # What steps weigh by is the paper's rate, which holds Adam's correction; Optax counts from 1.
    def rate(count: Any) -> Any:
        return schedule(count - 1) * jnp.sqrt(1 - settings.beta2**count)

    return contrib.schedule_free(transform, rate, settings.beta1)


def _schedule_free_average(params: Any, opt_state: optax.OptState) -> Any:
    """x of y = beta1 x + (1 - beta1) z; frozen parameters have no z."""
    state: Any = optax.tree.get(opt_state, "ScheduleFreeState")

    def average(y: jax.Array, z: Any) -> jax.Array:
        return y if isinstance(z, optax.MaskedNode) else (y - (1 - state.b1) * z) / state.b1

    return jax.tree.map(average, params, state.z)


def _soap(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    soap = scale_by_soap(settings.beta1, settings.beta2, settings.epsilon)
    unfold = functools.partial(map_named, lambda name, x: _unfold(roles()[name], x))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, state = soap.update(unfold(updates), state)
        return jax.tree.map(lambda step, x: step.reshape(x.shape), steps, updates), state

    matrices = optax.GradientTransformation(lambda params: soap.init(unfold(params)), update)
    return _or_adam("soap", matrices, lambda role: role.matrix is not None, settings, roles)


def _muon(settings: OptimizerSettings, roles: Roles) -> optax.GradientTransformation:
    def to_adams_size(update: Any, _) -> Any:
        # Orthogonal matrices have a root mean square of 1 / sqrt(longer side).
        return 0.2 * math.sqrt(max(update.shape)) * update

    dimensions = contrib.MuonDimensionNumbers(0, 1)
    one_matrix = optax.chain(
        contrib.scale_by_muon(beta=settings.beta1, weight_dimension_numbers=dimensions),
        optax.stateless(to_adams_size),
    )
    matrices = _each_matrix(one_matrix, roles)
    transform = _or_adam("muon", matrices, is_matrix_of_layers, settings, roles)

    def init(params: Any) -> Any:
        if not any(map(is_matrix_of_layers, roles().values())):
            raise ValueError(
                'optimizer "muon" steps the matrices of scanned layers, of which this model has '
                'none: use "adam" or "adamw"'
            )
        return transform.init(params)

    return optax.GradientTransformation(init, transform.update)


def _or_adam(
    name: str,
    transform: optax.GradientTransformation,
    takes: Callable[[Role], bool],
    settings: OptimizerSettings,
    roles: Roles,
) -> optax.GradientTransformation:
    """`transform` on the parameters whose role it takes, Adam on all others.

    name: of its state in a checkpoint.
    """

    def label(path: str, _) -> str:
        return name if takes(roles()[path]) else "adam"

    rules: dict[Any, Any] = {name: transform, "adam": _adam(settings, roles)}
    return optax.partition(rules, functools.partial(map_named, label))


def _by_entry(role: Role) -> float:
    """Steps of Adam's size in each entry."""
    return role.share.learning_rate


def _by_size(role: Role) -> float:
    """Steps in proportion to the parameter."""
    return role.share.learning_rate / role.share.deviation


def _by_spectrum(role: Role) -> float:
    """Orthogonal matrices of Adam's size in each entry, whose norm grows as the root of the width;
    that of Adam's grows as the width."""
    steps = role.share.learning_rate
    return steps * role.share.width**0.5 if is_matrix_of_layers(role) else steps


def is_matrix_of_layers(role: Role) -> bool:
    """Whether it is that of a matrix of each scanned layer, so of no embedding and no head."""
    return role.matrix is not None and role.stacked


Around = Callable[
    [optax.GradientTransformation, OptimizerSettings, optax.Schedule], optax.GradientTransformation
]
Average = Callable[[Any, optax.OptState], Any]


class Optimizer(NamedTuple):
    """One row.

    Attributes:
      decays: whether it takes a weight decay, apart from the gradient.
      independent: whether what decays does not depend on the peak of the learning rate, but on its
        schedule alone.
      adam: whether all steps are Adam's, momentum over a diagonal that the second moments give.
      by_steps: whether they depend on how many steps the training has.
      one_device: whether they hang on a mesh of several, where they are refused.
      reads: which settings its steps depend on, besides those that the chain around it reads.
      parameterized: whether it is known by which powers of the width the steps grow, so that they
        go with a parameterisation.
      rate: what that makes of a parameter's learning rate.
      around: what it makes of the whole chain, of which `scale` is a part, with the schedule.
      average: (parameters, state) -> those to score in place of the ones that are trained, where
        its steps keep such an average.
    """

    scale: Callable[[OptimizerSettings, Roles], optax.GradientTransformation]
    decays: bool = True
    independent: bool = False
    adam: bool = False
    by_steps: bool = False
    one_device: bool = False
    parameterized: bool = True
    reads: tuple[str, ...] = ("beta1", "beta2", "epsilon")
    rate: Callable[[Role], float] = _by_entry
    around: Around = lambda transform, settings, schedule: transform
    average: Average | None = None


OPTIMIZERS = {
    # Kingma and Ba 2014, algorithm 1
    "adam": Optimizer(_adam, decays=False, adam=True),
    # Adam, and every step takes learning rate * weight_decay * parameter off the parameters whose
    # role says so (Loshchilov and Hutter 2017); so do all that follow
    "adamw": Optimizer(_adam, adam=True),
    # Adam, and every step takes weight_decay * parameter off, times what the schedule has left of
    # its peak (Loshchilov and Hutter 2017, algorithm 2; Wortsman et al. 2023, 2309.14322, 3.2)
    "adamw_independent": Optimizer(_adam, independent=True, adam=True),
    # Adam whose second moment begins as the first gradient's square, and is corrected all the same
    # (Kalra and Barkeshli 2024, 2406.09405, GI-Adam, as their code, which takes an extra batch)
    "gi_adam": Optimizer(_gi_adam, adam=True),
    # Wortsman et al. 2023 (2304.13013), algorithm 2: AdamW, whose update of a matrix is smaller
    # where its second moments have not seen gradients as large as these; what decays is not
    "stable_adamw": Optimizer(_stable_adam),
    # You et al. 2019 (1904.00962), algorithm 2, with decoupled decay: the step of each matrix and
    # vector is a share of its norm, which is the learning rate
    "lamb": Optimizer(_lamb, rate=_by_size),
    # PyTorch's: Liu et al. 2019 (1908.03265), algorithm 2, which steps by the momentum alone while
    # the variance is not tractable, as it is from rho = 5 on (4 in the paper)
    "radam": Optimizer(_radam),
    # Shazeer and Stern 2018, algorithm 4, where the schedule is the relative step size rho. Second
    # moments of matrices of at least 128 x 128 are factored
    "adafactor": Optimizer(_adafactor, reads=(), rate=_by_size),
    # Chen et al. 2023, algorithm 2
    "lion": Optimizer(_lion, reads=("beta1", "beta2")),
    # Bernstein et al. 2018 (1802.04434), Signum: the sign of the momentum
    "signum": Optimizer(_signum, reads=("beta1",)),
    # The gradient itself, without momentum
    "sgd": Optimizer(lambda settings, roles: optax.identity(), reads=()),
    # Pagliardini et al. 2024 (2409.03137), algorithm 1: Adam with a second, slow momentum, whose
    # factor and half-life warm up over all steps: the authors' run of 256,000, shrunk to this one
    "ademamix": Optimizer(_ademamix, by_steps=True),
    # Defazio et al. 2024 (2405.15682), algorithm 1, on AdamW: gradients are taken between what
    # Adam's steps without momentum reach (1 - beta1) and the average of that (beta1), which is
    # scored. Steps weigh by the square of the largest learning rate up to them
    "schedule_free": Optimizer(
        _adam_without_momentum, around=_schedule_free, average=_schedule_free_average
    ),
    # Vyas et al. 2024 (2409.11321) for matrices, also of embeddings and heads; Adam for vectors.
    # Steps that are Adam's in the eigenbases have a norm that grows more slowly with the width
    "soap": Optimizer(_soap, one_device=True, parameterized=False),
    # Jordan et al. 2024 with Nesterov momentum beta1 (corrected as in Nadam, by Optax alone), for
    # the matrices of stacks; Adam for all else. Steps are scaled by 0.2 sqrt(longer side) to the
    # size of Adam's (Liu et al. 2025, equation 4), so that one learning rate serves both
    "muon": Optimizer(_muon, rate=_by_spectrum),
}


def rms_ratio(
    role: Role, gradient: jax.Array, second: jax.Array, epsilon: float
) -> Float[Array, "layers ..."]:
    """The root mean square of gradient / sqrt(second moment) of each layer's matrix or vector.

    The axes after the layers' are 1. It is about 1 where the gradients of some steps are alike in
    size; up to 1 / sqrt(1 - beta2) where those before were 0 (Wortsman et al. 2023, 2304.13013).

    Args:
      second: with this gradient in it, and without its bias; epsilon^2 at least is what counts.
    """
    ratios = _unfold(role, jnp.square(gradient) / jnp.maximum(second, epsilon**2))
    return jnp.sqrt(jnp.mean(ratios, axis=range(1, ratios.ndim), keepdims=True))


def map_named(f: Callable[..., Any], *trees: Any) -> Any:
    """The tree with f(path, as "embedding/table", *leaves) in place of each leaf."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: f(parameter_name(path), *leaves), *trees
    )


def _each_matrix(
    transform: optax.GradientTransformation, roles: Roles
) -> optax.GradientTransformation:
    """`transform` on each matrix and each vector of each layer, as if it were all there is."""

    def unfold(name, array):
        return _unfold(roles()[name], array)

    def init(params):
        return map_named(lambda name, x: jax.vmap(transform.init)(unfold(name, x)), params)

    def update(updates, state, params=None):
        def one(name, update, state, param):
            matrices: Any = unfold(name, update)
            matrices, state = jax.vmap(transform.update)(matrices, state, unfold(name, param))
            return matrices.reshape(update.shape), state

        structure = jax.tree.structure(updates)
        pairs = structure.flatten_up_to(map_named(one, updates, state, params))
        return tuple(structure.unflatten([pair[i] for pair in pairs]) for i in (0, 1))

    return optax.GradientTransformation(init, update)


def _unfold(role: Role, array: jax.Array) -> jax.Array:
    """(layers, inputs, outputs) of a parameter of matrices, (layers, outputs) of one of vectors.

    Numbers of which a stack has one a layer are one vector.
    """
    shape = array.shape[int(role.stacked and array.ndim > 1) :]
    if role.matrix is None:
        return array.reshape(-1, math.prod(shape))
    inputs, _ = role.matrix
    return array.reshape(-1, math.prod(shape[:inputs]), math.prod(shape[inputs:]))
