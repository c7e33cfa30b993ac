"""What training can measure inside a model: PROBES is the list, DIAGNOSTICS what goes together."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.inspection import heads, kernels, losses, observed, stream
from transformer_jax.inspection.dependency import divides, own_dependency
from transformer_jax.inspection.heads import read_tokens
from transformer_jax.inspection.observed import Observed, mean_over_queries
from transformer_jax.models.family import Batch, Model, Outputs, Params, Role
from transformer_jax.models.layers.attention_weights import ATTENTION_WEIGHTS
from transformer_jax.models.layers.embeddings import Unprojected
from transformer_jax.models.transformer.config import stacks
from transformer_jax.models.transformer.schemes import Kind, Stack
from transformer_jax.training.losses import Loss, PlaceLoss


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
    def _observed(self) -> tuple[Outputs, dict[Stack, Observed]]:
        return observed.observe(self.model, self.before, self.batch)

    @property
    def outputs(self) -> Outputs:
        """The model's outputs before the step, without dropout."""
        return self._observed[0]

    @property
    def stacks(self) -> dict[Stack, Observed]:
        """What each stack showed in that pass: attention weights, residual stream, branches."""
        return self._observed[1]

    @functools.cached_property
    def moved(self) -> dict[Stack, Observed]:
        """The same with the parameters after the step."""
        return observed.observe(self.model, self.after, self.batch)[1]

    @functools.cached_property
    def gradients(self) -> Params:
        """Of the mean loss of the rows, without dropout, before clipping."""
        return losses.gradients(self.model, self.loss, self.before, self.batch)

    @functools.cached_property
    def change(self) -> Params:
        """By how much the step has changed the parameters."""
        return jax.tree.map(jnp.subtract, self.after, self.before)

    @functools.cached_property
    def updates(self) -> dict[str, kernels.Update]:
        """How far the step went in each layer."""
        return kernels.update(self.before, self.after, self.roles)


# Numbers, each () or one for every sublayer or layer, by the place where they were measured: as
# "decoder" or "decoder/self_attention", "" for the whole model. A pure function, which is compiled.
Measure = Callable[[Step], Mapping[Any, Float[Array, "*n"]]]


def by_stack(measure: Callable[[Observed], Float[Array, "*n"]]) -> Measure:
    """What a function makes of each stack."""
    return lambda step: {stack: measure(activations) for stack, activations in step.stacks.items()}


def by_attention(measure: Callable[[Observed, Kind], Float[Array, "*n"]]) -> Measure:
    """What a function makes of each kind of attention of each stack."""
    return lambda step: {
        f"{stack}/{kind}": measure(activations, kind)
        for stack, activations in step.stacks.items()
        for kind in activations.weights
    }


def _over_queries(name: str) -> Measure:
    return by_attention(
        lambda activations, kind: mean_over_queries(activations, getattr(activations, name)[kind])
    )


def _log_z(step: Step) -> dict[str, Any]:
    if not isinstance(step.outputs.values, Unprojected):
        return {}
    log_z = jax.nn.logsumexp(step.outputs.arrays(), axis=-1)
    *_, last = stacks(step.model.config)
    asked = step.stacks[last].real
    if isinstance(step.loss.function, PlaceLoss):  # which are fewer, of masked tokens and labels
        _, asked = step.loss.function.targets(step.batch)
    return {"": jnp.mean(log_z, where=asked)}


def _by_head(measure: Callable[..., Float[Array, "L H"]], *, tokens: bool = False) -> Measure:
    """The mean of a layer's heads, and the largest head's.

    tokens: whether it reads these, too; then only of stacks that do.
    """

    def measured(step: Step) -> dict[str, Any]:
        heads = {}
        for stack, activations in step.stacks.items():
            try:
                read = (read_tokens(step.batch, stack),) if tokens else ()
            except KeyError:
                continue
            heads[stack] = measure(activations, *read)
        largest = {f"{stack}/largest_head": jnp.max(x, axis=1) for stack, x in heads.items()}
        return {stack: jnp.mean(x, axis=1) for stack, x in heads.items()} | largest

    return measured


def _off_by_one_mass(step: Step) -> Mapping[Any, Float[Array, "*n"]]:
    added = ATTENTION_WEIGHTS[step.model.config.attention_weights].added
    return by_attention(heads.off_by_one_mass)(step) if added else {}


def _peak_share(step: Step) -> dict[str, Any]:
    shares = {stack: stream.peak_share(activations) for stack, activations in step.stacks.items()}
    others = {f"{stack}/others": share for stack, (_, share) in shares.items()}
    return {f"{stack}/first": share for stack, (share, _) in shares.items()} | others


def _of_losses(measure: Callable[[Any, Any], Float[Array, "*n"]]) -> Measure:
    """What a function makes of each token's loss and its place in the text, in its row alone."""

    def measured(step: Step) -> dict[str, Any]:
        each = losses.of_tokens(step.outputs, step.batch, step.loss)
        if each is None:
            return {}
        *_, last = stacks(step.model.config)
        side = "inputs" if last == "encoder" else "targets"
        return {"": measure(each, losses.places(step.batch[f"{side}_segment_ids"]))}

    return measured


def _lens(step: Step) -> dict[str, Any]:
    *_, last = stacks(step.model.config)
    activations = step.stacks[last]
    means = losses.lens(step.model, step.loss, step.before, step.batch, step.outputs, activations)
    return {} if means is None else {last: means}


