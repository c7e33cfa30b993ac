"""Turns lines into vectors."""

from pathlib import Path

from configs.default import Config
from transformer_jax.commands import restore
from transformer_jax.commands.input_output import check_target, read_lines, write
from transformer_jax.commands.outcome import check_trained
from transformer_jax.config.build import built
from transformer_jax.inspection import memory


def embed(config: Config, workdir: Path, checkpoint: str | None, source: str, target: str) -> int:
    """Writes the vector of each of a file's lines as a line of numbers.

    Raises:
      ValueError: the model has no vector of a whole text.
    """
    check_trained(workdir, checkpoint)
    check_target(target)
    lines = read_lines(source)
    with built(config, workdir) as run:
        if not hasattr(run.model, "embed"):
            raise ValueError(
                "only a model with model.architecture='encoder_only' embeds lines, and this is a "
                f"{config.model.architecture!r}"
            )
        memory.check(run, memory.embed(run))
        trained = restore.trained(config, run, workdir, checkpoint)
        run.data.warn_of_unknown_words(lines)
        vectors = trained.embed(lines) if lines else []
    write(target, "".join(" ".join(f"{x:.8g}" for x in vector) + "\n" for vector in vectors))
    return 0
