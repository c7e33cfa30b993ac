"""Whether activations keep their size as a model grows: `launch.sh check_parameterization`.

The coordinate check of Yang et al. 2021 (2203.03466, appendix D.1): where a learning rate is to
carry over, no activation grows or shrinks with the width or the depth once training has begun.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from transformer_jax.config.build import built, head_dim, optimizer_settings
from transformer_jax.config.load import replace
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import place
from transformer_jax.inspection.observed import observe
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import Batch, Model, Params
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS
from transformer_jax.process import progress
from transformer_jax.process.tables import aligned
from transformer_jax.training.schedule import peak_rate

# The slope that counts as none, from this step on.
FLAT = 0.05
FIRST_STEP = 8
_STEPS = 10
_SHOWN = (0, 1, 4, 8, 10)
_SIZES = {
    "width": ("d_model", "num_heads", "num_kv_heads", "d_ff"),
    "depth": ("num_layers", "num_encoder_layers", "num_decoder_layers"),
}

# By activation a number before the first step, and after each.
Curves = Mapping[str, Float[np.ndarray, "steps"]]


def check_parameterization(
    config: Config,
    workdir: Path | None,
    *,
    kinds: Sequence[str] = ("width", "depth"),
    scales: Sequence[int] = (1, 2, 4, 8),
    seeds: int = 3,
) -> int:
    """Trains ten steps at several times the width, then depth; prints how activations grow.

    At the peak of the config's learning rate. The exit status is 1 where any of them still grows or
    shrinks with a size that the config's parameterisation follows ("standard": with any).

    Raises:
      ValueError: of the family's models, nobody knows the inside.
    """
    family = config.model.family
    if not FAMILIES[family].inspected:
        raise ValueError(f"model.family={family!r} shows nothing of its activations")
    row = PARAMETERIZATIONS[config.model.parameterization]
    failed = False
    for kind in kinds:
        trained = []
        for scale in scales:
            changes = _larger(config, _SIZES[kind], scale)
            with progress.phase(f"Training at {scale} times the {kind}"):
                trained.append(_train(config, workdir, changes, seeds))
        growth = slopes(scales, trained)
        follows = row is None or f"base_{kind}" in row.reads
        failed |= follows and bool(grown(growth))
        note = "" if follows else f" ({config.model.parameterization!r} does not follow {kind}.)"
        print(*_lines(kind, growth, note), "", sep="\n")
    return int(failed)


def _lines(kind: str, growth: Curves, note: str) -> Iterator[str]:
    """The table of slopes, and which of them are not flat."""
    yield f"Slopes over {kind}, log2 of mean |x| over log2 of {kind}, after steps:"
    rows = [["", *map(str, _SHOWN)]]
    rows += [[name, *(f"{slope[n]:+.2f}" for n in _SHOWN)] for name, slope in growth.items()]
    yield from aligned(rows)
    steep = [f"{name} {slope:+.2f}" for name, slope in grown(growth).items()]
    flat = f"Flat within {FLAT} from step {FIRST_STEP} on."
    yield f"Not flat: {'; '.join(steep)}.{note}" if steep else flat


def _larger(config: Config, keys: tuple[str, ...], scale: int) -> dict[str, Any]:
    """Changes of the config: larger, and at the peak of its learning rate from step 1 on."""
    model = config.model
    larger = {f"model.{key}": scale * model[key] for key in keys if model[key] is not None}
    # Heads keep their size.
    if model.head_dim is None:
        larger["model.head_dim"] = head_dim(model.d_model, model.num_heads)
    optimizer = optimizer_settings(replace(config, larger))
    return larger | {
        "optimizer.schedule": "constant",
        "optimizer.learning_rate": peak_rate(optimizer),
        "optimizer.warmup_steps": 0,
        "optimizer.burn_in_steps": 0,
        "optimizer.layer_warm_ups": (),
    }


def _train(
    config: Config, workdir: Path | None, changes: dict[str, Any], seeds: int
) -> list[Curves]:
    """The sizes of each seed's training."""
    with built(replace(config, changes), workdir) as run:
        # Compiled once for all seeds, which takes longer than the ten steps.
        step = run.train_step()
        create = jax.jit(lambda seed, batch: run.with_seed(seed).new_state(batch))

        def training(seed: int) -> Iterator[tuple[Params, Batch]]:
            streams = run.with_seed(seed).train_streams()
            batch = place(run.mesh, next(streams))
            state = create(seed, batch)
            yield state.params, batch
            for _ in range(_STEPS):
                state, _ = step(state, batch)
                batch = place(run.mesh, next(streams))
                yield state.params, batch

        run_seeds = range(config.seed, config.seed + seeds)
        return [measure(run.model, training(seed)) for seed in run_seeds]