# What train.diagnostics_every measures, all in one pass.
DIAGNOSTICS: Mapping[str, Measure] = {
    # variance of what each sublayer adds, over real tokens
    "branch_variance": by_stack(observed.branch_variance),
    # the share of its own branch in a sublayer's output, β_ii, as standard deviations (Liu et al.
    # 2020, section 4.1); not where a function that is no norm stands after the sum
    "dependency": lambda step: {
        stack: own_dependency(step.model.config, step.before, stack, activations)
        for stack, activations in step.stacks.items()
        if divides(step.model.config, stack)
    },
    # norm of the loss's gradient with respect to a sublayer's output
    "output_gradient_norm": lambda step: observed.output_gradient_norms(
        step.model, step.loss, step.before, step.batch
    ),
    # mean cosine between the vectors of two tokens of a text, after each sublayer; 1 is rank
    # collapse (Dong et al. 2021)
    "token_similarity": by_stack(observed.token_similarity),
    # norm of the step's update over that of the kernels, for each layer
    "update_ratio": lambda step: {k: change.ratio for k, change in step.updates.items()},
    # root mean square of the step's update of the kernels, for each layer
    "update_rms": lambda step: {k: change.rms for k, change in step.updates.items()},
    # angle between old and new kernels in radians, for each layer
    "update_angle": lambda step: {k: change.angle for k, change in step.updates.items()},
    # mean square change of the stack's output by this update, one number
    "output_change": lambda step: {
        stack: observed.output_change(activations, step.moved[stack])
        for stack, activations in step.stacks.items()
    },
    # of attention: mean entropy in nats, for each layer
    "entropy": _over_queries("entropy"),
    # of attention: the largest logit of all heads and queries, not capped, for each layer
    "largest_logit": by_attention(observed.largest_logit),
    # of attention: mean norm of queries, scaled as their products are, for each layer
    "query_norm": _over_queries("query_norm"),
    # of attention: mean norm of the keys that queries see, for each layer
    "key_norm": _over_queries("key_norm"),
    # mean of log Z, the normaliser of the softmax over tokens or labels, one number, where the loss
    # asks for one: it drifts where nothing holds it (`task.z_loss` does)
    "log_z": _log_z,
}
PROBES: dict[str, Measure] = {
    **DIAGNOSTICS,
    # the largest entry, by size, of the residual stream after each sublayer (Sun et al. 2024,
    # 2402.17762, massive activations)
    "max_activation": by_stack(stream.max_activation),
    # that over a row's median entry, by size
    "absmax_ratio": by_stack(stream.absmax_ratio),
    # the share of a token's squared norm in its largest entry, of texts' first tokens and of others
    "peak_share": _peak_share,
    # the norm of the stream at texts' first tokens over that at others
    "norm_ratio": by_stack(stream.norm_ratio),
    # mean x^4 over squared mean x^2 of the stream; 3 of normal entries
    "kurtosis": by_stack(stream.kurtosis),
    # how many directions the centred stream fills, by the entropy of their variances (Roy and
    # Vetterli 2007)
    "effective_rank": by_stack(stream.effective_rank),
    # the share of self-attention that falls on the first token of the text, over the tokens after
    # it: the mean of a layer's heads, and the largest head's (Xiao et al. 2023, 2309.17453)
    "sink_mass": _by_head(heads.sink_mass),
    # the share of heads and texts in which that is above 0.3 (Gu et al. 2024, 2410.10781)
    "sink_rate": by_stack(heads.sink_rate),
    # of attention with an added logit: the share of the softmax that has it, for each layer
    "off_by_one_mass": _off_by_one_mass,
    # the norm of values at the first tokens of texts over that at others, where a sink is drained
    # below 1: the mean of a layer's heads, and the largest head's
    "value_ratio": _by_head(heads.value_ratio),
    # the share of self-attention that falls on the token before; likewise
    "previous_token": _by_head(heads.previous_token),
    # on earlier copies of a token; likewise
    "duplicate_token": _by_head(heads.duplicate_token, tokens=True),
    # on what followed those (Olsson et al. 2022, 2209.11895, induction heads); likewise
    "prefix_match": _by_head(heads.prefix_match, tokens=True),
    # of each kernel of a stack and each layer: its norm, that of the gradient of the first rows,
    # and that of the step
    "weight_norm": lambda step: kernels.norms(step.before, step.roles),
    "gradient_norm": lambda step: kernels.norms(step.gradients, step.roles),
    "update_norm": lambda step: kernels.norms(step.change, step.roles),
    # likewise, the cosine between the step and that gradient
    "alignment": lambda step: kernels.cosines(step.change, step.gradients, step.roles),
    # likewise, the squared norm over the largest squared singular value
    "stable_rank": lambda step: kernels.stable_ranks(step.before, step.roles),
    # mean loss of tokens at places 0, 1, 2 and 3, 4 to 7, ... of their text
    "loss_by_place": _of_losses(losses.by_place),
    # mean loss in the last eighth of the longest text less that of its second sixteenth (Olsson et
    # al. 2022)
    "in_context_score": _of_losses(losses.in_context_score),
    # mean loss of the logits of the stream after each sublayer, behind the last norm (the logit
    # lens); where logits are made of that alone, with no layer or pooling between
    "lens": _lens,
    # the squared expected gradient, and the trace of the covariance of rows' gradients, whose ratio
    # is the simple noise scale once both are averaged over steps (McCandlish et al. 2018,
    # 1812.06162)
    "noise": lambda step: losses.noise(step.model, step.loss, step.before, step.batch),
}


def diagnose(step: Step) -> dict[str, Float[Array, "*n"]]:
    """All of `DIAGNOSTICS`, by "PLACE/NAME"."""
    return {
        "/".join(filter(None, (place, name))): value
        for name, measure in DIAGNOSTICS.items()
        for place, value in measure(step).items()
    }
