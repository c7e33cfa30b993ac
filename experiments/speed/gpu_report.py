"""The page of what gpu.py has measured: python -m experiments.speed.gpu_report

It makes README.md's section of results/gpu.json.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness import results
from experiments.speed import table
from experiments.speed.gpu import RESULTS, pieces
from experiments.speed.workers import Row
from transformer_jax.devices import chips


def report(record: Mapping[str, Any]) -> str:
    """The tables of one file of results."""
    rows = {name: piece["rows"] for name, piece in record["pieces"].items() if "rows" in piece}
    (device,) = rows["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    works = [name for name in pieces(quick=False) if name.startswith(("step", "greedy", "sample"))]
    tables = {
        "Training steps and decoding": [
            line for name in works for line in _times(name, rows.get(name, []), device["device"])
        ],
        "Attention kernels: error over the largest number": rows.get("parity", []),
        "Does a training repeat?": rows.get("repeat", []),
        "Two processes on one GPU": rows.get("sharing", []),
        "configs/quickstart.py": [
            {name: value for name, value in row.items() if "signature" not in name}
            for row in rows.get("quickstart", [])
        ],
    }
    parts = [
        f"{device['device']}, {record['date']}; {versions}. One product of two matrices of 8,192 x "
        f"8,192 in bfloat16: {device['product_rate'] / 1e12:.0f} TFLOP/s."
    ]
    for title, lines in tables.items():
        parts += [f"### {title}", results.table([_row(line) for line in lines])] if lines else []
    missing = [name for name in pieces(quick=False) if name not in rows]
    return "\n\n".join([*parts, f"Not measured: {', '.join(missing) or 'nothing'}."])


def _row(line: Row) -> Row:
    """A line with the error of what was said alone, if there is one."""
    if "said" not in line:
        return line
    errors = [said for said in line["said"].split("\n") if said.startswith("error: ")]
    return line | {"said": errors[-1] if errors else ""}


def _times(work: str, rows: Sequence[Row], device: str) -> Iterator[Row]:
    """A line for each program of a work."""
    peak = chips.local_peak(types.SimpleNamespace(device_kind=device))
    for (program,), members in results.group(rows, "program").items():
        line = {"work": work, "program": table.title(program), "seconds": "failed"}
        if "error" not in members[0]:
            seconds = results.median(row["seconds"] for row in members)
            over = table.ratios(rows, program, "ours") if program != "ours" else []
            rate, first = members[0]["operations"] / seconds, members[0]
            line["seconds"] = results.median_interval((row["seconds"] for row in members), ".3g")
            line["over ours"] = results.median_interval(over, ".2f") if over else ""
            line["tokens a second"] = f"{first['tokens'] / seconds:,.0f}"
            line["share of the peak"] = f"{rate / peak.flops:.2f}" if peak and rate else ""
            line["peak memory (GB)"] = f"{max(row['peak_bytes'] for row in members) / 1e9:.3g}"
        yield line


if __name__ == "__main__":
    results.insert(Path(__file__).parent / "README.md", "gpu", report(results.read_json(RESULTS)))
