"""Work directories as training leaves them, made without any."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

NASTY = "<script>alert('1')</script> \"quoted\" & مرحبا שלום"


def make(
    folder: Path,
    *,
    model: Mapping[str, Any] | None = None,
    seed: int = 0,
    steps: int = 20,
    planned: int | None = None,
    diagnostics: int = 0,
    results: dict[str, Any] | None = None,
    samples: str = "",
    labels: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A run of `steps` steps (of `planned`, if it ended early), logged at each.

    diagnostics: sublayers that are measured at every second step. results: None: it has finished;
      empty: there are none yet. labels: of an experiment. config: its other sections.
    """
    folder.mkdir(parents=True)
    model = model or {"residual": "pre_ln"}
    settings = {"model": model, "train": {"steps": planned or steps}, "seed": seed}
    (folder / "config.json").write_text(json.dumps({**settings, **(config or {})}))
    if labels:
        (folder / "run.json").write_text(json.dumps({"labels": [labels]}))
    random = np.random.default_rng(seed + 1000 * len(str(model)))
    lines = []
    for step in range(1, steps + 1):
        loss = 8 / math.sqrt(step) + random.uniform(0, 0.3)
        record: dict[str, Any] = {
            "step": step,
            "train/token_loss": loss,
            "train/learning_rate": 1e-3 * step / steps,
            "train/gradient_norm": random.uniform(0.5, 2),
            "step_size": random.uniform(),  # of a probe of one's own
            "time/wall_seconds": float(step),
        }
        if step % 2 == 0:
            record["validation/token_loss"] = loss + 0.5
            if diagnostics:
                values = np.exp(random.normal(size=diagnostics)).tolist()
                record["diagnostics/decoder/branch_variance"] = values
                record["diagnostics/decoder/output_change"] = random.uniform()
        if step == 7:
            record |= {"spike/loss": 9.0, "spike/median": 3.0, "spike/deviation": 0.1}
        lines.append(json.dumps(record) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    if results is None:
        results = {"status": "finished", "steps": steps, "parameters": 1234567}
        results |= {"test/bleu": 30.0 + seed, "test/bleu_signature": "nrefs:1"}
    if results:
        (folder / "results.json").write_text(json.dumps(results))
    if samples:
        (folder / "samples.txt").write_text(samples, "utf-8")
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    """What was logged."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def make_twenty(folder: Path) -> list[Path]:
    """Five schemes with four seeds each, one run of which has diverged and was replayed."""
    schemes, steps = ("post_ln", "pre_ln", "admin", "deepnorm", "x0"), 1000
    runs = [
        make(
            folder / f"{scheme}_{seed}",
            model={"residual": scheme},
            seed=seed,
            steps=steps,
            diagnostics=36,
            samples=f"1   source     {NASTY}\n    output     {scheme} {seed}",
        )
        for scheme in schemes
        for seed in range(4)
    ]
    diverged = {"status": "diverged", "steps": steps, "first_bad_step": steps}
    (runs[0] / "results.json").write_text(json.dumps(diverged))
    replay = {"step": steps, "found": f"Step {steps} is bad.\nIts first tensor: {NASTY}"}
    (runs[0] / "replay.json").write_text(json.dumps(replay))
    return runs
