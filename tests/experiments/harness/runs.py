"""Finished runs that were never run."""

from typing import Any

from experiments.harness import results
from experiments.harness.sweep import Run


def finished(tmp_path, labels=None, **fields):
    nothing: dict[str, Any] = dict(
        record={}, results={}, metrics=[], measurements=[], measured_on={}
    )
    run = Run(config="configs/quickstart.py", overrides={}, labels=labels or {})
    return results.Finished(run=run, workdir=tmp_path, **(nothing | fields))
