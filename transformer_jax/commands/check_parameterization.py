"""Checks whether a learning rate of a config would carry over to larger models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from configs.default import Config
from transformer_jax.config.build import built, head_dim, peak_learning_rate
from transformer_jax.config.load import replace
from transformer_jax.devices.mesh import place
from transformer_jax.inspection import coordinates
from transformer_jax.models import FAMILIES
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS
from transformer_jax.process import progress
from transformer_jax.process.tables import aligned
from transformer_jax.run import Params
from transformer_jax.training.losses import Batch

_SCALES = (1, 2, 4, 8)
_SEEDS = 3
_STEPS = 10
_SHOWN = (0, 1, 4, 8, 10)
_SIZES = {
    "width": ("d_model", "num_heads", "num_kv_heads", "d_ff"),
    "depth": ("num_layers", "num_encoder_layers", "num_decoder_layers"),
}


def check_parameterization(config: Config, workdir: Path | None) -> int:
    """Trains ten steps at 1, 2, 4 and 8 times the width, then depth; prints how activations grow.

    By three seeds, at the peak of the config's learning rate. The exit status is 1 where any of
    them still grows or shrinks with a size that the config's parameterisation follows ("standard":
    with any).

    Raises:
      ValueError: of the family's models, nobody knows the inside.
    """
    family = config.model.family
    if not FAMILIES[family].inspected:
        raise ValueError(f"model.family={family!r} shows nothing of its activations")
    row = PARAMETERIZATIONS[config.model.parameterization]
    failed = False
    for what, keys in _SIZES.items():
        sizes = []
        for scale in _SCALES:
            changes = _larger(config, keys, scale)
            with progress.phase(f"Training at {scale} times the {what}"):
                sizes.append(_train(config, workdir, changes))
        slopes = coordinates.slopes(_SCALES, sizes)
        grown = coordinates.grown(slopes)
        follows = row is None or f"base_{what}" in row.reads
        failed |= follows and bool(grown)
        print(f"Slopes over {what}, log2 of mean |x| over log2 of {what}, after steps:")
        rows = [["", *map(str, _SHOWN)]]
        rows += [[name, *(f"{slope[n]:+.2f}" for n in _SHOWN)] for name, slope in slopes.items()]
        print(*aligned(rows), sep="\n")
        verdict = "; ".join(f"{name} {slope:+.2f}" for name, slope in grown.items())
        flat = f"Flat within {coordinates.FLAT} from step {coordinates.FIRST_STEP} on"
        beside = "" if follows else f" ({config.model.parameterization!r} does not follow {what}.)"
        print(f"{flat}.\n" if not grown else f"Not flat: {verdict}.{beside}\n")
    return int(failed)


def _larger(config: Config, keys: tuple[str, ...], scale: int) -> dict[str, Any]:
    """Changes of the config: larger, and at the peak of its learning rate from step 1 on."""
    model = config.model
    sizes = {f"model.{key}": scale * model[key] for key in keys if model[key] is not None}
    # Heads keep their size.
    if model.head_dim is None:
        sizes["model.head_dim"] = head_dim(model.d_model, model.num_heads)
    larger = replace(config, sizes)
    return sizes | {
        "optimizer.schedule": "constant",
        "optimizer.learning_rate": peak_learning_rate(larger, config.optimizer.learning_rate),
        "optimizer.warmup_steps": 0,
        "optimizer.burn_in_steps": 0,
        "optimizer.layer_warm_ups": (),
        "train.steps": _STEPS,
    }


def _train(
    config: Config, workdir: Path | None, changes: dict[str, Any]
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

        seeds = range(config.seed, config.seed + _SEEDS)
        return [coordinates.measure(run.model, training(seed)) for seed in seeds]
