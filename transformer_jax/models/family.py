"""What a family of models is: how one is configured, built, initialised and called."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
from jaxtyping import Array, Float, Key, PyTree, Shaped

from transformer_jax.models.layers.embeddings import Unprojected
from transformer_jax.models.layers.observe import SUMS
from transformer_jax.models.layers.parameter import Boxed, Share

# The columns of a batch by their names, rows first
Batch = dict[str, Shaped[Array, "B ..."]]
Params = PyTree[Float[Array, "..."]]
# name -> (sum, weight): what adds up over batches, devices and steps
Sums = dict[str, tuple[Float[Array, ""], Float[Array, ""]]]


class Outputs(NamedTuple):
    """What a model says of a batch.

    Attributes:
      values: what its head gives, which the task's loss reads: `Unprojected` logits, for instance.
      sums: what its layers add to what a task reports (see `layers.observe.add_sum`).
    """

    values: Any
    sums: Sums = {}

    def arrays(self) -> Any:
        """The values with all products made: float32 logits (B, T, V or C) in place of factors."""

        def product(value: Any) -> Any:
            return value.logits() if isinstance(value, Unprojected) else value

        return jax.tree.map(
            product, self.values, is_leaf=lambda value: isinstance(value, Unprojected)
        )


class Model(Protocol):
    """A Flax module with a frozen config.

    `outputs(batch, deterministic=)` are `Outputs`, of which a call gives `arrays`; `config.sums`
    names their sums. Where the batches before matter, the collection "memory" holds what
    `Family.memory` describes. A model that decodes also has `start(batch, max_length)` -> (first
    tokens, context, cache) and `step(context, cache, tokens, index, ancestors)` -> (logits, cache),
    as `evaluation.search` asks for it; `Cache.enlarged` has room for so many tokens more. One that
    embeds texts has `embed(batch)` -> a vector at each token.
    """

    @property
    def config(self) -> Any: ...

    @property
    def apply(self) -> Callable[..., Any]: ...

    @property
    def clone(self) -> Callable[..., Any]: ...

    def __call__(self, batch: Batch, *, deterministic: bool) -> PyTree[Array]: ...


def _draws(model: Any, key: Key[Array, ""], batch: Batch) -> PyTree[Any]:
    return model.init(key, batch, deterministic=True)["params"]


@dataclasses.dataclass(frozen=True)
class Family:
    """One row of FAMILIES.

    Attributes:
      config: the frozen dataclass that a model is made from, checked when made.
      model: config -> the model of its architecture.
      init: (model, key, batch) -> the initial parameters, boxed by `parameter`; by default as the
        modules draw them.
      memory: (config, rows, length or None) -> the shapes of what a model keeps of one batch for
        the next, zeros at first, rows as the first axis; () where it keeps nothing. `length`: as of
        evaluate.memory_length.
      memory_key: the key of `config.model` that gives its models memory where it is true, if any.
      inspected: whether diagnostics and replay know what its models show of their inside.
    """

    config: type[Any]
    model: Callable[[Any], Model]
    init: Callable[[Any, Key[Array, ""], Batch], PyTree[Any]] = _draws
    memory: Callable[[Any, int, int | None], Any] = lambda config, rows, length: ()
    memory_key: str | None = None
    inspected: bool = False

    @property
    def reads(self) -> set[str]:
        """The keys of `config.model` that its models read: fields, and what these fall back to."""
        names = {field.name for field in dataclasses.fields(self.config)}
        general = {"num_encoder_layers": "num_layers", "encoder_residual": "residual"}
        return names | {key for name, key in general.items() if name in names}


def with_memory(
    model: Model, params: Params, batch: Batch, rng: Key[Array, ""] | None, memory: Any
) -> tuple[Outputs, Any]:
    """The model's outputs, and what it keeps of this batch for the next.

    Args:
      rng: the key of dropout; None is deterministic.
      memory: what it kept of the batch before, as `Family.memory` describes it.
    """
    outputs, changed = model.apply(
        {"params": params, "memory": memory} if memory else {"params": params},
        batch,
        deterministic=rng is None,
        rngs={} if rng is None else {"dropout": rng},
        method="outputs",
        mutable=["memory", SUMS],
    )
    return outputs, changed.get("memory", ())


class Role(NamedTuple):
    """What others than the model have to know of a parameter.

    Attributes:
      matrix: how many of the last axes are a matrix's inputs and its outputs; None for a vector.
      decay: whether weight decay applies.
      stacked: whether the first axis counts layers.
      factor: whether the model computes at 1 what one without this parameter does.
      share: what the model's parameterisation makes of it.
      axes, shape: the logical name and the size of each dimension.
    """

    matrix: tuple[int, int] | None
    decay: bool
    stacked: bool
    factor: bool = False
    share: Share = Share()
    axes: tuple[str | None, ...] = ()
    shape: tuple[int, ...] = ()


def parameter_name(path: tuple[Any, ...]) -> str:
    """As "encoder/self_attention/query": the keys on the way to a leaf of the parameters."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def roles(boxed: PyTree[Any]) -> dict[str, Role]:
    """The role of each parameter by its path, as "encoder/self_attention/query".

    boxed: what `Family.init` returns, or its abstract shapes.
    """
    leaves = jax.tree_util.tree_leaves_with_path(
        boxed, is_leaf=lambda leaf: isinstance(leaf, Boxed)
    )
    return {
        parameter_name(path): Role(
            matrix=box.matrix,
            decay=box.decay,
            stacked="layers" in box.names,
            factor=box.factor,
            share=box.share,
            axes=box.names,
            shape=box.value.shape,
        )
        for path, box in leaves
    }
