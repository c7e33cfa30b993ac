"""Loss by segment and memory, what memory gives when a model is scored, and what scoring costs."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row


def report(runs: list[Finished], out: Path) -> str:
    """Writes training.csv, scoring.csv, a figure and the numbers; returns the text."""
    rows = results.rows(runs)
    results.write_csv(out / "training.csv", [p for run in runs for p in run.curve("train/loss")])
    results.write_csv(out / "scoring.csv", rows)
    trained = [row for row in rows if row["scored"] == "memory"]
    segments = [row for row in trained if row["length"] == row["memory"]]
    windows = [row for row in rows if row["scored"] == "window"]
    results.write_summary(
        out,
        {
            f"{name}/segment={segment}/memory={memory}/{key}": results.median(_column(members, key))
            for name, part in (("segments", segments), ("window", _widest(windows)))
            for (segment, memory), members in results.group(part, "segment", "memory").items()
            for key in ("loss", "microseconds")
        },
    )
    return "\n\n".join(
        [
            "### Loss by segment and memory",
            "Nats a character on all of validation, read in segments, with the memory of training. "
            f"{results.convention(segments, 'segment', 'memory')}",
            results.table(_by_segment(segments)),
            "### Memory when a trained model is scored",
            figures.save(
                figures.lines(
                    [row for row in trained if row["memory"]],
                    x="length",
                    y="loss",
                    by="memory",
                    panel="segment",
                    xlabel="memory in scoring",
                    ylabel="loss (nats a character)",
                ),
                out,
                "memory",
                "Loss on validation by memory in scoring, a line for each memory in training",
            ),
            "### What scoring costs",
            "A window that slides by one character, as wide as segment and memory together, beside "
            "segments with memory: loss (of the window on fewer characters) and microseconds a "
            "character, medians over seeds.",
            results.table(_costs(segments, windows)),
        ]
    )


def _column(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows]


def _widest(windows: Sequence[Row]) -> list[Row]:
    """The windows that see as much as segment and memory together."""
    return [row for row in windows if row["length"] == row["segment"] + row["memory"]]


def _by_segment(segments: Sequence[Row]) -> list[Row]:
    """A row for each length of segments, a column for each length of memory."""
    return [
        {
            "segment": segment,
            **{
                f"memory {memory}": results.interval(_column(each, "loss"))
                for (memory,), each in results.group(members, "memory").items()
            },
        }
        for (segment,), members in results.group(segments, "segment").items()
    ]


def _costs(segments: Sequence[Row], windows: Sequence[Row]) -> list[Row]:
    cells = results.group(_widest(windows), "segment", "memory")
    table = []
    for (segment, memory), members in results.group(segments, "segment", "memory").items():
        sliding = cells[segment, memory]
        times = [results.median(_column(each, "microseconds")) for each in (members, sliding)]
        table.append(
            {
                "segment": segment,
                "memory": memory,
                "loss, segments": results.median(_column(members, "loss")),
                "loss, window": results.median(_column(sliding, "loss")),
                "µs, segments": times[0],
                "µs, window": times[1],
                "times as long": times[1] / times[0],
            }
        )
    return table
