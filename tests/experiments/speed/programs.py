"""The scripts of experiments/speed/programs as modules."""

import importlib
import sys
from types import ModuleType

from experiments.speed.peers import SCRIPTS


def program(name: str) -> ModuleType:
    """A script by its name; they find each other as in a process of their own."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(SCRIPTS))
