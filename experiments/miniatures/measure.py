"""What a training on a miniature answers right, read as it trains."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from experiments.harness.trainings import Trainings
from experiments.miniatures import rows, solvers
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import place
from transformer_jax.models.family import Batch, Params
from transformer_jax.run import Run
from transformer_jax.training.losses import PlaceLoss

_KNOWN = 0.9  # probability of a word that is certain, from which on it counts as known

Places = Callable[[Batch, int], Bool[Array, "B T"]]
Score = Callable[[Params], Iterator[dict[str, Any]]]


def measure(config: Config, workdir: Path, *, seeds: int, read_every: int) -> list[dict[str, Any]]:
    """A row for each reading of each seed and kind of answer.

    of: of Depo the hops, of Mano the operations that an answer takes; "all": all answers.
    accuracy, answers: the share that is right, and of how many, on validation; of Lano, of the
      words of which the grammar leaves no choice, those that have a probability of 0.9.
    divergence: of Lano, that of the model's next word from the grammar's, in nats a word.
    """
    run = build(config)
    run, score = _TASKS[config.data.source](run)
    trainings = Trainings(run)
    readings = []
    for seed in range(seeds):
        rate, batches = config.optimizer.learning_rate, trainings.batches(seed)
        for update in trainings.steps(rate, seed, batches):
            if update.step % read_every == 0:
                scores = score(update.state.params)
                readings += [{"seed": seed, "step": update.step, **row} for row in scores]
    return readings


def asking(run: Run, places: Places) -> Run:
    """The same run with the loss of answers alone."""
    opener = _id(run, "=")

    def answers(batch: Batch) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
        return batch["targets"], places(batch, opener) & (batch["targets_segment_ids"] != 0)

    return dataclasses.replace(run, loss=dataclasses.replace(run.loss, function=PlaceLoss(answers)))


def behind(batch: Batch, opener: int) -> Bool[Array, "B T"]:
    """The place behind each opener: answers of one word."""
    return jnp.pad(batch["targets"][:, :-1] == opener, ((0, 0), (1, 0)))


def to_the_end(batch: Batch, opener: int) -> Bool[Array, "B T"]:
    """All places behind the opener: an answer that ends a row."""
    return jnp.cumsum(behind(batch, opener), axis=1) > 0


def opened(batch: Batch) -> Batch:
    """The batch with rows that go on to its end, as what a model writes may be longer."""
    places = jnp.arange(batch["targets"].shape[1])
    return batch | {
        "targets_segment_ids": jnp.ones_like(batch["targets_segment_ids"]),
        "targets_positions": jnp.broadcast_to(places, batch["targets"].shape),
    }


def written(
    run: Run,
    passes: int,
    params: Params,
    batch: Batch,
    mask: Bool[Array, "B T"],
) -> Int[Array, "B T"]:
    """The targets with the model's likeliest words at the places that are asked for.

    Each pass fills all of them from what the pass before wrote. So after n passes the first n of an
    answer are those of decoding word by word, whatever stood there.

    passes: as many as the longest answer has words.
    """

    def fill(_: int, targets: Int[Array, "B T"]) -> Int[Array, "B T"]:
        outputs, _ = run.outputs(params, batch | {"targets": targets}, None, ())
        words = jnp.argmax(outputs.arrays(), axis=-1)
        return jnp.where(mask, words.astype(targets.dtype), targets)

    return jax.lax.fori_loop(0, passes, fill, batch["targets"])


def _id(run: Run, word: str) -> int:
    return int(run.data.tokenizer.encode([word])[0][0])


def _names(run: Run) -> np.ndarray:
    """The word of each number; "" of what is none, as of the end."""
    return np.array([run.data.tokenizer.decode([n]) for n in range(run.data.vocab_size)])


def _of_one_word(run: Run, kind: Callable[[np.ndarray, int], int]) -> tuple[Run, Score]:
    """Answers of one word each, scored by kind, which the words before a place tell."""
    run = asking(run, behind)
    batch, names = _validation(run), _names(run)
    mask = behind(batch, _id(run, "="))
    answered = jax.jit(lambda params: written(run, 1, params, batch, mask))
    places = np.argwhere(np.asarray(mask))
    words = names[np.asarray(batch["targets"])]
    kinds = np.array([kind(words[row], at) for row, at in places])

    def score(params: Params) -> Iterator[dict[str, Any]]:
        same = np.asarray(answered(params) == batch["targets"])
        right = same[tuple(places.T)]
        yield _row("all", right)
        for each in np.unique(kinds):
            yield _row(str(each), right[kinds == each])

    return run, score


def _hops(words: np.ndarray, at: int) -> int:
    return int(words[at - 3])


def _operations(words: np.ndarray, at: int) -> int:
    return at // 2 - 1


def _brevo(run: Run) -> tuple[Run, Score]:
    run = asking(run, to_the_end)
    batch, names = _validation(run), _names(run)
    mask = to_the_end(batch, _id(run, "="))
    longest = int(np.max(np.sum(np.asarray(mask & (batch["targets_segment_ids"] > 0)), axis=1)))
    answered = jax.jit(lambda params: written(run, longest, params, opened(batch), mask))

    def score(params: Params) -> Iterator[dict[str, Any]]:
        answers = [_before_the_end(row) for row in names[np.asarray(answered(params))]]
        yield _row("all", [solvers.is_order(row) for row in answers])

    return run, score


def _lano(run: Run) -> tuple[Run, Score]:
    batch, names = _validation(run), _names(run)
    grammar = rows.grammar(int(run.data.settings.source.name))
    leaf = np.full(len(names), -1)
    leaf[[_id(run, word) for word in rows.LEAVES]] = range(len(rows.LEAVES))
    ids = np.array([*(_id(run, word) for word in rows.LEAVES), run.data.special.eos])
    real = np.asarray(batch["targets_segment_ids"] > 0)
    shares = solvers.next_words(grammar, leaf[np.asarray(batch["targets"])])[:, :-1][real]
    shares /= np.sum(shares, axis=-1, keepdims=True)
    certain = np.max(shares, axis=-1) == 1

    @jax.jit
    def logs(params: Params) -> Float[Array, "B T V"]:
        outputs, _ = run.outputs(params, batch, None, ())
        return jax.nn.log_softmax(outputs.arrays())[..., ids]

    def score(params: Params) -> Iterator[dict[str, Any]]:
        log_probs = np.asarray(logs(params))[real]
        right = np.sum(shares * log_probs, axis=-1) > math.log(_KNOWN)
        known = np.log(np.where(shares > 0, shares, 1.0))
        divergence = np.mean(np.sum(shares * (known - log_probs), axis=-1))
        yield _row("all", right[certain]) | {"divergence": float(divergence)}

    return run, score


def _validation(run: Run) -> Batch:
    """The rows of validation as one batch."""
    ((batch, numbers),) = run.data.split("validation").batches
    return place(run.mesh, {name: column[numbers >= 0] for name, column in batch.items()})


def _before_the_end(words: np.ndarray) -> list[str]:
    ends = np.flatnonzero(words == "")
    return words[: ends[0] if len(ends) else len(words)].tolist()


def _row(of: str, right: Any) -> dict[str, Any]:
    return {"of": of, "accuracy": float(np.mean(right)), "answers": len(right)}


_TASKS = {
    "depo": functools.partial(_of_one_word, kind=_hops),
    "brevo": _brevo,
    "mano": functools.partial(_of_one_word, kind=_operations),
    "lano": _lano,
}
