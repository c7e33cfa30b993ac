"""A trained model to ask: parameters, compiled functions, data and how to decode."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.data.dataset import Dataset, Split
from transformer_jax.data.prepare.tokenizer import PAD_ID
from transformer_jax.devices.memory import Checked
from transformer_jax.devices.mesh import constrain
from transformer_jax.evaluation import generate
from transformer_jax.evaluation.by_batch import fetch
from transformer_jax.evaluation.generate import Batch, LimitFn, NumberedBatch, StartFn, StepFn
from transformer_jax.evaluation.search import DecodeSettings
from transformer_jax.training.losses import Loss, Sums, means
from transformer_jax.training.step import ApplyFn

# params, batch, memory -> sums, and the memory after it
EvalStep = Callable[[Any, Batch, Any], tuple[Sums, Any]]


def make_eval_step(loss: Loss, apply: ApplyFn) -> EvalStep:
    """The sums that the loss reports of a batch without dropout; compiled once per shape."""

    def eval_step(params: Any, batch: Any, memory: Any) -> tuple[Sums, Any]:
        outputs, memory = apply(params, batch, None, memory)
        _, _, sums = loss(outputs.values, batch)
        return jax.tree.map(constrain, sums), memory

    return Checked(jax.jit(eval_step), "scoring", "evaluate.batch_size")


def make_predict_step(
    apply: Callable[..., Float[Array, "B T _"]],
) -> Callable[[Any, Batch], Int[Array, "B T"]]:
    """The likeliest class at every token, without dropout; compiled once per shape of a batch."""

    def predict_step(params: Any, batch: Any) -> Int[Array, "B T"]:
        return constrain(jnp.argmax(apply(params, batch, None), axis=-1))

    return Checked(jax.jit(predict_step), "predicting", "evaluate.batch_size")


def make_embed_step(embed: Callable[[Any, Batch], Float[Array, "B T D"]]) -> Callable[..., Any]:
    """(params, batch) -> at each token the vector of its text; compiled once per shape."""
    return Checked(jax.jit(embed), "embedding", "evaluate.batch_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """Parameters of a run, and all that it takes to ask them something.

    Attributes:
      params: in the structure of the model.
      eval_step, predict_step: see `make_eval_step` and `make_predict_step`.
      memory: rows -> the shapes of what the model keeps of a batch for the next when it is scored.
      embed_step: (params, batch) -> at each token the vector of its text (B, T, D); None where the
        model has none.
      start, step: what decoding needs of the model (see `generate`).
      limit: (tokens of prompts, extra_length, most positions) -> most tokens that follow.
      most_positions: learned positions of the model; None: no bound.
      seed: what sampling draws by.
      bleu_tokenizer: sacreBLEU's.
    """

    params: Any
    data: Dataset
    eval_step: EvalStep
    memory: Callable[[int], Any]
    predict_step: Callable[[Any, Batch], Int[Array, "B T"]]
    embed_step: Callable[[Any, Batch], Float[Array, "B T D"]] | None
    start: StartFn
    step: StepFn
    limit: Callable[..., Int[np.ndarray, "B"]] | None
    most_positions: int | None
    decode: DecodeSettings
    seed: int
    bleu_tokenizer: str

    def losses(self, split: Split) -> dict[str, float]:
        """Means over all batches of a split (see `mean_losses`)."""
        memory = self.memory(self.data.settings.evaluation_batch_size)
        return mean_losses(self.params, split.batches, self.eval_step, memory)

    def predict(self, batches: Iterable[NumberedBatch]) -> list[list[int]]:
        """The predicted class (from 0) at every place that has a label, by example.

        batches: with `labels`, one example a row. Of a label only matters whether it is 0.
        """
        batches = list(batches)
        steps = fetch("Predicting", lambda batch, _: self.predict_step(self.params, batch), batches)
        predicted = {}
        for classes, (batch, numbers) in zip(steps, batches, strict=True):
            rows = zip(numbers.tolist(), classes, np.asarray(batch["labels"]), strict=True)
            predicted |= {
                number: row[label > 0].tolist() for number, row, label in rows if number >= 0
            }
        return [predicted[number] for number in range(len(predicted))]

    def embed(self, lines: Sequence[str]) -> Float[np.ndarray, "N D"]:
        """The vector of each line.

        Raises:
          ValueError: there are no lines.
        """
        assert self.embed_step is not None  # the command asks only models that have vectors
        embed_step, batches = self.embed_step, self.data.prompts(lines)
        if not batches:
            raise ValueError("nothing to embed: there are no lines")
        # The vector stands at each token of its text; the first is taken.
        steps = fetch("Embedding", lambda batch, _: embed_step(self.params, batch)[:, 0], batches)
        vectors = np.concatenate([np.asarray(rows, np.float32) for rows in steps])
        numbers = np.concatenate([numbers for _, numbers in batches])
        # Rows of padding have -1, so that they come first.
        return vectors[np.argsort(numbers)][np.sum(numbers < 0) :]

    def generate(self, batches: Iterable[NumberedBatch]) -> list[list[list[int]]]:
        """Token ids that follow each example, `decode.num_samples` times (see `generate`)."""
        return generate.generate(
            self.params, batches, settings=self.decode, **self._model(), **self._bounds()
        )

    def texts(
        self, lines: Sequence[str], decoders: Sequence[Callable[[list[int]], str]]
    ) -> list[list[str]]:
        """What follows each line as texts, which `decode.stop` ends.

        decoders: ids -> text, for each line.
        """
        found = self.generate(self.data.prompts(lines))
        return [
            [generate.cut_at_stop(decode(ids), self.decode.stop) for ids in samples]
            for decode, samples in zip(decoders, found, strict=True)
        ]

    def stream(
        self, line: str, number: int, decode: Callable[[list[int]], str]
    ) -> Iterator[tuple[int, str]]:
        """What follows a line, as (sample, new text) when it comes; `number` decides the draws."""
        ((batch, _),) = self.data.prompts([line])
        alone = {name: rows[:1] for name, rows in batch.items()}, np.array([number])
        return generate.stream(
            self.params,
            alone,
            settings=self.decode,
            decode=decode,
            **self._model(),
            **self._bounds(),
        )

    def decoding(self) -> tuple[Callable[..., Any], tuple]:
        """The compiled function that decodes, and the shapes of a batch of the longest prompts.

        It shows what decoding costs; `params` may be shapes.
        """
        settings = self.data.settings
        rows, width = settings.evaluation_batch_size, settings.max_prompt_length
        names = ("inputs", "inputs_segment_ids", "inputs_positions")
        inputs = {name: jax.ShapeDtypeStruct((rows, width), "int32") for name in names}
        keys = jax.eval_shape(
            lambda: jax.random.split(jax.random.key(0), rows * self.decode.num_samples)
        )
        longest = int(np.max(self.most_written(np.arange(1, width + 1))))
        decode = functools.partial(
            generate.decode_batch, settings=self.decode, rooms=(longest,), **self._model()
        )
        limits = jax.ShapeDtypeStruct((rows,), "int32")
        return jax.jit(decode), (self.params, inputs, limits, keys)

    def _model(self) -> dict[str, Any]:
        """What decoding needs of the model."""
        ends = self.data.special.ends
        return {"start": self.start, "step": self.step, "eos_ids": ends, "pad_id": PAD_ID}

    def _bounds(self) -> dict[str, Any]:
        """What decoding draws with, and where it ends."""
        limit: LimitFn = self.most_written
        return {"key": jax.random.key(self.seed), "limit": limit}

    def most_written(self, prompt_tokens: Int[np.ndarray, "B"]) -> Int[np.ndarray, "B"]:
        """How many tokens are written at most after prompts of so many, what ends them included."""
        assert self.limit is not None  # only tasks that decode ask
        return self.limit(prompt_tokens, self.decode.extra_length, self.most_positions)


def mean_losses(
    params: Any, batches: Iterable[NumberedBatch], eval_step: EvalStep, memory: Any = ()
) -> dict[str, float]:
    """Means over all batches, so that it does not matter how these are cut.

    Sums are added up in float64 on the host. `memory`: the shapes of what the model keeps of one
    batch for the next, rows first.

    Raises:
      ValueError: there are no batches, or nothing in them that has a weight.
    """
    memory = jax.tree.map(
        lambda leaf: constrain(jnp.zeros(leaf.shape, leaf.dtype), "batch"), memory
    )

    def score(batch: Batch, numbers: Int[np.ndarray, "B"]) -> Sums:
        nonlocal memory
        sums, memory = eval_step(params, batch, memory)
        return sums

    parts: list[Mapping[str, Any]] = fetch("Scoring", score, list(batches))
    if not parts:
        raise ValueError("nothing to evaluate on: there are no batches")

    def add_up(*values: float) -> float:
        return np.sum(values, dtype=np.float64)

    return means(jax.tree.map(add_up, *parts))
