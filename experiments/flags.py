"""The flags of `experiments.run`, which --help prints before libraries are loaded for seconds."""

import argparse
from collections.abc import Sequence

from experiments.harness.executors import EXECUTORS


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags of a command line; it ends the process for --help and for what is no flag."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.run", description="Runs an experiment and writes its report."
    )
    parser.add_argument("folder", help="its name, or the path of a folder elsewhere")
    parser.add_argument("--new", action="store_true", help="make it, with an example to change")
    parser.add_argument("--sweep", help="name in its sweep.py (default: the first)")
    parser.add_argument("--entry", metavar="FILE", help="only this entry, of a folder with entries")
    parser.add_argument("--quick", action="store_true", help="the small version of the sweep")
    parser.add_argument("--dry_run", action="store_true", help="only show what would be run")
    parser.add_argument("--run", metavar="ID", help="only this run, and no report")
    parser.add_argument("--jobs", type=int, help="runs at once (default: what fits)")
    parser.add_argument("--data_dir", help="sets data.dir, for sweeps that need data")
    parser.add_argument("--runs_dir", default="runs/experiments")
    parser.add_argument("--executor", choices=EXECUTORS, default="local", help="where runs go")
    parser.add_argument("--options", help="of sbatch, launch.sh tpu or SkyPilot")
    parser.add_argument("--bucket", help="gs://BUCKET/FOLDER for work directories (tpu, skypilot)")
    return parser.parse_args(argv)
