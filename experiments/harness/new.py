"""A new experiment: a folder that runs as it stands, for its author to change."""

from pathlib import Path

from experiments.harness.results import markers

_SWEEP = '''\
"""The runs: as an example, two residual schemes and two seeds of a tiny language model."""

from experiments.harness.sweep import Run, grid


def cpu(quick: bool) -> list[Run]:
    """What the plain command runs."""
    return [
        Run(
            config="configs/bigram_copy.py",
            overrides={
                "model.residual": row["scheme"],
                "train.steps": 20 if quick else 300,
                "seed": row["seed"],
            },
            labels=row,
        )
        for row in grid(scheme=["post_ln", "pre_ln"], seed=range(1 if quick else 2))
    ]


SWEEPS = {"cpu": cpu}
'''
_README = """\
# {name}

## Question

What do you want to know?

## Protocol

    ./launch.sh experiment {command}

## Results

{markers}

## Conclusion

| Claim | Source | Verdict | Size |
|---|---|---|---|

## What it does not show
"""


def make(folder: Path, command: str) -> str:
    """Makes the folder of an experiment that `command` names; returns what to do next.

    Raises:
      FileExistsError: there is something of this name already.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; choose another name")
    folder.mkdir(parents=True)
    lines = "\n".join(markers("cpu"))
    readme = _README.format(name=folder.name, command=command, markers=lines)
    (folder / "README.md").write_text(readme, "utf-8")
    (folder / "sweep.py").write_text(_SWEEP, "utf-8")
    (folder / "__init__.py").write_text('"""What do you want to know?"""\n', "utf-8")
    return f"""Made {folder}:
  sweep.py   its runs; change the example
  README.md  the question; the report goes there
  rows.py    if you write it, schemes, probes, sources of its own (docs/extending.md)
Then:
  ./launch.sh experiment {command} --dry_run   lists the runs
  ./launch.sh experiment {command} --quick     tries a small version
  ./launch.sh experiment {command}             runs them and writes the report"""
