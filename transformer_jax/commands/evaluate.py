"""Scores a checkpoint."""

from pathlib import Path

from configs.default import Config
from transformer_jax import run_log
from transformer_jax.build import built
from transformer_jax.checkpoint.checkpoints import lock_workdir
from transformer_jax.commands.status import changes, check_trained, named


def evaluate(config: Config, workdir: Path, checkpoint: str | None, name: str) -> int:
    """Scores a checkpoint on the split `name` and shows the scores.

    They go into results.json where they are the run's own: by its config and its checkpoint.
    """
    check_trained(workdir, checkpoint)
    own = checkpoint is None and not changes(config, workdir)
    if own:
        lock_workdir(workdir)
    with built(config, workdir) as run:
        trained = run.trained(run.parameters(workdir, checkpoint or run.evaluate.checkpoint))
        split = run.data.split(name)
        scores, samples = run.task.score(trained, split)
        results = named(name, run.task.losses(trained, split) | scores)
    if own:
        run_log.write_results(workdir, run_log.read_results(workdir) | results)
    print(run_log.format_scores(results), run_log.format_samples(samples), sep="\n\n")
    return 0
