"""The files of the repository: a config or a page of one's own beside them disturbs no test."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked(pattern: str) -> list[Path]:
    """The files that git tracks, by a pattern of `Path.glob`; outside of a clone, all of them."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", f":(glob){pattern}"]
    try:
        names = subprocess.run(command, capture_output=True, text=True).stdout.split("\0")
    except OSError:  # no git
        names = []
    return sorted(filter(Path.is_file, map(ROOT.joinpath, filter(None, names)))) or sorted(
        ROOT.glob(pattern)
    )


CONFIGS = tracked("configs/[!_]*.py")
