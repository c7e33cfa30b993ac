"""Compares runs: what differs in their configs, their scores side by side, and their curves.

    python -m transformer_jax.tools.reports.compare RUN [RUN ...] [--output=compare]

It reads work directories alone, whatever has become of their runs. It needs no JAX, so that it
starts at once.
"""

if __name__ == "__main__":  # before the imports below
    from transformer_jax.process import interrupt

    interrupt.install()

import argparse
import bisect
import itertools
import math
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_jax.process import tables
from transformer_jax.tools.reports import figures
from transformer_jax.tools.reports.arms import Arm, arms, config_rows, score_rows
from transformer_jax.tools.reports.intervals import convention
from transformer_jax.tools.reports.looks import style
from transformer_jax.tools.reports.records import gather, series

_BREAKS = textwrap.TextWrapper(24, break_long_words=False, break_on_hyphens=False)  # of names
_CURVES = {"train": "training", "validation": "validation"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="launch.sh compare",
        description="Shows what differs between the configs of runs and their scores side by "
        "side, with means over seeds, and draws their curves. One run alone is shown too.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a --workdir of training")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("compare"),
        metavar="NAME",
        help="writes NAME.png and NAME.svg, or into the folder NAME (default: compare)",
    )
    arguments = parser.parse_intermixed_args(argv)
    try:
        compare(arguments.runs, arguments.output)
        return 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def compare(folders: Sequence[Path], output: Path) -> None:
    """Prints the table of the runs, and writes their curves into OUTPUT.png and OUTPUT.svg.

    A folder that is not a run is passed over with a line that says why.

    Raises:
      ValueError, OSError: no folder is a run, what one holds cannot be read, or the figure cannot
        be written.
    """
    output = output / "compare" if output.is_dir() else output
    if not output.parent.is_dir():
        raise ValueError(f"--output={output}: there is no folder {output.parent}")
    groups = arms(gather(folders))
    heads = [_BREAKS.wrap(str(arm)) for arm in groups]
    head = [["", *line] for line in itertools.zip_longest(*heads, fillvalue="")]
    table = [*head, *config_rows(groups), [], *score_rows(groups)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    print("\n\n".join("\n".join(tables.aligned(part)) for part in _parts(table, room)))
    if sentence := convention(len(arm.runs) for arm in groups):
        print(f"\n{sentence}")
    if (figure := _draw(groups)) is None:
        print("\nThere are no curves: nothing has been logged yet.")
        return
    stem = output.with_suffix("") if output.suffix in (".png", ".svg") else output
    figures.save(figure, stem)
    print(f"\nThe curves are in {stem}.png and {stem}.svg")


def _parts(table: Sequence[Sequence[str]], room: float) -> Iterator[list[list[str]]]:
    """The table in parts of as many columns as there is room for, in characters, the first again
    in each."""
    columns = itertools.zip_longest(*table, fillvalue="")
    first, *widths = [2 + max(map(len, column)) for column in columns]
    begin = 0
    while begin < len(widths):
        ends = [first - 2 + width for width in itertools.accumulate(widths[begin:])]
        end = begin + max(1, bisect.bisect_right(ends, room))
        yield [[*row[:1], *row[1 + begin : 1 + end]] for row in table]
        begin = end


def _draw(arms: Sequence[Arm]) -> figures.Figure | None:
    """A panel for each split of which some run has logged the loss, with a line per run in the
    looks of its arm; None: there is none.

    That of tokens is without label smoothing and z-loss, so that runs which differ in these can be
    compared.
    """
    runs = [(arm, run) for arm in arms for run in arm.runs]
    tokens = any(f"{split}/token_loss" in run.curves for _, run in runs for split in _CURVES)
    loss = "token_loss" if tokens else "loss"
    curves = {
        title: [series(run, f"{split}/{loss}") for _, run in runs]
        for split, title in _CURVES.items()
    }
    panels = {
        title: lines for title, lines in curves.items() if any(line["steps"] for line in lines)
    }
    if not panels:
        return None
    figure, axes = figures.panels(1, len(panels), sharex=True, sharey=True)
    for ax, (title, lines) in zip(axes, panels.items(), strict=True):
        for (arm, _), line in zip(runs, lines, strict=True):
            looks = {**style(arm.name, [each.name for each in arms]), "label": str(arm)}
            ax.plot(*line.values(), markevery=max(1, len(line["steps"]) // 10), **looks)
        ax.set(title=title, xlabel="step")
    axes[0].set_ylabel("cross-entropy (nats)" if tokens else "loss")
    figures.legend(figure, axes)
    return figure


if __name__ == "__main__":
    sys.exit(main())
