"""The programs that are compared, and where those of others lie on this machine.

The environment variable SPEED_PEERS names a folder: README.md says how to fill it. What it does not
hold is left out.
"""

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.speed.limit import PRODUCTS

SCRIPTS = Path(__file__).parent / "programs"
_PYTHON = "venv/bin/python"  # with PyTorch and transformers
_FLAX, _NANOGPT = "flax/examples/wmt", "nanoGPT"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One program: a script of the folder `programs`, and what it gets.

    Attributes:
      title: what tables call it.
      script: its file.
      python: that it runs with, relative to SPEED_PEERS; "" for this project's own.
      checkout: whose code it runs, relative to SPEED_PEERS; "" for none.
      work: that it does whatever the others do; "" for the same.
      arguments: of its work.
    """

    title: str
    script: str
    python: str = ""
    checkout: str = ""
    work: str = ""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def is_here(self, peers: Path | None) -> bool:
        """Whether the folder of peers holds what it needs."""
        needed = [path for path in (self.python, self.checkout) if path]
        return all(peers is not None and (peers / path).exists() for path in needed)

    def all_arguments(self, peers: Path | None) -> dict[str, Any]:
        """Its arguments, with the place of its checkout."""
        checkout = {"checkout": str(peers / self.checkout)} if peers and self.checkout else {}
        return {**self.arguments, **checkout}

    def command(self, peers: Path | None) -> list[str]:
        """Its Python and its script. Raises ValueError where its Python is not there."""
        if not self.is_here(peers):
            raise ValueError(f"{self.title} needs {self.python or self.checkout} in SPEED_PEERS")
        python = sys.executable if peers is None or not self.python else str(peers / self.python)
        return [python, str(SCRIPTS / self.script)]


PROGRAMS = {
    "products": Program(
        title="products alone, XLA",
        script="ours.py",
        work="products",
        arguments={"shapes": PRODUCTS},
    ),
    "torch_products": Program(
        title="products alone, PyTorch",
        script="torch_step.py",
        python=_PYTHON,
        work="products",
        arguments={"shapes": PRODUCTS},
    ),
    "ours": Program(title="this project", script="ours.py"),
    "ours_float32": Program(
        title="this project, float32",
        script="ours.py",
        arguments={"changes": {"model.dtype": "float32"}},
    ),
    "ours_cudnn": Program(
        title="this project, cuDNN attention",
        script="ours.py",
        arguments={"changes": {"model.attention_kernel": "cudnn"}},
    ),
    "ours_60_layers": Program(
        title="this project, 60 layers",
        script="ours.py",
        arguments={"changes": {"model.num_layers": 60}},
    ),
    "flax": Program(title="google/flax wmt", script="flax_wmt.py", checkout=_FLAX),
    "torch": Program(title="PyTorch", script="torch_step.py", python=_PYTHON),
    "torch_compiled": Program(
        title="PyTorch compiled",
        script="torch_step.py",
        python=_PYTHON,
        arguments={"compiled": True},
    ),
    "torch_autocast": Program(
        title="PyTorch autocast",
        script="torch_step.py",
        python=_PYTHON,
        arguments={"autocast": True},
    ),
    "torch_compiled_autocast": Program(
        title="PyTorch compiled, autocast",
        script="torch_step.py",
        python=_PYTHON,
        arguments={"compiled": True, "autocast": True},
    ),
    "hugging_face": Program(title="Hugging Face", script="hugging_face.py", python=_PYTHON),
    "nanogpt": Program(title="nanoGPT", script="nanogpt.py", python=_PYTHON, checkout=_NANOGPT),
    "nanogpt_fused": Program(
        title="nanoGPT, fused AdamW",
        script="nanogpt.py",
        python=_PYTHON,
        checkout=_NANOGPT,
        arguments={"fused": True},
    ),
    "nanogpt_compiled": Program(
        title="nanoGPT compiled",
        script="nanogpt.py",
        python=_PYTHON,
        checkout=_NANOGPT,
        arguments={"compiled": True},
    ),
    "nanogpt_compiled_autocast": Program(
        title="nanoGPT compiled, autocast",
        script="nanogpt.py",
        python=_PYTHON,
        checkout=_NANOGPT,
        arguments={"compiled": True, "autocast": True},
    ),
}


def folder() -> Path | None:
    """The folder of peers. Raises ValueError where SPEED_PEERS names one that is not there."""
    name = os.environ.get("SPEED_PEERS")
    if not name:
        return None
    path = Path(name).expanduser().absolute()
    if not path.is_dir():
        raise ValueError(f"SPEED_PEERS={name} is no folder: see experiments/speed/README.md")
    return path


def present(names: Iterable[str]) -> list[str]:
    """Those of the programs that can run here."""
    peers = folder()
    return [name for name in names if PROGRAMS[name].is_here(peers)]
