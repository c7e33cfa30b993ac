"""Translates lines, continues them, classifies or tags them."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transformer_jax.commands.input_output import write
from transformer_jax.commands.opening import opened_for_lines
from transformer_jax.configs.default import Config
from transformer_jax.evaluation.trained import Trained
from transformer_jax.inspection import memory
from transformer_jax.run import Run


def generate(
    config: Config, workdir: Path, checkpoint: str | None, source: str, target: str
) -> int:
    """Writes the results of each of a file's lines, in the same order.

    A line has one line of results, or decode.num_samples of them. Results that a task streams go
    to standard output as they are made, line breaks and all.

    Raises:
      ValueError: the task has no results.
    """

    def phases(run: Run) -> memory.Phases:
        check(run)
        return memory.generate(run, 1 if _stream(run, target) else None)

    with opened_for_lines(config, workdir, checkpoint, source, target, phases) as opened:
        run, trained, lines = opened
        if stream := _stream(run, target):
            for number, line in enumerate(lines):
                for piece in stream(trained, line, number):
                    write("-", piece)
            return 0
        texts = [text for results in check(run)(trained, lines) for text in results]
    write(target, "".join(map(as_line, texts)))
    return 0


def as_line(text: str) -> str:
    """A text in one line, whose line breaks are blanks; U+2028 and form feeds stay."""
    return re.sub("\r\n|\r|\n", " ", text.removesuffix("\n")) + "\n"


def check(run: Run) -> Callable[[Trained, Sequence[str]], list[list[str]]]:
    """What gives the results of each line. Raises ValueError where the task has none."""
    if run.task.results is None:
        raise ValueError(f"a model of {run.task.recipe.name} generates nothing; see `embed`")
    return run.task.results


def _stream(run: Run, target: str) -> Callable[[Trained, str, int], Iterator[str]] | None:
    """What gives a line's results piece by piece; None where they go out as a whole."""
    return run.task.stream if target == "-" and run.decode.method != "beam" else None
