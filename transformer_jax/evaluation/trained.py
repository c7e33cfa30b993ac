"""A trained model to ask: its parameters, its data, its loss and how it writes."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.data.dataset import Dataset, Split
from transformer_jax.data.prepare.recipe import NumberedBatch
from transformer_jax.devices.memory import checked
from transformer_jax.devices.mesh import constrain
from transformer_jax.evaluation import generate
from transformer_jax.evaluation.by_batch import fetch, fetch_examples
from transformer_jax.evaluation.decoder import Decoder, DecodeSettings
from transformer_jax.models.family import Batch, Model, Outputs, Params, with_memory
from transformer_jax.training.losses import Loss

# (outputs, their batch) -> arrays whose rows are the batch's
Predict = Callable[[Outputs, Batch], Any]


@functools.partial(checked, what="scoring", settings="evaluate.batch_size")
@functools.partial(jax.jit, static_argnames=("model", "predict"))
def predict_step(
    params: Params, batch: Batch, memory: Any = (), *, model: Model, predict: Predict
) -> tuple[Any, Any]:
    """What `predict` makes of the outputs without dropout, and the memory after the batch."""
    outputs, memory = with_memory(model, params, batch, None, memory)
    return jax.tree.map(constrain, predict(outputs, batch)), memory


@functools.partial(checked, what="embedding", settings="evaluate.batch_size")
@functools.partial(jax.jit, static_argnames="model")
def embed_step(params: Params, batch: Batch, *, model: Model) -> Float[Array, "B T D"]:
    """At each token the vector of its text."""
    vectors: Any = model.apply({"params": params}, batch, method="embed")
    return constrain(vectors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """Parameters of a run, and all that it takes to ask them something.

    What is asked is compiled once per shape of a batch, for all that have equal models and losses.

    Attributes:
      params: in the structure of the model.
      prediction: what the task predicts from outputs.
      memory: rows -> the shapes of what the model keeps of a batch for the next when it is scored.
      decoder: how the model writes; None: it does not.
      seed: what sampling draws by.
      bleu_tokenizer: sacreBLEU's.
    """

    params: Params
    data: Dataset
    model: Model
    loss: Loss
    prediction: Predict
    memory: Callable[[int], Any]
    decoder: Decoder | None
    seed: int
    bleu_tokenizer: str

    @property
    def writer(self) -> Decoder:
        """The decoder of a model that writes."""
        assert self.decoder is not None  # only tasks that decode ask
        return self.decoder

    def writing(self, settings: DecodeSettings) -> "Trained":
        """The same, which writes by other settings."""
        decoder = dataclasses.replace(self.writer, settings=settings)
        return dataclasses.replace(self, decoder=decoder)

    def losses(self, split: Split) -> dict[str, float]:
        """Means over all batches of a split, so that it does not matter how these are cut.

        Sums are added up in float64 on the host. Raises ValueError where nothing has a weight.
        """
        parts = [sums for _, (_, _, sums) in self._by_batch(split, self.loss)]
        return self.loss.means(jax.tree.map(lambda *sums: np.sum(sums, dtype=np.float64), *parts))

    def predict(self, batches: Sequence[NumberedBatch]) -> list[Any]:
        """What is predicted of each example, as its row of each array."""

        def predict(batch: Batch, numbers: Int[np.ndarray, "B"]) -> Any:
            values, _ = predict_step(self.params, batch, model=self.model, predict=self.prediction)
            return values

        return fetch_examples("Predicting", predict, batches)

    def by_place(self, split: Split, each: Predict) -> list[Float[np.ndarray, " T"]]:
        """What `each` has of every place, a row an example, in their order.

        Of a text that a model with memory reads, a row is what one of evaluate.batch_size readers
        reads of it, from one batch to the next.

        each: (outputs, their batch) -> (B, T).
        """
        rows = collections.defaultdict[int, list[Any]](list)
        for numbers, values in self._by_batch(split, each):
            for row in np.flatnonzero(numbers >= 0).tolist():
                rows[int(numbers[row])].append(values[row])
        return [np.concatenate(rows[number]) for number in sorted(rows)]

    def _by_batch(self, split: Split, predict: Predict) -> list[tuple[Int[np.ndarray, "B"], Any]]:
        """Of each batch the examples' numbers and what `predict` makes of it, one after another."""
        shapes = self.memory(self.data.settings.evaluation_batch_size)
        memory = jax.tree.map(
            lambda leaf: constrain(jnp.zeros(leaf.shape, leaf.dtype), "batch"), shapes
        )

        def score(batch: Batch, numbers: Int[np.ndarray, "B"]) -> Any:
            nonlocal memory
            values, memory = predict_step(
                self.params, batch, memory, model=self.model, predict=predict
            )
            return numbers, values

        return fetch("Scoring", score, split.batches)

    def embed(self, lines: Sequence[str]) -> Float[np.ndarray, "N D"]:
        """The vector of each line. Raises ValueError where there are no lines."""
        batches = self.data.prompts(lines)
        if not batches:
            raise ValueError("nothing to embed: there are no lines")

        def embed(batch: Batch, numbers: Int[np.ndarray, "B"]) -> Float[Array, "B D"]:
            # The vector stands at each token of its text; the first is taken.
            return embed_step(self.params, batch, model=self.model)[:, 0]

        return np.stack(fetch_examples("Embedding", embed, batches)).astype(np.float32)

    def generate(self, batches: Sequence[NumberedBatch]) -> list[list[list[int]]]:
        """Token ids that follow each example, `decode.num_samples` times (see `generate`)."""
        return generate.generate(self.writer, self.params, batches, jax.random.key(self.seed))

    def texts(
        self,
        batches: Sequence[NumberedBatch],
        decode: Sequence[Callable[[list[int]], str]] | None = None,
    ) -> list[list[str]]:
        """What follows each example as texts, which `decode.stop` ends.

        decode: ids -> text, for each example; None: the tokenizer's.
        """
        written, stop = self.generate(batches), self.writer.settings.stop
        decode = decode or [self.data.tokenizer.decode] * len(written)
        return [
            [generate.cut_at_stop(text_of(ids), stop) for ids in samples]
            for text_of, samples in zip(decode, written, strict=True)
        ]

    def stream(
        self, line: str, number: int, decode: Callable[[list[int]], str]
    ) -> Iterator[tuple[int, str]]:
        """What follows a line, as (sample, new text) when it comes; `number` decides the draws."""
        ((batch, _),) = self.data.prompts([line])
        alone = {name: rows[:1] for name, rows in batch.items()}, np.array([number])
        key = jax.random.key(self.seed)
        return generate.stream(self.writer, self.params, alone, key, decode)
