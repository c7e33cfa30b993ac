"""Fine-tunes a pre-trained model on shares of the labelled examples."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.harness.sweep import ROOT
from transformer_jax.configs.default import Config
from transformer_jax.runs.workdir import RESULTS


def measure(
    config: Config,
    workdir: Path,
    *,
    file: str,
    changes: Mapping[str, Any],
    steps: Mapping[str, int],
) -> list[dict[str, Any]]:
    """A row {share, accuracy} for each share of the examples, of test or else of validation.

    file, changes: the config of fine-tuning. steps: of it, by share.
    """
    return [
        {"share": float(share), "accuracy": _tuned(config, workdir, file, changes, share, count)}
        for share, count in steps.items()
    ]


def _tuned(
    config: Config,
    workdir: Path,
    file: str,
    changes: Mapping[str, Any],
    share: str,
    steps: int,
) -> float:
    folder = workdir / f"share_{share}"
    settings = {
        **changes,
        "data.dir": config.data.dir,
        "data.cache_dir": config.data.cache_dir,
        "data.train_share": float(share),
        "checkpoint.init_from": str(workdir),
        "train.steps": steps,
        "optimizer.warmup_steps": steps // 10,
    }
    command = [sys.executable, "-m", "transformer_jax.main", f"--config={ROOT / file}"]
    command += [f"--workdir={folder}"]
    command += [f"--config.{key}={value}" for key, value in settings.items() if value is not None]
    # What it prints is of this run's log.
    subprocess.run(command, cwd=ROOT, check=True)
    results = json.loads((folder / RESULTS).read_text())
    return results.get("test/accuracy", results["validation/accuracy"])
