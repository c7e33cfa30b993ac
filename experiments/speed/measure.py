"""Several programs do one piece of work in turn, or start in turn; or one long training run.

    python -m experiments.speed.measure WORK [--programs=ours,torch] [--rounds=7] [--before=FOLDER]

measures one line of the table and keeps nothing. --before adds another checkout of this project
("before"), to see what a change brings.
"""

import argparse
import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.sweep import ROOT
from experiments.speed import commands, peers, training
from experiments.speed.workers import Row, Worker, in_turn
from transformer_jax.config.load import load, to_json
from transformer_jax.configs.default import Config
from transformer_jax.runs.workdir import write_atomically

# PyTorch's threads sleep where they wait, instead of keeping a core that another program may need.
_PASSIVE = "PASSIVE"


def measure(
    config: Config, workdir: Path, *, what: str, changes: Mapping[str, Any], **arguments: Any
) -> list[Row]:
    """Rows of `turns`, of `starts`, of whole commands, or of a long training: what `what` names.

    changes: of the config. They are arguments since settings of decoding are no part of what a run
      is called, and here they make another run.
    """
    config_file = workdir / "config.json"
    write_atomically(config_file, to_json(config))
    if changes:
        write_atomically(config_file, to_json(load(str(config_file), changes)))
    measures = {
        "turns": turns,
        "starts": starts,
        "generate": commands.generate,
        "sweep": commands.sweep,
        "training": training.watch,
    }
    return measures[what](config_file, **arguments)


def turns(
    config_file: Path,
    *,
    work: str,
    programs: Sequence[str],
    rounds: int,
    calls: int,
    arguments: Mapping[str, Any],
    before: str = "",
    spare: bool = False,
    cores: int | None = None,
) -> list[Row]:
    """A row for each program and round: the seconds of one call, and the most memory held.

    Args:
      work: a key of the programs' tables of works, as "step".
      programs: keys of `peers.PROGRAMS`.
      calls: how often the work is done in a turn.
      arguments: of the work, for all programs.
      before: another checkout of this project, which takes part as "before".
      spare: whether a program that fails to start is left out; its row has an "error" alone.
      cores: how many of this machine's all programs share; None: all.
    """
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    failed: list[Row] = []
    with contextlib.ExitStack() as stack:
        works: dict[str, Callable[[], Row]] = {}
        for name in [*programs, *["before"] * bool(before)]:
            code = {"PYTHONPATH": str(Path(before).resolve())} if name == "before" else {}
            try:
                worker = stack.enter_context(_worker(name, config_file, work, arguments, code))
            except RuntimeError as error:
                if not spare:
                    raise
                failed.append({"program": name, "error": str(error)})
            else:
                works[name] = functools.partial(_turn, worker, calls)
        return [*failed, *in_turn(works, rounds)]


def starts(config_file: Path, *, programs: Sequence[str], rounds: int) -> list[Row]:
    """A row for each program and round: seconds until a new process has made a training step.

    "cold" with empty compilation caches, and then "warm", with what the first has put into them.
    """

    def start(name: str) -> Row:
        seconds = {}
        with tempfile.TemporaryDirectory() as cache:
            places = {"JAX_COMPILATION_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
            places["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
            for state in ("cold", "warm"):
                with _worker(name, config_file, "step", {}, places) as worker:
                    seconds[state] = worker.first["seconds"]
        return seconds

    return in_turn({name: functools.partial(start, name) for name in programs}, rounds)


@contextlib.contextmanager
def _worker(
    name: str,
    config_file: Path,
    work: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
) -> Iterator[Worker]:
    """A program that has done its work once. environment: what is added to this process's."""
    program = peers.PROGRAMS["ours" if name == "before" else name]
    folder = peers.folder()
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as workdir:
        worker = Worker(
            program.command(folder),
            {
                "config_file": str(config_file),
                "workdir": workdir,
                "work": program.work or work,
                "arguments": {
                    **({} if program.work else arguments),
                    **program.all_arguments(folder),
                },
            },
            {"OMP_WAIT_POLICY": _PASSIVE, **os.environ, "PYTHONPATH": paths, **environment},
            config_file.with_name(f"{name}.txt"),
        )
        print(f"{name}: {worker.first['seconds']:.1f} s to the first", flush=True)
        with contextlib.closing(worker):
            yield worker


def _turn(worker: Worker, calls: int) -> Row:
    """One turn; the seconds of one call."""
    row = worker(calls)
    seconds, version = row["seconds"] / calls, worker.first["version"]
    return {**row, "seconds": seconds, "calls": calls, "version": version}


def main() -> None:
    """Measures one line of the table and prints it."""
    # Only here: a sweep and a report are no part of a measurement.
    from experiments.harness import results
    from experiments.speed import sweep, table

    works = {
        str(run.labels["work"]): run
        for run in sweep.cpu(quick=False)
        if run.measure and run.measure["what"] == "turns"
    }
    parser = argparse.ArgumentParser(description="Measures one line of the table.")
    parser.add_argument("work", choices=works)
    parser.add_argument("--programs", help="separated by commas (default: all that are here)")
    parser.add_argument("--rounds", type=int, help="turns of each program")
    parser.add_argument("--before", default="", help="another checkout of this project")
    flags = parser.parse_args()
    run = works[flags.work]
    settings: dict[str, Any] = {**(run.measure or {}), "before": flags.before}
    if flags.programs:
        settings["programs"] = flags.programs.split(",")
    if flags.rounds:
        settings["rounds"] = flags.rounds
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(run.resolved, Path(folder), **settings)
    labelled = table.with_limits(run, [{"work": flags.work, **row} for row in rows])
    print(results.table(table.lines(labelled)))


if __name__ == "__main__":
    main()
