"""Accuracy by pre-training and by the share of the examples that have labels."""

from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row


def report(runs: list[Finished], out: Path) -> str:
    """Writes accuracy.csv, a figure and the numbers; returns the text."""
    rows = results.rows(runs)
    results.write_csv(out / "accuracy.csv", rows)
    results.write_summary(
        out,
        {
            f"{name}/{pretraining}/{share}": results.median([row["accuracy"] for row in members])
            for (name, pretraining, share), members in results.group(
                rows, "set", "pretraining", "share"
            ).items()
        },
    )
    text = [
        figures.save(
            figures.lines(
                rows,
                x="share",
                y="accuracy",
                by="pretraining",
                panel="set",
                xlabel="share of the labelled examples",
                ylabel="accuracy",
                xscale="log",
            ),
            out,
            "accuracy",
            "Accuracy over the share of the labelled examples, a line for each pre-training",
        )
    ]
    for (name,), members in results.group(rows, "set").items():
        text += [f"### {name}", f"Accuracy. {results.convention(members, 'pretraining', 'share')}"]
        text.append(results.table([_line(key, each) for key, each in _by_task(members)]))
    return "\n\n".join(text)


def _by_task(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    return [(task, members) for (task,), members in results.group(rows, "pretraining").items()]


def _line(task: str, rows: list[Row]) -> Row:
    shares = results.group(rows, "share")
    return {
        "pre-training": task,
        **{
            f"{share:.0%} of the labels": results.interval(row["accuracy"] for row in members)
            for (share,), members in shares.items()
        },
    }
