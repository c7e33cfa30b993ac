"""Scores a checkpoint."""

from pathlib import Path

from transformer_jax.commands.opening import is_own, lock, opened
from transformer_jax.configs.default import Config
from transformer_jax.inspection import memory
from transformer_jax.process import hosts, progress
from transformer_jax.runs import log as run_log
from transformer_jax.runs.workdir import RESULTS, is_writable, merged, read_results, write_results


def evaluate(config: Config, workdir: Path, checkpoint: str | None, name: str | None) -> int:
    """Scores a checkpoint on a split (None: as training does, test or else validation).

    They go into results.json where they are the run's own, by its config and its checkpoint, and
    where the work directory can be written.
    """
    own = checkpoint is None and is_own(config, workdir)
    stored = own and hosts.first(lambda: is_writable(workdir))
    if stored:
        lock(workdir)
    before = read_results(workdir) if own else {}  # now, since a broken file is refused
    with opened(config, workdir, checkpoint, memory.evaluate) as (run, trained, step):
        name = name or ("test" if run.data.has("test") else "validation")
        split = run.data.split(name)
        with progress.phase(f"Scoring the {name} split"):
            scores, samples = run.task.score(trained, split)
            results = run_log.named(name, run.task.losses(trained, split) | scores)
    print(run_log.format_scores(results), run_log.format_samples(samples), sep="\n\n")
    last = str(before.get("steps", step))
    if own and step != last and run.evaluate.checkpoint == "last":
        print(f"\nThese are scores of step {step}, not of {last}: {RESULTS} does not hold them.")
    elif stored and hosts.is_first():
        write_results(workdir, merged(before, results))
    elif own and not stored:
        print(f"\n{workdir} cannot be written: its {RESULTS} does not hold these scores.")
    return 0
