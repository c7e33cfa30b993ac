"""The largest curvature of the loss, as it is and as Adam's steps meet it.

A step of gradient descent overshoots along a direction whose curvature is above 2 / learning rate;
one of Adam above (2 + 2 beta1) / ((1 - beta1) learning rate), of the Hessian over the
preconditioner (Cohen et al. 2022, 2207.14484).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from transformer_jax.devices.mesh import constrain
from transformer_jax.inspection.losses import mean_loss
from transformer_jax.models.family import Batch
from transformer_jax.run import Run
from transformer_jax.training.optimizer import adam_preconditioner
from transformer_jax.training.state import State

ITERATIONS = 25


def threshold(beta1: float) -> float:
    """The learning rate * preconditioned sharpness beyond which Adam's steps overshoot."""
    return (2 + 2 * beta1) / (1 - beta1)


def lanczos(
    product: Callable[[Float[Array, "P"]], Float[Array, "P"]],
    start: Float[Array, "P"],
    iterations: int = ITERATIONS,
) -> tuple[Float[Array, ""], Float[Array, "P"]]:
    """The largest eigenvalue of a symmetric matrix and its unit vector.

    Each vector is made orthogonal to all before it, twice, so that rounding brings no copies of
    eigenvalues (Golub and Van Loan 2013, section 10.3).

    Args:
      product: of the matrix with a vector.
      start: not orthogonal to the eigenvector that is sought.
      iterations: how many products; the memory of as many vectors is needed.
    """
    iterations = min(iterations, start.size)

    def step(number, carry):
        basis, diagonal, beside = carry
        vector = basis[number]
        new = product(vector)
        diagonal = diagonal.at[number].set(new @ vector)
        for _ in range(2):
            new = new - basis.T @ (basis @ new)
        norm = jnp.linalg.norm(new)
        # What is left of an invariant space is rounding.
        outside = norm > 1e-6 * jnp.max(jnp.abs(diagonal))
        new, norm = jnp.where(outside, new / norm, 0.0), jnp.where(outside, norm, 0.0)
        return basis.at[number + 1].set(new, mode="drop"), diagonal, beside.at[number].set(norm)

    basis = jnp.zeros((iterations, start.size)).at[0].set(start / jnp.linalg.norm(start))
    zeros = jnp.zeros(iterations)
    basis, diagonal, beside = jax.lax.fori_loop(0, iterations, step, (basis, zeros, zeros))
    small = jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
    values, vectors = jnp.linalg.eigh(small)
    return values[-1], vectors[:, -1] @ basis


def _sharpness(
    loss: Callable[[PyTree], Float[Array, ""]],
    params: PyTree,
    start: Float[Array, "P"],
    preconditioner: PyTree | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """The largest eigenvalue of the loss's Hessian H, or of P^-1 H; P is given by its diagonal.

    With it, the squared cosine of its vector and the gradient, and the gradient's norm. P^-1/2 H
    P^-1/2 has the eigenvalues of P^-1 H; its vector and the cosine are in the scaled parameters.
    """
    flat, restore = ravel_pytree(params)
    scale = jnp.ones_like(flat)
    if preconditioner is not None:
        scale = ravel_pytree(preconditioner)[0] ** -0.5

    gradient, along = jax.linearize(jax.grad(lambda flat: loss(restore(flat))), flat)
    value, vector = lanczos(lambda vector: scale * along(scale * vector), start)
    at = scale * gradient
    alignment = (vector @ at) ** 2 / jnp.maximum(at @ at, 1e-30)
    return value, alignment, jnp.linalg.norm(gradient)


def measure(
    loss: Callable[[PyTree], Float[Array, ""]],
    params: PyTree,
    preconditioner: PyTree | None,
    clip_norm: float,
) -> dict[str, Float[Array, ""]]:
    """What training logs of the parameters after a step.

    "sharpness", "gradient_alignment", and where there is a preconditioner
    "preconditioned_sharpness". Where the gradient is clipped to a share of itself, so is H, since
    P is of what was clipped: Adam's steps are those of the whole gradient and its own P.

    Args:
      loss: the mean loss of the step's batch, without dropout.
      preconditioner: the diagonal of P.
      clip_norm: the largest norm of the gradient that the optimizer takes (0: any).
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    start = jax.random.normal(jax.random.key(0), (size,))
    value, alignment, gradient_norm = _sharpness(loss, params, start)
    measured = {"sharpness": value, "gradient_alignment": alignment}
    if preconditioner is not None:
        met, *_ = _sharpness(loss, params, start, preconditioner)
        clipped = jnp.minimum(1, clip_norm / gradient_norm) if clip_norm else 1
        measured["preconditioned_sharpness"] = clipped * met
    return jax.tree.map(constrain, measured)


def make_sharpness(run: Run) -> Callable[[State, Batch], dict[str, Float[Array, ""]]]:
    """Compiles (state after a step, its batch) -> `measure` of a run."""
    # Kernels of attention have no second derivative.
    model = run.model.clone(config=run.model.config.plain())

    @jax.jit
    def compiled(state: State, batch: Batch) -> dict[str, Float[Array, ""]]:
        def loss(params: PyTree) -> Float[Array, ""]:
            return mean_loss(model, run.loss, params, batch)

        preconditioner = adam_preconditioner(state.opt_state, run.optimizer, run.roles)
        return measure(loss, state.params, preconditioner, run.optimizer.clip_norm)

    return compiled
