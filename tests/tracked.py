"""The files of the repository: a config or a page of one's own beside them disturbs no test."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked(pattern: str) -> list[Path]:
    """The files that git tracks, by a pattern of `Path.glob`; outside of a clone, all of them."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", f":(glob){pattern}"]
    names = subprocess.run(command, capture_output=True, text=True).stdout.split("\0")
    files = [path for path in map(ROOT.joinpath, filter(None, names)) if path.is_file()]
    return sorted(files or ROOT.glob(pattern))


CONFIGS = tracked("configs/[!_]*.py")
