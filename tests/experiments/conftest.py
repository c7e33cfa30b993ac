"""An experiment in a throw-away folder. Most of its runs are measured alone, to be quick."""

import textwrap

import pytest

from experiments.harness import lab, results

lab.QUICKLY.clear()  # tests compile more quickly still

SWEEP = """
    from experiments.harness.sweep import Run

    TINY = {
        "data.cache_dir": CACHE,
        "data.max_target_length": 16,
        "data.batch_size": 8,
        "model.num_layers": 1,
        "model.d_model": 8,
        "model.num_heads": 1,
        "model.d_ff": 8,
        "decode.extra_length": 2,
        "train.log_every": 5,
    }

    def run(labels, overrides=None, **changes):
        overrides = TINY | (overrides or {})
        return Run(config="configs/bigram_copy.py", overrides=overrides, labels=labels, **changes)

    def of_size(size, overrides=None, name="size"):
        return run({"size": size}, overrides, train=False, measure={name: size})

    def trained(quick):
        steps = {"train.steps": 40}
        return [run({"seed": 0, "grid": grid}, steps, measure={"size": 2}) for grid in "ab"]

    def forks(quick, listed=True, **changes):
        trunk = run({"rate": "trunk"}, {"train.steps": 20, "checkpoint.at": (10,)})
        rates = {"train.steps": 25} | changes
        branches = [
            run({"rate": x}, rates | {"optimizer.learning_rate": x}, fork_from=trunk, fork_step=10)
            for x in (0.0, 0.01, 0.02)
        ]
        return [*branches, *[trunk] * listed]

    def shared(quick):
        longer = {"train.steps": 800}
        changes = [{"optimizer.learning_rate": 1e25}, longer, longer, {}]
        return [
            run({"case": case}, {"train.steps": 20, "seed": case} | change)
            for case, change in enumerate(changes)
        ]

    SWEEPS = {
        "shared": shared,
        "forks": forks,
        "unlisted": lambda quick: forks(quick, False),
        "other_state": lambda quick: forks(quick, **{"optimizer.beta1": 0.5}),
        "no_steps": lambda quick: forks(quick, **{"train.steps": 10}),
        "measured": lambda quick: [of_size(1)] if quick else [of_size(1), of_size(2)],
        "trained": trained,
        "broken": lambda quick: [of_size(0), of_size(1)],
        "other_arguments": lambda quick: [of_size(1, name="sise")],
        "other_model": lambda quick: [of_size(1), run({"heads": 3}, {"model.num_heads": 3})],
        "of_files": lambda quick: [of_size(1, {"data.source": "text"})],
        "clash": lambda quick: [run({"beam": n}, {"decode.beam_size": n}) for n in (1, 2)],
        "no_effect": lambda quick: [run({"k": 5}, {"decode.top_k": 5})],
        "same_seeds": lambda quick: [run({"seed": n}, {"model.d_ff": 8 + n}) for n in (0, 1)],
        "empty": lambda quick: [],
    }
"""
MEASURE = """
    def measure(config, workdir, size):
        if not size:
            raise ValueError("there is nothing of size 0")
        trained = (workdir / "checkpoints").exists()
        return [{"number": number, "trained": trained} for number in range(size)]
"""
REPORT = """
    from experiments.harness import results

    def report(runs, out):
        rows = results.rows(runs)
        results.write_csv(out / "rows.csv", rows)
        results.write_summary(out, {"rows": len(rows)})
        return results.table(rows)
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "question"
    folder.mkdir()
    cache = f"CACHE = {str(tmp_path / 'cache')!r}\n"
    for name, text in (("sweep", SWEEP), ("measure", MEASURE), ("report", REPORT)):
        (folder / f"{name}.py").write_text(cache + textwrap.dedent(text))
    (folder / "README.md").write_text("\n".join(["# Question", *results.markers("measured"), ""]))
    return folder


@pytest.fixture
def command(folder, tmp_path):
    """The arguments of the command line for a sweep of the folder."""

    def command(sweep, *flags):
        return [str(folder), f"--sweep={sweep}", f"--runs_dir={tmp_path / 'runs'}", *flags]

    return command
