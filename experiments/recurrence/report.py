"""Times of steps by length, and scores of translators by the length of sources and by time."""

from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row


def report(runs: list[Finished], out: Path) -> str:
    """Writes times.csv, lengths.csv, training.csv, figures and the numbers; returns the text."""
    times = results.rows(run for run in runs if run.labels["part"] == "time")
    translators = [run for run in runs if run.labels["part"] != "time"]
    lengths = results.rows(translators)
    curves = [_timed(run, point) for run in translators for point in run.curve("train/token_loss")]
    for name, rows in (("times", times), ("lengths", lengths), ("training", curves)):
        results.write_csv(out / f"{name}.csv", rows)
    scores = [
        {
            **run.labels,
            "parameters": run.results["parameters"],
            "seconds": run.results["time/wall_seconds"],
            **{name: run.results[f"test/{name}"] for name in ("bleu", "exact_match")},
        }
        for run in translators
        if "test/bleu" in run.results
    ]
    medians = {
        key: results.median(row["milliseconds"] for row in members)
        for key, members in results.group(times, "model", "length").items()
    }
    results.write_summary(
        out,
        {f"milliseconds/{model}/{length}": value for (model, length), value in medians.items()}
        | {
            f"{name}/{part}/{model}": results.median(row[name] for row in members)
            for (part, model), members in results.group(scores, "part", "model").items()
            for name in ("bleu", "exact_match", "seconds")
        },
    )
    return "\n\n".join(
        [
            "### The time of a training step by length",
            "Milliseconds of a step on 4,096 tokens (median of five), in rows of each length.",
            results.table(_by_model(medians)),
            figures.save(
                figures.lines(
                    times,
                    x="length",
                    y="milliseconds",
                    by="model",
                    xlabel="length of rows (tokens)",
                    ylabel="step of 4,096 tokens (ms)",
                    xscale="log",
                    yscale="log",
                ),
                out,
                "times",
                "Milliseconds of a training step by the length of its rows, a line for each model",
            ),
            "### Translation after equal tokens",
            f"{results.convention(scores, 'model')} seconds: of the whole run on this machine, "
            "median.",
            results.table(_scores(scores)),
            "### By the length of the source",
            "BLEU of the sentences of test with so many words. "
            f"{results.convention(scores, 'model')}",
            results.table(_lengths(lengths)),
            "### Loss by the time of training",
            figures.save(
                figures.lines(
                    [point for point in curves if point["seed"] == 0],
                    x="seconds",
                    y="loss",
                    by="model",
                    xlabel="seconds of training",
                    ylabel="training loss (nats a word)",
                ),
                out,
                "training",
                "Training loss of seed 0 by seconds, a line for each model",
            ),
        ]
    )


def _timed(run: Finished, point: Row) -> Row:
    """A point of a curve with the seconds of training in the place of its step."""
    seconds = dict(zip(*run.series("time/seconds"), strict=True))
    return {**point, "seconds": seconds[point["step"]]}


def _by_model(medians: dict) -> list[Row]:
    """A row for each length, a column for each model, and how often the Transformer's time."""
    table = []
    for length in dict.fromkeys(length for _, length in medians):
        times = {model: value for (model, of), value in medians.items() if of == length}
        table.append(
            {
                "length": length,
                **times,
                "lstm / transformer": times["lstm"] / times["transformer"],
            }
        )
    return table


def _scores(scores: list[Row]) -> list[Row]:
    return [
        {
            "model": model,
            "parameters": members[0]["parameters"],
            "seconds": results.median(row["seconds"] for row in members),
            "BLEU": results.interval([row["bleu"] for row in members]),
            "exact match": results.interval([row["exact_match"] for row in members]),
        }
        for (model,), members in results.group(scores, "model").items()
    ]


def _lengths(lengths: list[Row]) -> list[Row]:
    """A row for each model, a column for each length."""
    return [
        {
            "model": model,
            **{
                f"{words} words": results.interval(row["bleu"] for row in each)
                for (words,), each in results.group(members, "words").items()
            },
        }
        for (model,), members in results.group(lengths, "model").items()
    ]
