"""A task without tokens, labels or logits, and its model, go the whole way through the commands."""

import dataclasses
import json
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks import small
from tests.whole.command_line import records
from transformer_jax.commands.evaluate import evaluate
from transformer_jax.commands.generate import generate
from transformer_jax.commands.train import train
from transformer_jax.data.prepare.recipe import Column, Recipe
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import Family, Outputs
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.task import Task, samples
from transformer_jax.training.losses import means

K, L = 3, 2  # numbers that are given and asked for
W = np.array([[1.0, 0.5], [-2.0, 0.0], [0.25, 1.0]])

# The model: a matrix, which also reports its size.


@dataclasses.dataclass(frozen=True)
class Config:
    architecture: str
    vocab_size: int
    bos_id: int
    num_labels: int
    dtype: str
    longest_row = None
    profiled = False
    sums = ("size",)
    num_encoder_layers = num_decoder_layers = 1
    d_model = K

    def check_platform(self, platform):
        pass

    def plain(self):
        return self


class Linear(nn.Module):
    config: Any

    def setup(self):
        zeros = nn.initializers.zeros
        self.weight = parameter(self, "weight", zeros, (K, L), ("embed", "mlp"), matrix=(1, 1))

    def __call__(self, batch, *, deterministic):
        return self.outputs(batch, deterministic=deterministic).arrays()

    def outputs(self, batch, *, deterministic):
        size = jnp.sum(jnp.abs(self.weight))
        return Outputs(batch["inputs"] @ self.weight, {"size": (size, jnp.ones(()))})


FAMILY = Family(config=Config, model=Linear)

# The task


def encode(examples, tokenizer, labels, limits):
    """Each vector at a place of its own, and what is asked for beside it."""
    assert tokenizer is None and labels == ()
    inputs, values = ([[vector] for vector in examples[name]] for name in ("features", "values"))
    return {"inputs": inputs, "values": values}, ()


def prompt(lines, tokenizer, labels, limits):
    vectors = [[float(number) for number in line.split()] for line in lines]
    return {"inputs": [[vector] for vector in vectors], "values": [[[0.0] * L] for _ in lines]}, ()


def loss(outputs, batch, settings):
    """The squared distance, of all vectors of the whole batch; what a part weighs is its rows."""
    real = batch["inputs_segment_ids"] > 0
    errors = jnp.sum(jnp.square(outputs.values - batch["values"]), axis=-1, where=real[..., None])
    rows = jnp.float32(len(real))
    share = jnp.sum(errors / batch["vectors"]) * batch["rows"][0, 0]
    return share, rows, {"loss": (share, rows)}


def totals(batch):
    real = batch["inputs_segment_ids"] > 0
    counts = {"vectors": jnp.sum(real), "rows": jnp.float32(len(real))}
    return {name: jnp.full((len(real), 1), count) for name, count in counts.items()}


def score(trained, split):
    predicted = np.array(trained.predict(split.batches))
    error = np.abs(predicted - np.array(split.examples["values"])).max()
    texts = [list(map(str, split.examples[name])) for name in ("features", "values")]
    return {"largest_error": float(error)}, samples(*texts, texts_of(predicted))


def texts_of(vectors):
    return [" ".join(f"{number:.3f}" for number in vector) for vector in vectors]


TASK = Task(
    recipe=Recipe(
        name="vectors",
        reads=("features", "values"),
        columns={
            "inputs": Column("source", shape=(K,), dtype="float32"),
            "values": Column("source", along="inputs", shape=(L,), dtype="float32"),
        },
        encode=encode,
        prompt=prompt,
        tokenized=False,
    ),
    heads={"encoder_only": "values"},
    loss=loss,
    metrics=("loss",),
    totals=totals,
    means=means,
    predict=lambda outputs, batch: outputs.values[:, 0],
    judge=lambda means, trained: ("finished", {"train/loss": means["loss"]}),
    score=score,
    results=lambda trained, lines: [
        [text] for text in texts_of(trained.predict(trained.data.prompts(lines)))
    ],
)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """changes -> the config of a small run of this task."""
    monkeypatch.setitem(FAMILIES, "linear", FAMILY)
    monkeypatch.setitem(TASKS, "vectors", TASK)
    rng = np.random.default_rng(0)
    for split, size in (("train", 64), ("test", 7)):
        vectors = rng.normal(size=(size, K))
        rows = [{"x": x.tolist(), "y": (x @ W).tolist()} for x in vectors]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    changes = small.reads("json", "train.jsonl", "test.jsonl") | {
        "data.text_feature": "x",
        "data.label_feature": "y",
        "data.packing": False,
        "data.batch_size": 16,
        "data.max_source_length": 8,
        "data.workers": 1,
        "evaluate.batch_size": 4,
        "model.family": "linear",
        "model.architecture": "encoder_only",
        "task.name": "vectors",
        "optimizer.name": "adam",
        "optimizer.schedule": "constant",
        "optimizer.learning_rate": 0.05,
        "optimizer.warmup_steps": 1,
        "train.steps": 200,
        "train.log_every": 50,
        "train.evaluate_every": 100,
        "train.accumulation_steps": 2,
        "checkpoint.every": 50,
    }
    return small.configs(tmp_path, changes)


def test_vectors_are_trained_resumed_scored_and_predicted(config, tmp_path, capsys):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert train(config(), whole) == 0
    assert train(config(train__steps=100), resumed) == train(config(), resumed) == 0
    assert records(resumed) == records(whole)
    first, *_, last = records(whole)
    assert first["train/loss"] > 0.1 > 1e-3 > last["train/loss"] > 0
    assert last["train/size"] == pytest.approx(np.abs(W).sum(), rel=0.05)
    results = json.loads((resumed / "results.json").read_text())
    assert results["status"] == "finished" and "unigram_entropy" not in results
    assert results["validation/loss"] == last["validation/loss"]
    assert "test/perplexity" not in results
    assert results["test/largest_error"] < 0.1

    capsys.readouterr()
    assert evaluate(config(), whole, None, "test") == 0
    assert "largest_error" in capsys.readouterr().out
    (tmp_path / "lines").write_text("1 0 0\n0 1 1\n")
    assert generate(config(), whole, None, str(tmp_path / "lines"), str(tmp_path / "found")) == 0
    predictions = np.loadtxt(tmp_path / "found")
    np.testing.assert_allclose(predictions, [W[0], W[1] + W[2]], atol=0.1)