def measure(model: Model, training: Iterator[tuple[Params, Batch]]) -> Curves:
    """The `sizes` of a training's activations, all on its first batch.

    training: the parameters before the first step with its batch, then those after each step; only
    the newest need to exist.
    """
    params, batch = next(training)
    initial = jax.tree.map(jnp.copy, params)
    rows = [sizes(model, initial, params, batch)]
    rows += [sizes(model, initial, params, batch) for params, _ in training]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@functools.partial(jax.jit, static_argnums=0)
def sizes(
    model: Model, initial: Params, params: Params, batch: Batch
) -> dict[str, Float[Array, ""]]:
    """Mean |x| of what enters and what leaves each stack, of the logits, and of their change.

    Of real tokens, without dropout. initial: the parameters that training began with.
    """
    before, after = (_activations(model, weights, batch) for weights in (initial, params))
    means = {}
    for name, (x, real) in after.items():
        means[name] = _mean_size(x, real)
        means[f"change of {name}"] = _mean_size(x - before[name][0], real)
    return means


def slopes(scales: Sequence[float], trained: Sequence[Sequence[Curves]]) -> Curves:
    """The slope of log2 of each size over log2 of the scale.

    0 where all sizes are 0, as before the first change and of what is frozen; NaN where one is 0 or
    not finite.

    trained: `measure` of each scale, of each seed; the mean of the logarithms counts.
    """
    x = np.log2(scales)
    x = x - np.mean(x)
    slopes = {}
    for name in trained[0][0]:
        values = np.array([[seed[name] for seed in seeds] for seeds in trained], np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            y = np.mean(np.log2(values), axis=1)
            slope = x @ (y - np.mean(y, axis=0)) / (x @ x)
        slopes[name] = np.where(np.any(values, axis=(0, 1)), slope, 0.0)
    return slopes


def furthest(slopes: Curves) -> dict[str, float]:
    """From `FIRST_STEP` on, the slope of each activation that is furthest from 0."""
    late = {name: slope[FIRST_STEP:] for name, slope in slopes.items()}
    return {name: float(slope[np.argmax(np.abs(slope))]) for name, slope in late.items()}


def grown(slopes: Curves) -> dict[str, float]:
    """What `furthest` finds that is not flat.

    Logits may shrink: where training begins they do so as the root of the width, by the law of
    large numbers, which it takes more than a few steps to outgrow.
    """
    return {
        name: slope
        for name, slope in furthest(slopes).items()
        if not abs(slope) <= FLAT and not (name.endswith("logits") and slope < 0)
    }


def _activations(model: Model, params: Params, batch: Batch) -> dict[str, tuple[Array, Array]]:
    """Each activation, and which of its tokens are real."""
    outputs, observed = observe(model, params, batch)
    activations = {}
    for stack, states in observed.items():
        activations[f"{stack} input"] = states.inputs[0], states.real
        activations[f"{stack} output"] = states.final, states.real
    *_, last = observed.values()
    return activations | {"logits": (outputs.arrays(), last.real)}


def _mean_size(x: Float[Array, "B T _"], real: Bool[Array, "B T"]) -> Float[Array, ""]:
    return jnp.mean(jnp.mean(jnp.abs(x), axis=-1), where=real)
