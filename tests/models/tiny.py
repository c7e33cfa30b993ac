"""Tiny configurations, batches and parameters that the tests of the models share."""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.defaults import settings
from tests.stepwise import stepwise
from transformer_jax.models import FAMILIES, family
from transformer_jax.models.layers import positions
from transformer_jax.models.recurrent.config import RECURRENCES, RecurrentConfig
from transformer_jax.models.transformer import schemes
from transformer_jax.models.transformer.config import TransformerConfig

# Of float32 sums in another order.
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)

SCHEMES = tuple(schemes.SCHEMES)
SIZES: dict[str, Any] = dict(
    vocab_size=23,
    bos_id=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_model=16,
    num_heads=2,
    head_dim=8,
    d_ff=24,
    max_length=12,
    dropout_rate=0.0,
    embedding_dropout_rate=0.0,
    inputs="tokens",
    grid=(0, 0),
    head="tokens",
    num_labels=0,
    num_queries=5,
    context_length=None,
)
SOURCE_LENGTH, TARGET_LENGTH = 9, 8
# The shapes with their heads, for `config`.
SHAPES: dict[str, dict[str, Any]] = {
    "encoder_decoder": dict(architecture="encoder_decoder"),
    "decoder_only": dict(architecture="decoder_only"),
    "masked_tokens": dict(architecture="encoder_only", head="masked_tokens"),
    "mean_classes": dict(architecture="encoder_only", head="classes", num_labels=5),
    "first_classes": dict(
        architecture="encoder_only", head="classes", num_labels=5, pooling="first"
    ),
    "tags": dict(architecture="encoder_only", head="tags", num_labels=5),
}
HEADS = ("masked_tokens", "mean_classes", "first_classes", "tags")
# But for those by rows and columns, which are of images.
POSITIONS = tuple(name for name, row in positions.POSITIONS.items() if not row.places)


