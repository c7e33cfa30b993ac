"""Writes pages that open from disk."""

from pathlib import Path

from configs.default import Config
from transformer_jax.commands import restore
from transformer_jax.commands.input_output import check_target, read_lines, write
from transformer_jax.commands.outcome import check_trained
from transformer_jax.config.build import built
from transformer_jax.inspection import memory
from transformer_jax.process import hosts
from transformer_jax.tools.pages import look as look_page


def look(config: Config, workdir: Path, checkpoint: str | None, source: str, target: str) -> int:
    """Writes a page of where the model looks in each of a file's lines and what it makes of it.

    Raises:
      ValueError: there are no lines.
    """
    check_trained(workdir, checkpoint)
    check_target(target)
    lines = read_lines(source)
    with built(config, workdir) as run:
        memory.check(run, memory.generate(run))
        trained = restore.trained(config, run, workdir, checkpoint)
        run.data.warn_of_unknown_words(lines)
        text = look_page.look(run, trained, lines, f"Attention of {workdir.name}")
    write(target, text)
    if target != "-" and hosts.is_first():
        print(f"The page is {target} ({len(text.encode()) / 1e6:.1f} MB)")
    return 0
