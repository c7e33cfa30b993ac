"""Trainings on a share of all sums modulo a prime, with accuracies on both sides of the split."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from experiments.harness import lab
from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.config.load import replace
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import place
from transformer_jax.models.family import Batch, Params
from transformer_jax.tasks.tokens import likeliest_labels

TRAIN, TEST = "train.txt", "test.txt"
FITS, GENERALISES = 0.99, 0.95
_SPLIT_SEED = 0  # of all trainings


class Pairs(NamedTuple):
    """The pairs (a, b) of both sides of the split."""

    train: Int[np.ndarray, "n 2"]
    test: Int[np.ndarray, "m 2"]

    @property
    def commuted(self) -> Bool[np.ndarray, " m"]:
        """Of which test pairs (a, b) the pair (b, a), whose sum is the same, is trained on."""
        trained = {*map(tuple, self.train.tolist())}
        return np.array([(b, a) in trained for a, b in self.test.tolist()])


def split(modulus: int, share: float) -> Pairs:
    """All pairs once, the share of them that is trained on drawn at random."""
    pairs = np.stack(np.divmod(np.arange(modulus**2), modulus), axis=1)
    permutation = np.random.default_rng(_SPLIT_SEED).permutation(pairs)
    count = round(share * len(pairs))
    return Pairs(permutation[:count], permutation[count:])


def write(folder: Path, pairs: Pairs, modulus: int) -> None:
    """A file of each side, with lines "C aA bB" of A + B = C modulo a number."""
    for name, side in zip((TRAIN, TEST), pairs, strict=True):
        lines = [f"{(a + b) % modulus} a{a} b{b}\n" for a, b in side.tolist()]
        (folder / name).write_text("".join(lines), "utf-8")


def measure(
    config: Config,
    workdir: Path,
    *,
    modulus: int,
    share: float,
    rate: float,
    seeds: Sequence[int],
    read_every: int,
) -> list[dict[str, Any]]:
    """For each seed its readings, of kind "reading", and a row of kind "training".

    train, test: the accuracy on pairs of either side, of at most evaluate.batch_size of them;
    commuted, others: on those of test whose commuted pair is trained on, and on the others.
    fits_at, generalises_at: the first read steps at which train is above 0.99 and test above 0.95;
      None: none.
    step: the last one. A training ends at its next reading once it fits and generalises, or where
      it diverges.
    """
    pairs = split(modulus, share)
    write(workdir, pairs, modulus)
    run = build(replace(config, {"data.dir": str(workdir)}))
    trainings = Trainings(run)
    accurate = jax.jit(lambda params, batch: _accurate(run, params, batch))
    # The training file also stands as the test split, to be scored. Rows without a number are none.
    trained, tested = (run.data.split(name).batches for name in ("test", "validation"))
    train, test = trained[0], tested[0]
    commuted = pairs.commuted[test[1][test[1] >= 0]]
    rows_of_train = lab.joined(
        [{name: column[of >= 0] for name, column in batch.items()} for batch, of in trained]
    )

    def read(params: Params) -> dict[str, float]:
        of_train, right = (
            np.asarray(accurate(params, place(run.mesh, batch)))[numbers >= 0]
            for batch, numbers in (train, test)
        )
        return {
            "train": float(np.mean(of_train)),
            "test": float(np.mean(right)),
            "commuted": float(np.mean(right[commuted])),
            "others": float(np.mean(right[~commuted])),
        }

    rows = []
    for seed in seeds:
        readings: list[dict[str, Any]] = []
        # Streams of the data would take longer to make these small rows than to train on them.
        batches = lab.epochs(rows_of_train, config.data.batch_size, seed)
        for update in trainings.steps(rate, seed, batches):
            if update.step % read_every == 0:
                readings.append({"step": update.step, **read(update.state.params)})
                reached = (("train", FITS), ("test", GENERALISES))
                if all(_first(readings[:-1], name, least) for name, least in reached):
                    break
        rows += [{"kind": "reading", "seed": seed, **reading} for reading in readings]
        rows.append(
            {"kind": "training", "seed": seed}
            | readings[-1]
            | {
                "fits_at": _first(readings, "train", FITS),
                "generalises_at": _first(readings, "test", GENERALISES),
            }
        )
    return rows


def _accurate(run: Any, params: Params, batch: Batch) -> Bool[Array, " B"]:
    """Of each row of one text, whether its label is the likeliest."""
    outputs, _ = run.outputs(params, batch, None, ())
    right = likeliest_labels(outputs, batch) == batch["labels"] - 1
    return jnp.any(right & (batch["labels"] > 0), axis=1)


def _first(readings: Sequence[dict[str, Any]], name: str, least: float) -> int | None:
    return next((each["step"] for each in readings if each[name] > least), None)
