"""Compares runs: what differs in their configs, their scores side by side, and their curves.

    python -m transformer_jax.compare RUN [RUN ...] [--output=compare]

It reads work directories alone, whatever has become of their runs. It needs no JAX, so that it
starts at once.
"""

if __name__ == "__main__":  # before the imports below
    from transformer_jax import interrupt

    interrupt.install()

import argparse
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from configs import default
from transformer_jax import figures, tables
from transformer_jax.workdir import (
    CHECKPOINTS,
    CONFIG,
    WALL,
    read_metrics,
    read_results,
    scores,
    series,
)

# Without label smoothing and z-loss, so that runs which differ in these can be compared.
_CURVES = {"training": "train/token_loss", "validation": "validation/token_loss"}


class Record(NamedTuple):
    """What a run has left in its work directory.

    config: by dotted key, as JSON. labels: those of an experiment's run, empty for any other.
    """

    folder: Path
    config: dict[str, Any]
    labels: dict[str, Any]
    results: dict[str, Any]
    metrics: list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="launch.sh compare",
        description="Shows what differs between the configs of runs and their scores side by "
        "side, and draws their curves. One run alone is shown too.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a --workdir of training")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("compare"),
        metavar="NAME",
        help="writes NAME.png and NAME.svg, or into the folder NAME (default: compare)",
    )
    arguments = parser.parse_args(argv)
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
    paths = dict.fromkeys(Path(os.path.abspath(folder)) for folder in folders)
    faults = {folder: fault for folder in paths if (fault := _fault(folder))}
    lines = [f"{folder} is not a run: {fault}" for folder, fault in faults.items()]
    runs = [read(folder) for folder in paths if folder not in faults]
    if not runs:
        raise ValueError("\n".join(lines))
    for line in lines:
        print(line, file=sys.stderr)
    names = _names(runs)
    print(*tables.aligned([["", *names], *_config_rows(runs), [], *_score_rows(runs)]), sep="\n")
    figure = _draw(runs, names)
    if figure is None:
        print("\nThere are no curves: nothing has been logged yet.")
        return
    stem = output.with_suffix("") if output.suffix in (".png", ".svg") else output
    figures.save(figure, stem)
    print(f"\nThe curves are in {stem}.png and {stem}.svg")


def read(folder: Path) -> Record:
    """Reads a work directory. Raises ValueError naming the file that is broken."""
    labels = _read_json(folder / "run.json").get("labels", [{}])[0]  # experiments write it
    # A key that came after the run has the value by which the code did what it did before.
    config = json.loads(json.dumps(default.get_config().to_dict()))
    flat = _flatten(config) | _flatten(_read_json(folder / CONFIG))
    return Record(folder, flat, labels, read_results(folder), read_metrics(folder))


def _fault(folder: Path) -> str | None:
    """Why a folder is not the work directory of a run, or None."""
    if CHECKPOINTS in (folder.name, folder.parent.name):
        return "it is a part of one; give the folder that was its --workdir"
    if (folder / CONFIG).is_file():
        return None
    if not folder.is_dir():
        return "there is no such folder"
    if inside := sorted(path.parent for path in folder.glob(f"*/{CONFIG}")):
        return f"but it holds some; give these, as {inside[0]}"
    return f"it has no {CONFIG}, which is there once training has begun"


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty where there is none."""
    try:
        content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path} is broken: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is broken: it holds a {type(content).__name__}, not an object")
    return content


def _flatten(config: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """The values of a config by dotted key."""
    flat = {}
    for name, value in config.items():
        key = f"{section}{name}"
        flat |= _flatten(value, f"{key}.") if isinstance(value, dict) else {key: value}
    return flat


def _names(runs: Sequence[Record]) -> list[str]:
    """The shortest names that tell the runs apart: labels of experiments, or the ends of paths."""
    labels = [run.labels for run in runs]
    names = tables.short_names(labels) if all(labels) else []
    depths = itertools.count(1)
    while len(set(names)) < len(runs) or not all(names):
        depth = next(depths)
        names = ["/".join(run.folder.parts[-depth:]) for run in runs]
    return names


def _config_rows(runs: Sequence[Record]) -> list[list[str]]:
    """A row for each key whose value is not the same in all runs."""
    keys = sorted(tables.differing([run.config for run in runs]))
    rows = [[key, *(str(run.config.get(key)) for run in runs)] for key in keys]
    return rows or [["(the same config)"]] * (len(runs) > 1)


def _score_rows(runs: Sequence[Record]) -> list[list[str]]:
    """A row for each fact and score."""
    found = [_facts(run) for run in runs]
    names = dict.fromkeys(name for facts in found for name in facts)
    return [[name, *(facts.get(name, "-") for facts in found)] for name in names]


def _facts(run: Record) -> dict[str, str]:
    """How far a run has come and its scores, as text; before its end, those last logged."""
    logged = {
        name: value
        for record in run.metrics
        for name, value in record.items()
        if name.startswith("validation/") or name == "train/token_loss"
    }
    reached = [run.results.get("steps", 0), *(record["step"] for record in run.metrics)]
    seconds = [record.get(WALL, 0.0) for record in (run.results, *run.metrics)]
    facts = {
        "status": run.results.get("status", "-"),
        "steps": f"{max(reached):,} of {run.config['train.steps']:,}",
        "parameters": tables.cell(run.results.get("parameters", "-")),
        "wall seconds": tables.cell(max(seconds) or "-"),
    }
    found = scores(logged | run.results).items()
    return facts | {name: tables.cell(value) for name, value in found}


def _draw(runs: Sequence[Record], names: Sequence[str]) -> figures.Figure | None:
    """A panel for each loss that some run has logged, with a line per run; None: there is none."""
    curves = {title: [series(run.metrics, name) for run in runs] for title, name in _CURVES.items()}
    shown = {title: lines for title, lines in curves.items() if any(steps for steps, _ in lines)}
    if not shown:
        return None
    figure, axes = figures.panels(1, len(shown), sharex=True, sharey=True)
    for ax, (title, lines) in zip(axes, shown.items(), strict=True):
        for name, (steps, losses) in zip(names, lines, strict=True):
            looks = {**figures.style(name, names), "label": name}
            ax.plot(steps, losses, markevery=max(1, len(steps) // 10), **looks)
        ax.set(title=title, xlabel="step")
    axes[0].set_ylabel("cross-entropy (nats)")
    figures.legend(figure, axes)
    return figure


if __name__ == "__main__":
    sys.exit(main())
