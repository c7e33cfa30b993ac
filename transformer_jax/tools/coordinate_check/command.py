"""Checks whether a learning rate of a config would carry over to larger models."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from transformer_jax.config.build import built, head_dim, optimizer_settings
from transformer_jax.config.load import replace
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import place
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import Batch, Params
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS
from transformer_jax.process import progress
from transformer_jax.process.tables import aligned
from transformer_jax.tools.coordinate_check import coordinates
from transformer_jax.training.schedule import peak_rate

_STEPS = 10
_SHOWN = (0, 1, 4, 8, 10)
_SIZES = {
    "width": ("d_model", "num_heads", "num_kv_heads", "d_ff"),
    "depth": ("num_layers", "num_encoder_layers", "num_decoder_layers"),
}


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
        slopes = coordinates.slopes(scales, trained)
        follows = row is None or f"base_{kind}" in row.reads
        failed |= follows and bool(coordinates.grown(slopes))
        note = "" if follows else f" ({config.model.parameterization!r} does not follow {kind}.)"
        print(*_lines(kind, slopes, note), "", sep="\n")
    return int(failed)


def _lines(kind: str, slopes: coordinates.Curves, note: str) -> Iterator[str]:
    """The table of slopes, and which of them are not flat."""
    yield f"Slopes over {kind}, log2 of mean |x| over log2 of {kind}, after steps:"
    rows = [["", *map(str, _SHOWN)]]
    rows += [[name, *(f"{slope[n]:+.2f}" for n in _SHOWN)] for name, slope in slopes.items()]
    yield from aligned(rows)
    grown = [f"{name} {slope:+.2f}" for name, slope in coordinates.grown(slopes).items()]
    flat = f"Flat within {coordinates.FLAT} from step {coordinates.FIRST_STEP} on."
    yield f"Not flat: {'; '.join(grown)}.{note}" if grown else flat


def _larger(config: Config, keys: tuple[str, ...], scale: int) -> dict[str, Any]:
    """Changes of the config: larger, and at the peak of its learning rate from step 1 on."""
    model = config.model
    sizes = {f"model.{key}": scale * model[key] for key in keys if model[key] is not None}
    # Heads keep their size.
    if model.head_dim is None:
        sizes["model.head_dim"] = head_dim(model.d_model, model.num_heads)
    optimizer = optimizer_settings(replace(config, sizes))
    return sizes | {
        "optimizer.schedule": "constant",
        "optimizer.learning_rate": peak_rate(optimizer),
        "optimizer.warmup_steps": 0,
        "optimizer.burn_in_steps": 0,
        "optimizer.layer_warm_ups": (),
        "train.steps": _STEPS,
    }


def _train(
    config: Config, workdir: Path | None, changes: dict[str, Any], seeds: int
) -> list[coordinates.Curves]:
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
        return [coordinates.measure(run.model, training(seed)) for seed in run_seeds]
