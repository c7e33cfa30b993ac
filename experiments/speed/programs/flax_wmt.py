"""google/flax's work: train.py, models.py and decode.py of its examples/wmt, from a checkout.

All that runs is theirs. What stands in for the libraries that read data and write logs, which this
project does not install, is never called.
"""

# pyright: reportMissingImports=false

import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import flax.training.checkpoints  # it asks for TensorFlow, so before the stand-in
import jax
import jax.numpy as jnp
import numpy as np
import worker

from transformer_jax.config import build
from transformer_jax.config.load import load

Work = Callable[[], dict[str, float] | None]
_BATCHES = 100  # of this project's, whose sentences it reads again and again


def main() -> None:
    """Imports the example and serves its work."""
    spec, answers = worker.start()
    arguments = spec["arguments"]
    sys.path.insert(0, arguments.pop("checkout"))
    for name in ("clu", "tensorflow", "input_pipeline", "bleu"):
        sys.modules[name] = MagicMock()
    import train

    if spec["work"] == "epoch":
        work = _epoch(train, spec)
    else:
        work = {"step": _step, "decode": _decode}[spec["work"]](train, spec["config"], **arguments)
    worker.serve(answers, work, f"Flax {flax.__version__}, JAX {jax.__version__}")


def _step(train: Any, config: dict) -> Work:
    """Its `train_step`, with the batch that its packed pipeline would make of full rows."""
    data = config["data"]
    tokens = _tokens(config, data["batch_size"], data["row_target_length"])
    batch = {"inputs": tokens, "targets": tokens[::-1]}
    for side in ("inputs", "targets"):
        batch[f"{side}_position"] = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        batch[f"{side}_segmentation"] = np.ones_like(tokens)
    batch = {name: np.asarray(rows, np.int32)[None] for name, rows in batch.items()}
    return _steps(train, config, itertools.repeat(batch))


def _epoch(train: Any, spec: dict) -> Work:
    """Its `train_step` on the sentences that this project reads, packed as its pipeline does.

    The batches are made before any time is taken.
    """
    run = build.build(load(spec["config_file"]), Path(spec["workdir"]))
    spec["config"]["model"]["vocab_size"] = run.model.config.vocab_size
    settings = run.data.settings
    streams, pairs = run.train_streams(), []
    for _ in range(_BATCHES):
        pairs += unpacked(next(streams))
    # In the order that they came in, packing would find the same full rows again.
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    lengths = settings.rows["source"], settings.rows["target"]
    rows = packed([pairs[place] for place in order], *lengths)
    count = len(rows["targets"]) // settings.batch_size
    batches = [
        {name: part[None] for name, part in zip(rows, parts, strict=True)}
        for parts in zip(
            *(np.split(part[: count * settings.batch_size], count) for part in rows.values()),
            strict=True,
        )
    ]
    return _steps(train, spec["config"], itertools.cycle(batches))


def unpacked(batch: dict[str, np.ndarray]) -> list[tuple[list[int], list[int]]]:
    """The pairs (source, target) of a packed batch, row by row."""
    pairs = []
    for row in range(len(batch["targets"])):
        inputs, targets = batch["inputs_segment_ids"][row], batch["targets_segment_ids"][row]
        for segment in range(1, int(targets.max()) + 1):
            source = batch["inputs"][row][inputs == segment].tolist()
            pairs.append((source, batch["targets"][row][targets == segment].tolist()))
    return pairs


def packed(
    pairs: Iterable[tuple[list[int], list[int]]], source_length: int, target_length: int
) -> dict[str, np.ndarray]:
    """Rows as the example's `input_pipeline.pack_dataset` fills them, with its names.

    A pair goes into the open row where it fits, otherwise the row is closed and a new one opened.
    """
    rows: list[list[tuple[list[int], list[int]]]] = [[]]
    for pair in pairs:
        lengths = [sum(map(len, side)) for side in zip(*rows[-1], pair, strict=True)]
        if rows[-1] and (lengths[0] > source_length or lengths[1] > target_length):
            rows.append([])
        rows[-1].append(pair)
    arrays = {}
    for side, (name, length) in enumerate((("inputs", source_length), ("targets", target_length))):
        shape = (len(rows), length)
        tokens, positions, segments = (np.zeros(shape, np.int32) for _ in range(3))
        for number, row in enumerate(rows):
            texts = [pair[side] for pair in row]
            size = sum(map(len, texts))
            tokens[number, :size] = list(itertools.chain(*texts))
            positions[number, :size] = list(itertools.chain(*(range(len(text)) for text in texts)))
            segments[number, :size] = np.repeat(range(1, len(texts) + 1), list(map(len, texts)))
        arrays |= {
            name: tokens,
            f"{name}_position": positions,
            f"{name}_segmentation": segments,
        }
    return arrays


