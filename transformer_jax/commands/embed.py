"""Turns lines into vectors."""

from pathlib import Path

from transformer_jax.commands.input_output import write
from transformer_jax.commands.opening import opened_for_lines
from transformer_jax.configs.default import Config
from transformer_jax.inspection import memory
from transformer_jax.run import Run


def embed(config: Config, workdir: Path, checkpoint: str | None, source: str, target: str) -> int:
    """Writes the vector of each of a file's lines as a line of numbers.

    Raises:
      ValueError: the model has no vector of a whole text.
    """
    with opened_for_lines(config, workdir, checkpoint, source, target, phases) as opened:
        _, trained, lines = opened
        vectors = trained.embed(lines) if lines else []
    write(target, "".join(" ".join(f"{x:.8g}" for x in vector) + "\n" for vector in vectors))
    return 0


def phases(run: Run) -> memory.Phases:
    """What embedding takes. Raises ValueError where the model has no vector of a whole text."""
    if not hasattr(run.model, "embed"):
        raise ValueError(
            "only a model with model.architecture='encoder_only' embeds lines, and this is a "
            f"{run.model.config.architecture!r}"
        )
    return memory.embed(run)
