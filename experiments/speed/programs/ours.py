"""This project's work: what `build` makes of the config, through the functions that users run."""

if __name__ == "__main__":  # before the imports below, as the command line does
    from transformer_jax.process import machine

    machine.keep_freed_memory()

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import worker

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.config.load import load
from transformer_jax.data.prepare import tokenizer
from transformer_jax.devices.mesh import place, place_ahead
from transformer_jax.evaluation.decoder import Decoder
from transformer_jax.evaluation.generate import generate
from transformer_jax.inspection.memory import compiled_step
from transformer_jax.run import Run
from transformer_jax.runs.workdir import TOKENIZER

Work = Callable[[], dict[str, float] | None]


def main() -> None:
    """Builds the run and serves its work."""
    spec, answers = worker.start()
    arguments = spec["arguments"]
    config = load(spec["config_file"], arguments.pop("changes", {}))
    workdir = Path(spec["workdir"])
    if config.data.source == "embedded":  # random tokens are read: the corpus is not made
        stand_in = tokenizer.train_tokenizer("bytes", (), 0, [tokenizer.MASK])
        stand_in.save(workdir / TOKENIZER)
    with build.built(config, workdir) as run:
        work = WORKS[spec["work"]](run, **arguments)
        worker.serve(answers, work, f"JAX {jax.__version__}", _device_peak)


def _device_peak() -> int:
    return jax.devices()[0].memory_stats()["peak_bytes_in_use"]


def _step(run: Run) -> Work:
    """A training step on one batch of random tokens."""
    batch = place(run.mesh, _random_batch(run))
    state, step = run.new_state(batch), compiled_step(run)

    def work() -> None:
        nonlocal state
        state, _ = step(state, batch)
        jax.block_until_ready(state)

    return work


def _epoch(run: Run) -> Work:
    """A training step on the next batch of the data; `slots`: the targets that it has room for."""
    streams = run.train_streams()
    placed = place_ahead(streams, run.mesh)
    state, step = run.new_state(next(placed)[0]), compiled_step(run)

    def work() -> dict[str, float]:
        nonlocal state
        batch, _ = next(placed)
        state, metrics = step(state, batch)
        jax.block_until_ready(state)
        return {"tokens": float(metrics["weight"]), "slots": float(batch["targets"].size)}

    return work


def _pipeline(run: Run) -> Work:
    """The next batch of the data, alone."""
    streams = run.train_streams()

    def work() -> dict[str, float]:
        targets = next(streams)["targets"]
        return {"tokens": float(np.count_nonzero(targets)), "slots": float(targets.size)}

    return work


def _decode(run: Run, *, tokens: int) -> Work:
    """So many tokens after each of a batch of random prompts; none of them ends before."""
    settings, batch = run.data.settings, _random_batch(run)
    params = run.new_state(place(run.mesh, batch)).params
    rows = np.arange(settings.batch_size)
    prompt = np.asarray(
        lab.random_batch(
            jax.random.key(1), run.model.config.vocab_size, rows.size, settings.max_prompt_length
        )["inputs"]
    )
    prompts = {
        "inputs": prompt,
        "inputs_segment_ids": np.ones_like(prompt),
        "inputs_positions": np.broadcast_to(
            np.arange(prompt.shape[1], dtype=np.int32), prompt.shape
        ),
    }

    decoder = Decoder(
        model=run.model,
        settings=run.decode,
        ends=(-1,),  # no token, so that the limit alone ends a sentence
        pad=-2,
        never=(),
        limit=lambda lengths, *_: np.full_like(lengths, tokens),
    )

    def work() -> None:
        outputs = generate(decoder, params, [(prompts, rows)], jax.random.key(0))
        lengths = {len(ids) + 1 for ids in itertools.chain(*outputs)}
        assert lengths == {tokens}, f"{lengths} tokens instead of {tokens}"

    return work


def _compile(run: Run) -> Work:
    """Tracing and compiling the training step, of shapes alone."""

    jax.config.update("jax_enable_compilation_cache", False)

    def work() -> None:
        jax.clear_caches()
        run.train_step().lower(run.abstract_state, run.abstract_batch()).compile()

    return work


def _products(run: Run, *, shapes: list[tuple[int, int, int]]) -> Work:
    """Each product (m, k) x (k, n) by XLA, one after the other."""
    dtype = run.model.config.compute_dtype
    keys = jax.random.split(jax.random.key(0), 2 * len(shapes)).reshape(-1, 2)
    pairs = [
        (jax.random.normal(a, (m, k), dtype), jax.random.normal(b, (k, n), dtype))
        for (a, b), (m, k, n) in zip(keys, shapes, strict=True)
    ]
    product = jax.jit(jnp.matmul)

    def work() -> None:
        for a, b in pairs:
            product(a, b).block_until_ready()

    return work


def _random_batch(run: Run) -> dict[str, np.ndarray]:
    """Rows full of random tokens, in all that a training batch holds."""
    shapes = run.abstract_batch()
    (shape,) = {each.shape for each in shapes.values()}
    batch: Any = lab.random_batch(jax.random.key(0), run.model.config.vocab_size, *shape)
    return {name: np.asarray(batch[name]) for name in shapes}


WORKS: dict[str, Callable[..., Work]] = {
    "step": _step,
    "epoch": _epoch,
    "pipeline": _pipeline,
    "decode": _decode,
    "compile": _compile,
    "products": _products,
}

if __name__ == "__main__":
    main()
