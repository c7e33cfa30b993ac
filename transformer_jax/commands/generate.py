"""Translates lines, continues them, classifies or tags them."""

from pathlib import Path

from configs.default import Config
from transformer_jax.commands import restore
from transformer_jax.commands.input_output import check_target, read_lines, write
from transformer_jax.commands.outcome import check_trained
from transformer_jax.config.build import built
from transformer_jax.inspection import memory


def generate(
    config: Config, workdir: Path, checkpoint: str | None, source: str, target: str
) -> int:
    """Writes the results of each of a file's lines, in the same order.

    A line has one line of results, or decode.num_samples of them. Results that a task streams go
    to standard output as they are made, line breaks and all.

    Raises:
      ValueError: the task has no results.
    """
    check_trained(workdir, checkpoint)
    check_target(target)
    lines = read_lines(source)
    with built(config, workdir) as run:
        task = run.task
        if task.results is None:
            raise ValueError(f"a model of {task.recipe.name} generates nothing; see --mode=embed")
        stream = task.stream if target == "-" and run.decode.method != "beam" else None
        memory.check(run, memory.generate(run, 1 if stream else None))
        trained = restore.trained(config, run, workdir, checkpoint)
        run.data.warn_of_unknown_words(lines)
        if stream:
            for number, line in enumerate(lines):
                for piece in stream(trained, line, number):
                    write("-", piece)
            return 0
        texts = [text for found in task.results(trained, lines) for text in found]
    write(target, "".join(" ".join(text.splitlines()) + "\n" for text in texts))
    return 0
