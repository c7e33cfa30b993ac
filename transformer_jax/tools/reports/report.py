"""Shows runs as one page that opens from disk: what `compare` prints, and their curves to explore.

    python -m transformer_jax.tools.reports.report RUN [RUN ...] [--output=report.html]
    python -m transformer_jax.tools.reports.report --experiment=NAME [--runs_dir=runs/experiments]

It reads work directories alone, whatever has become of their runs, and needs no JAX.
"""

if __name__ == "__main__":  # before the imports below
    from transformer_jax.process import interrupt

    interrupt.install()

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.runs.workdir import CONFIG, write_atomically
from transformer_jax.tools.pages.page import ROOT, check_name
from transformer_jax.tools.reports.page import report
from transformer_jax.tools.reports.readme import readme
from transformer_jax.tools.reports.records import gather


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="launch.sh report",
        description="Writes one HTML page that shows what `compare` prints, and curves, "
        "diagnostics, samples and outcomes of runs. It opens from disk, without a network.",
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="a --workdir of training")
    parser.add_argument("--experiment", metavar="NAME", help="an experiment, its trained runs")
    parser.add_argument(
        "--runs_dir",
        type=lambda folder: Path(os.path.expanduser(folder)),  # a user who is not here stays
        default=Path("runs/experiments"),
        metavar="DIR",
        help="where the runs of experiments are (default: runs/experiments)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: report.html)",
    )
    arguments = parser.parse_intermixed_args(argv)
    try:
        if bool(arguments.runs) == bool(arguments.experiment):
            raise ValueError("give RUN ..., the work directories, or --experiment=NAME")
        if arguments.experiment:
            _write(*_of_experiment(arguments.experiment, arguments.runs_dir), arguments.output)
        else:
            _write(arguments.runs, "Runs", "", arguments.output)
        return 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _write(folders: Sequence[Path], title: str, body: str, output: Path) -> None:
    check_name(output)
    if output.is_dir():
        raise ValueError(f"--output={output} is a folder: name a file, as {output}/report.html")
    if not output.parent.is_dir():
        raise ValueError(f"--output={output}: there is no folder {output.parent}")
    runs = gather(folders) if folders else []
    text = report(runs, title, body)
    write_atomically(output, text)
    count = f"{len(runs)} run{'s' * (len(runs) != 1)}" if runs else title
    print(f"The page of {count} is {output} ({len(text.encode()) / 1e6:.1f} MB)")


def _of_experiment(experiment: str, runs_dir: Path) -> tuple[list[Path], str, str]:
    """The work directories of the trained runs of an experiment, a name or the path of a folder,
    and the title and the HTML of its README, if it is here."""
    name = Path(experiment).name
    runs = sorted(path.parent for path in (runs_dir / name).glob(f"*/{CONFIG}"))
    for folder in (Path(experiment), ROOT / "experiments" / name):
        if (folder / "README.md").is_file():
            return runs, *readme(folder)
    if not runs:
        what = "has no trained runs" if (runs_dir / name).is_dir() else "is not there"
        raise ValueError(
            f"{runs_dir / name} {what}: run ./launch.sh experiment {experiment}, or name its "
            "--runs_dir"
        )
    return runs, name, ""


if __name__ == "__main__":
    sys.exit(main())
