"""Scores a checkpoint."""

from pathlib import Path

from configs.default import Config
from transformer_jax import progress, run_log
from transformer_jax.build import built
from transformer_jax.commands.files import lock
from transformer_jax.commands.status import changes, check_trained, named
from transformer_jax.devices import hosts
from transformer_jax.workdir import read_results, write_results


def evaluate(config: Config, workdir: Path, checkpoint: str | None, name: str) -> int:
    """Scores a checkpoint on the split `name` and shows the scores.

    They go into results.json where they are the run's own: by its config and its checkpoint.
    """
    check_trained(workdir, checkpoint)
    own = checkpoint is None and not changes(config, workdir)
    if own:
        lock(workdir)
    with built(config, workdir) as run:
        trained = run.trained(run.parameters(workdir, checkpoint or run.evaluate.checkpoint))
        split = run.data.split(name)
        with progress.phase(f"Scoring the {name} split"):
            scores, samples = run.task.score(trained, split)
            results = named(name, run.task.losses(trained, split) | scores)
    if own and hosts.is_first():
        write_results(workdir, read_results(workdir) | results)
    print(run_log.format_scores(results), run_log.format_samples(samples), sep="\n\n")
    return 0