def _steps(train: Any, config: dict, batches: Iterable[dict[str, np.ndarray]]) -> Work:
    """Its `train_step` on the next batch, each (1, B, T) for one device."""
    batches = iter(batches)
    batch = next(batches)
    state, step = _training(train, config, batch["targets"].shape[1:])
    keys = jax.random.split(jax.random.key(0), 1)

    def work() -> dict[str, float]:
        nonlocal state
        batch = next(batches)
        state, _ = step(state, batch, dropout_rng=keys)
        jax.block_until_ready(state)
        return {"tokens": float(np.count_nonzero(batch["targets"])), "slots": batch["targets"].size}

    return work


def _decode(train: Any, config: dict, *, tokens: int) -> Work:
    """Its `predict_step`: beam search, in which no sentence ends before so many tokens."""
    data, beam_size = config["data"], config["decode"]["beam_size"]
    model = _config(train, config).replace(deterministic=True, decode=True)
    prompt = _tokens(config, data["batch_size"], data["max_source_length"])
    params = _parameters(train, config, prompt.shape)
    params, prompt = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (params, prompt))
    length = tokens + 1  # it counts the place of what is read first
    cache = jax.pmap(
        functools.partial(train.initialize_cache, max_decode_len=length, config=model),
        axis_name="batch",
    )
    predict = jax.pmap(
        functools.partial(train.predict_step, config=model, beam_size=beam_size),
        axis_name="batch",
        static_broadcasted_argnums=(3, 4),
    )

    def work() -> None:
        ids = predict(prompt, params, cache(prompt), -1, length)  # -1: no token ends a sentence
        assert np.asarray(ids).shape[-1] == tokens

    return work


def _training(train: Any, config: dict, shape: tuple[int, int]) -> tuple[Any, Callable]:
    """State and step, as `train.train_and_evaluate` makes them."""
    settings = config["optimizer"]
    schedule = train.create_learning_rate_schedule(learning_rate=0.002, warmup_steps=1000)
    state = train.TrainState.create(
        apply_fn=None,
        params=_parameters(train, config, shape),
        tx=train.optax.adamw(
            learning_rate=schedule,
            b1=settings["beta1"],
            b2=settings["beta2"],
            eps=settings["epsilon"],
            weight_decay=0.0,
        ),
        dynamic_scale=None,
    )
    step = jax.pmap(
        functools.partial(
            train.train_step,
            config=_config(train, config),
            learning_rate_fn=schedule,
            label_smoothing=config["task"]["label_smoothing"],
        ),
        axis_name="batch",
        donate_argnums=(0,),
    )
    return train.jax_utils.replicate(state), step


def _config(train: Any, config: dict) -> Any:
    sizes = config["model"]
    return train.models.TransformerConfig(
        vocab_size=sizes["vocab_size"],
        output_vocab_size=sizes["vocab_size"],
        share_embeddings=True,
        logits_via_embedding=True,
        dtype=jnp.dtype(sizes["dtype"]),
        emb_dim=sizes["d_model"],
        num_heads=sizes["num_heads"],
        num_layers=sizes["num_layers"],
        qkv_dim=sizes["d_model"],
        mlp_dim=sizes["d_ff"],
        max_len=256,
        dropout_rate=sizes["dropout_rate"],
        attention_dropout_rate=sizes["attention_dropout_rate"],
    )


def _parameters(train: Any, config: dict, shape: tuple[int, int]) -> Any:
    model = train.models.Transformer(_config(train, config).replace(deterministic=True))
    ones = jnp.ones(shape, jnp.float32)
    return jax.jit(model.init)(jax.random.key(0), ones, ones)["params"]


def _tokens(config: dict, rows: int, length: int) -> np.ndarray:
    vocab_size = config["model"]["vocab_size"]
    return np.random.default_rng(0).integers(3, vocab_size, (rows, length), np.int32)


if __name__ == "__main__":
    main()
