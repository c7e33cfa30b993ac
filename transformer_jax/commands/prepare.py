"""Prepares the data of a config, so that training and scoring find it ready."""

from pathlib import Path

from transformer_jax import tasks
from transformer_jax.config import build_data
from transformer_jax.configs.default import Config
from transformer_jax.data.prepare.summary import report


def prepare(config: Config, workdir: Path | None, check: bool) -> int:
    """Makes the tokenizer and the token arrays of every split, and prints what is in them.

    check: whether what was prepared before is compared with all of the files that it came from.
    """
    task = tasks.choose(config.task.name, config.model.architecture)
    data = build_data.dataset(config, task, workdir)
    print(report(data.summaries()))
    if check:
        data.check()
        print("The content of all files is what was prepared.")
    return 0
