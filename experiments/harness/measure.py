"""The process that measures one run: calls the folder's `measure.measure`, writes its rows.

    python -m experiments.harness.measure --folder=experiments/NAME --workdir=DIR

`experiments.run` starts it, and has written DIR/run.json, which says what to measure.
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    from transformer_jax.process import interrupt, machine

    interrupt.install()
    machine.keep_freed_memory()

import argparse
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from experiments.harness.sweep import Run, part
from transformer_jax.devices import compiled
from transformer_jax.runs.log import versions
from transformer_jax.runs.workdir import lock, write_atomically


def main() -> None:
    """Writes WORKDIR/measurements.json: rows, their config, where and how fast they were made."""
    parser = argparse.ArgumentParser(description="Measures one run of an experiment.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    arguments = parser.parse_args()
    lock(arguments.workdir)
    record = json.loads((arguments.workdir / "run.json").read_text("utf-8"))
    names = ("config", "overrides", "train", "measure")
    run = Run(labels=record["labels"][0], **{name: record[name] for name in names})
    config = run.resolved
    measure = part(arguments.folder, "measure").measure
    compiled.keep(config.data.cache_dir)

    started = time.monotonic()
    rows = [_plain(row) for row in measure(config, arguments.workdir, **record["measure"])]
    measurements = {
        "rows": rows,
        "config": run.measured,
        "seconds": round(time.monotonic() - started, 3),
        "device_kind": jax.devices()[0].device_kind,
        "versions": versions(),
    }
    text = json.dumps(measurements, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(arguments.workdir / "measurements.json", text + "\n")


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with NumPy's and JAX's numbers as Python's; null for what is not finite."""
    plain = {}
    for name, value in row.items():
        if getattr(value, "ndim", 0):
            raise ValueError(
                f"measure returned {name} of shape {value.shape}: rows hold single numbers and "
                "texts, so give each element a row of its own"
            )
        value = value.item() if hasattr(value, "item") else value
        if not isinstance(value, bool | int | float | str | None):
            raise ValueError(f"measure returned {name}={value!r}, which is not a number or a text")
        plain[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    return plain


if __name__ == "__main__":
    main()
