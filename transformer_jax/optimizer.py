"""The learning rate's schedule and the optimizer: one chain, so one pass over the parameters."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def make_schedule(
    *,
    name: str,
    learning_rate: float,
    warmup_steps: int,
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

    Each grows linearly as s / w while s < w.

    Raises:
      ValueError: for a name that is none of these, or a negative warm-up.
    """
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be 0 (no warm-up) or more, got {warmup_steps}")
    # Without warm-up the peak is the first step.
    peak_step = max(warmup_steps, 1)
    decay_steps = max(steps - peak_step, 1)

    def inverse_sqrt(s):
        return jnp.sqrt(peak_step / s)

    def remaining(s):
        return 1 - jnp.clip((s - peak_step) / decay_steps, 0, 1)

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
        case _:
            raise ValueError(
                f"unknown schedule {name!r}: "
                "expected noam, inverse_sqrt, cosine, linear or constant"
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
) -> optax.GradientTransformation:
    """Clipping by the global norm (0: none), Adam or RAdam, decoupled weight decay, learning rate.

    adam: Kingma and Ba 2014, algorithm 1. adamw: the same, and every step takes learning rate *
    weight_decay * parameter off the parameters that `decays` names (Loshchilov and Hutter 2017).
    radam: Liu et al. 2019, algorithm 2, with the same decay; while the variance is not tractable
    it steps by the momentum alone, as in that algorithm.

    Raises:
      ValueError: for another name, or when "adam" is asked to decay.
    """
    if name == "adam" and weight_decay:
        raise ValueError(
            f'optimizer "adam" has no weight decay, got weight_decay={weight_decay}: '
            'use "adamw", which decays apart from the gradient'
        )
    match name:
        case "adam" | "adamw":
            scale = optax.scale_by_adam(beta1, beta2, epsilon)
        case "radam":
            scale = optax.scale_by_radam(beta1, beta2, epsilon)
        case _:
            raise ValueError(f"unknown optimizer {name!r}: expected adam, adamw or radam")
    return optax.chain(
        optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity(),
        scale,
        optax.add_decayed_weights(weight_decay, mask=decays) if weight_decay else optax.identity(),
        optax.scale_by_learning_rate(schedule),
    )


def decays(params: Any) -> Any:
    """The tree of parameters with True where weight decay applies.

    It does not apply to the scales of norms, Admin's omega and biases, known by the last key of
    the path: "scale", "omega", and whatever ends in "bias".
    """

    def decayed(path: tuple, _) -> bool:
        leaf = path[-1].key
        return not (leaf in ("scale", "omega") or leaf.endswith("bias"))

    return jax.tree_util.tree_map_with_path(decayed, params)
