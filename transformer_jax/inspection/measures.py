"""What training can measure inside a model: PROBES is the list, DIAGNOSTICS what goes together."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.inspection import observed
from transformer_jax.inspection.dependency import own_dependency
from transformer_jax.inspection.observed import Observed, mean_over_queries
from transformer_jax.inspection.steps import Update, update
from transformer_jax.models.family import Batch, Model, Outputs, Params, Role
from transformer_jax.models.layers.embeddings import Unprojected
from transformer_jax.models.transformer.config import stacks
from transformer_jax.models.transformer.schemes import Kind, Stack
from transformer_jax.training.losses import Loss


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of training, as a probe sees it; what no probe reads is never computed.

    Attributes:
      loss: (outputs, batch) -> (loss sum, weight, sums).
      roles: what each parameter is, by its path.
      before, after: the parameters.
      batch: its first rows.
    """

    model: Model
    loss: Loss
    roles: Mapping[str, Role]
    before: Params
    after: Params
    batch: Batch

    @functools.cached_property
    def _seen(self) -> tuple[Outputs, dict[Stack, Observed]]:
        return observed.observe(self.model, self.before, self.batch)

    @property
    def outputs(self) -> Outputs:
        """The model's outputs before the step, without dropout."""
        return self._seen[0]

    @property
    def stacks(self) -> dict[Stack, Observed]:
        """What each stack showed in that pass: attention weights, residual stream, branches."""
        return self._seen[1]

    @functools.cached_property
    def moved(self) -> dict[Stack, Observed]:
        """The same with the parameters after the step."""
        return observed.observe(self.model, self.after, self.batch)[1]

    @functools.cached_property
    def updates(self) -> dict[str, Update]:
        """How far the step went in each layer."""
        return update(self.before, self.after, self.roles)


# Numbers, each () or one for every sublayer or layer, by the place where they were measured: as
# "decoder" or "decoder/self_attention", "" for the whole model. A pure function, which is compiled.
Measure = Callable[[Step], Mapping[Any, Float[Array, "*n"]]]


def by_stack(measure: Callable[[Observed], Float[Array, "*n"]]) -> Measure:
    """What a function makes of each stack."""
    return lambda step: {stack: measure(seen) for stack, seen in step.stacks.items()}


def by_attention(measure: Callable[[Observed, Kind], Float[Array, "*n"]]) -> Measure:
    """What a function makes of each kind of attention of each stack."""
    return lambda step: {
        f"{stack}/{kind}": measure(seen, kind)
        for stack, seen in step.stacks.items()
        for kind in seen.weights
    }


def _over_queries(name: str) -> Measure:
    return by_attention(lambda seen, kind: mean_over_queries(seen, getattr(seen, name)[kind]))


def _log_z(step: Step) -> dict[str, Any]:
    if not isinstance(step.outputs.values, Unprojected):
        return {}
    log_z = jax.nn.logsumexp(step.outputs.arrays(), axis=-1)
    *_, last = stacks(step.model.config)
    return {"": jnp.mean(log_z, where=step.stacks[last].real)}


def _sink_mass(step: Step) -> dict[str, Any]:
    masses = {stack: observed.sink_mass(seen) for stack, seen in step.stacks.items()}
    largest = {f"{stack}/largest_head": jnp.max(mass, axis=1) for stack, mass in masses.items()}
    return {stack: jnp.mean(mass, axis=1) for stack, mass in masses.items()} | largest


# What train.diagnostics_every measures, all in one pass.
DIAGNOSTICS: Mapping[str, Measure] = {
    # variance of what each sublayer adds, over real tokens
    "branch_variance": by_stack(observed.branch_variance),
    # the share of its own branch in a sublayer's output, β_ii, as standard deviations (Liu et al.
    # 2020, section 4.1)
    "dependency": lambda step: {
        stack: own_dependency(step.model.config, step.before, stack, seen)
        for stack, seen in step.stacks.items()
    },
    # norm of the loss's gradient with respect to a sublayer's output
    "output_gradient_norm": lambda step: observed.output_gradient_norms(
        step.model, step.loss, step.before, step.batch
    ),
    # mean cosine between the vectors of two tokens of a text, after each sublayer; 1 is rank
    # collapse (Dong et al. 2021)
    "token_similarity": by_stack(observed.token_similarity),
    # norm of the step's update over that of the kernels, for each layer
    "update_ratio": lambda step: {k: own.ratio for k, own in step.updates.items()},
    # root mean square of the step's update of the kernels, for each layer
    "update_rms": lambda step: {k: own.rms for k, own in step.updates.items()},
    # angle between old and new kernels in radians, for each layer
    "update_angle": lambda step: {k: own.angle for k, own in step.updates.items()},
    # mean square change of the stack's output by this update, one number
    "output_change": lambda step: {
        stack: observed.output_change(seen, step.moved[stack])
        for stack, seen in step.stacks.items()
    },
    # of attention: mean entropy in nats, for each layer
    "entropy": _over_queries("entropy"),
    # of attention: the largest logit of all heads and queries, not capped, for each layer
    "largest_logit": by_attention(observed.largest_logit),
    # of attention: mean norm of queries, scaled as their products are, for each layer
    "query_norm": _over_queries("query_norm"),
    # of attention: mean norm of the keys that queries see, for each layer
    "key_norm": _over_queries("key_norm"),
    # mean of log Z, the normaliser of the softmax over tokens or labels, one number: it drifts
    # where nothing holds it (`task.z_loss` does)
    "log_z": _log_z,
}
PROBES: dict[str, Measure] = {
    **DIAGNOSTICS,
    # the largest entry, by size, of the residual stream after each sublayer (Sun et al. 2024,
    # 2402.17762, massive activations)
    "max_activation": by_stack(observed.max_activation),
    # the share of self-attention that falls on the first token of the text, over the tokens after
    # it: the mean of a layer's heads, and the largest head's (Xiao et al. 2023, 2309.17453)
    "sink_mass": _sink_mass,
}