def with_positions(choices: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The choices with kinds of positions, which take turns where a choice names none; an additive
    score has no products that some of them add to."""
    kinds = itertools.cycle((name, positions.POSITIONS[name]) for name in POSITIONS)
    for choice in choices:
        additive = choice.get("attention_score") == "additive"
        if "positions" not in choice:
            fitting = (name for name, row in kinds if not (additive and row.distances))
            choice = choice | {"positions": next(fitting)}
        yield choice


def _turns():
    heads = itertools.cycle(HEADS)
    for number, residual in enumerate(SCHEMES):
        shape = ("encoder_decoder", "decoder_only", None)[number % 3] or next(heads)
        yield shape, residual, POSITIONS[number // 3 % len(POSITIONS)]


# Every scheme once: shapes and kinds of positions take turns.
TURNS = list(_turns())


def config(residual: Any = "post_ln", **changes: Any) -> TransformerConfig:
    """The tiny model with changes; `residual` is of both stacks."""
    fields: dict[str, Any] = dict(encoder_residual=residual, decoder_residual=residual)
    if changes.get("architecture") == "encoder_only":
        fields["head"] = "masked_tokens"
    if changes.get("architecture") == "encoder_set":
        fields |= dict(head="boxes", num_labels=3)
    return settings(TransformerConfig, "model", **(SIZES | fields | changes))


def recurrent(recurrence: str, architecture: str = "", **changes: Any) -> RecurrentConfig:
    """A tiny recurrent model, of its first architecture unless one is named."""
    architecture = architecture or RECURRENCES[recurrence].architectures[0]
    names = (
        "vocab_size bos_id inputs grid d_model dropout_rate embedding_dropout_rate head num_labels"
    )
    sizes = {name: SIZES[name] for name in names.split()}
    layers = RECURRENCES[recurrence].residual_from or 2  # as few as have all that there is
    fields: dict[str, Any] = dict(num_encoder_layers=layers, num_decoder_layers=layers)
    fields |= dict(architecture=architecture, recurrence=recurrence)
    if architecture == "encoder_only":
        fields["head"] = "masked_tokens"
    return settings(RecurrentConfig, "model", **(sizes | fields | changes))


# Every row of the recurrent models, in each of its shapes.
RECURRENT = {
    f"{name}-{architecture}": recurrent(name, architecture)
    for name, row in RECURRENCES.items()
    for architecture in row.architectures
}


def family_of(config: Any) -> family.Family:
    """The family that a model's config belongs to."""
    return next(row for row in FAMILIES.values() if isinstance(config, row.config))


def every_second_long(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Cases of a parametrised test, of which the long tests alone meet every second one."""
    marks = itertools.cycle([(), pytest.mark.long])
    return [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks, strict=False)]


def repeated_long(keys: Iterable[Any]) -> list[Any]:
    """Marks of cases by their keys: those whose key another one before has are long tests."""
    keys = list(keys)
    return [pytest.mark.long if key in keys[:number] else () for number, key in enumerate(keys)]


def model(config: Any) -> Any:
    """The model of a config, of whichever family."""
    return family_of(config).model(config)


def stacks(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    """The sublayers of each stack of a shape, in the order in which they run."""
    plain, cross = ("self_attention", "feed_forward"), ("self_attention", "cross_attention")
    return {
        "encoder_decoder": {"encoder": plain, "decoder": (*cross, "feed_forward")},
        "encoder_only": {"encoder": plain},
        "decoder_only": {"decoder": plain},
        "encoder_set": {"encoder": plain, "decoder": (*cross, "feed_forward")},
    }[config.architecture]


def read_by(config: Any, batch: dict) -> dict:
    """The part of a batch that a shape is given: inputs, targets or both."""
    sides = {key: ("inputs",) for key in ("encoder_only", "encoder_set")}
    sides["decoder_only"] = ("targets",)
    wanted = sides.get(config.architecture, ("inputs", "targets"))
    return {name: value for name, value in batch.items() if name.startswith(wanted)}


def side_of_logits(config: Any) -> str:
    """Whose tokens have logits: `inputs` or `targets`."""
    return "inputs" if config.architecture == "encoder_only" else "targets"


def sentences(*lengths: tuple[int, int], seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random (source, target) ids of the given lengths; both end with eos, id 1."""
    generator = np.random.default_rng(seed)

    def ids(length):
        return np.append(generator.integers(4, SIZES["vocab_size"], length - 1), 1).astype(np.int32)

    return [(ids(source), ids(target)) for source, target in lengths]


def pack(rows, source_length: int = SOURCE_LENGTH, target_length: int = TARGET_LENGTH) -> dict:
    """A batch with one row per list of examples; the rest of every row is padding."""
    batch = {}
    for side, (name, length) in enumerate((("inputs", source_length), ("targets", target_length))):
        ids, segments, positions = np.zeros((3, len(rows), length), np.int32)
        for row, members in enumerate(rows):
            start = 0
            for segment, example in enumerate(members, 1):
                end = start + len(example[side])
                ids[row, start:end] = example[side]
                segments[row, start:end] = segment
                positions[row, start:end] = np.arange(end - start)
                start = end
        batch |= {name: ids, f"{name}_segment_ids": segments, f"{name}_positions": positions}
    return batch


def packed_batch(*more: list) -> dict:
    """Rows of two examples and padding, one example and padding, three examples; and more."""
    a, b, c, d, e, f = sentences((4, 3), (3, 4), (6, 5), (2, 3), (4, 1), (3, 4))
    return pack([[a, b], [c], [d, e, f], *more])


def abstract_parameters(config: Any, batch: dict | None = None) -> dict:
    """The boxed parameter tree as shapes, without running anything."""
    if batch is None:
        return _abstract(config)
    draw = functools.partial(family_of(config).init, model(config))
    return jax.eval_shape(draw, jax.random.key(0), read_by(config, batch))


@functools.cache
def _abstract(config: Any) -> dict:
    return abstract_parameters(config, packed_batch())


@functools.cache
def roles(config: Any) -> dict[str, family.Role]:
    """What an optimizer knows of each parameter."""
    return family.roles(_abstract(config))


def random_parameters(config: Any, seed: int = 0, deviation: float = 0.3) -> dict:
    """Random values for every leaf, biases, gains and omega included, so that none is neutral."""
    generator = np.random.default_rng(seed)

    def draw(path, leaf):
        noise = generator.normal(0.0, deviation, leaf.shape)
        return jnp.asarray(noise + (path[-1].key in ("scale", "omega")), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, nn.unbox(_abstract(config)))


def logits(config: Any, params: dict, batch: dict) -> jax.Array:
    """Logits without dropout, of a batch of which the model is given its part."""
    output = model(config).apply({"params": params}, read_by(config, batch), deterministic=True)
    assert isinstance(output, jax.Array)
    return output


@functools.cache
def apply_function(config: Any):
    """(params, batch) -> logits without dropout, compiled once per configuration and shape."""
    return jax.jit(functools.partial(logits, config))


@functools.cache
def init_function(config: Any):
    """(key, batch) -> boxed parameters, profiled (admin) with dropout where the rates say so."""
    init, module = family_of(config).init, model(config)
    # A recurrent model's scans over time are long; and models of other sizes share few operations.
    sizes = {name: getattr(config, name) for name in ("d_model", "vocab_size")}
    shared = isinstance(config, TransformerConfig) and sizes.items() <= SIZES.items()
    run = stepwise if shared else jax.jit
    return run(lambda key, batch: init(module, key, read_by(config, batch)))


@functools.cache
def initial_parameters(config: Any, seed: int = 0) -> dict:
    """What the library draws for `packed_batch`, unboxed."""
    return nn.unbox(init_function(config)(jax.random.key(seed), packed_batch()))


def flat(tree: dict, is_leaf=None) -> dict:
    """{"encoder/self_attention/query": leaf, ...}"""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf)[0]
    return {"/".join(key.key for key in path): leaf for path, leaf in leaves}


@functools.cache
def train_function(config: Any):
    """(params, batch, dropout key) -> logits with dropout, compiled likewise."""
    module = model(config)

    def apply(params, batch, key):
        batch, rngs = read_by(config, batch), {"dropout": key}
        return module.apply({"params": params}, batch, deterministic=False, rngs=rngs)

    return jax.jit(apply)
