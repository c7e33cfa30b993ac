"""Writes pages that open from disk."""

import sys
from pathlib import Path

from transformer_jax.commands.input_output import write
from transformer_jax.commands.opening import opened_for_lines
from transformer_jax.configs.default import Config
from transformer_jax.inspection import memory
from transformer_jax.process import hosts
from transformer_jax.tools.pages import look as texts
from transformer_jax.tools.pages import pictures
from transformer_jax.tools.pages.page import check_name

_LARGE = 10  # MB of a page that is told of before it is written


def look(config: Config, workdir: Path, checkpoint: str | None, source: str, target: str) -> int:
    """Writes a page of where the model looks in each of a file's lines and what it makes of it.

    Raises:
      ValueError: there are no lines, which a model of images may do without, or the file's name is
        not one of a page.
    """
    check_name(target)
    with opened_for_lines(config, workdir, checkpoint, source, target, memory.generate) as opened:
        run, trained, lines = opened
        module = pictures if run.data.settings.images else texts
        text = module.look(run, trained, lines, f"Attention of {workdir.name}")
    if (size := len(text.encode()) / 1e6) > _LARGE and hosts.is_first():
        print(f"Writing {size:.1f} MB: fewer or shorter lines make it less", file=sys.stderr)
    write(target, text)
    if target != "-" and hosts.is_first():
        print(f"The page is {target} ({size:.1f} MB)")
    return 0
