"""The time of a training step by length; BLEU by the length of sources."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.config.load import replace
from transformer_jax.configs.default import Config
from transformer_jax.evaluation import scores


def measure(
    config: Config,
    workdir: Path,
    *,
    lengths: Sequence[int] = (),
    tokens: int = 0,
    rounds: int = 0,
    bounds: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """Rows of either kind.

    lengths: rows {length, round, milliseconds} of a training step on so many `tokens`.
    bounds: rows {words, sentences, bleu, exact_match} of the trained model's translations of test,
    by the words of the source: up to the first bound, up to the second ..., and beyond the last.
    """
    if lengths:
        return [row for length in lengths for row in _steps(config, length, tokens, rounds)]
    return _by_length(config, workdir, bounds)


def _steps(config: Config, length: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """The first two steps, which compile and warm up, do not count."""
    rows = tokens // length
    changes = {"data.batch_size": rows, "data.max_target_length": length}
    run = build.build(replace(config, changes))
    batch = lab.random_batch(jax.random.key(0), 256, rows, length)
    batch = {name: value for name, value in batch.items() if name.startswith("targets")}
    state, step, seconds = run.new_state(batch), run.train_step(), []
    for _ in range(rounds + 2):
        started = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready((state.params, metrics))
        seconds.append(time.perf_counter() - started)
    return [
        {"length": length, "round": number, "milliseconds": 1e3 * value}
        for number, value in enumerate(seconds[2:])
    ]


def _by_length(config: Config, workdir: Path, bounds: Sequence[int]) -> list[dict[str, Any]]:
    run = build.build(config, workdir)
    params = lab.trained(run, workdir)
    if params is None:
        return []
    trained = run.trained(params)
    split = trained.data.split("test")
    decode = trained.data.tokenizer.decode
    texts = [decode(ids) for (ids,) in trained.generate(split.batches)]
    sources, references = split.examples["source"], split.examples["target"]
    part = np.searchsorted(bounds, [len(source.split()) for source in sources])
    rows = []
    for number in range(len(bounds) + 1):
        (members,) = np.nonzero(part == number)
        if not len(members):
            continue
        hypotheses = [texts[int(i)] for i in members]
        right = [[references[int(i)]] for i in members]
        bleu = scores.bleu(hypotheses, right, trained.bleu_tokenizer)
        rows.append(
            {
                "words": f"up to {bounds[number]}" if number < len(bounds) else "more",
                "sentences": len(members),
                "bleu": bleu["bleu"],
                **scores.exact_match(hypotheses, right),
            }
        )
    return rows
