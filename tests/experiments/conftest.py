"""An experiment in a throw-away folder. Most of its runs are measured alone, to be quick."""

import textwrap

import pytest

from experiments.harness import lab, results

lab.QUICKLY.clear()  # tests compile more quickly still

SWEEP = """
    from experiments.harness.sweep import Run, grid

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

    def trained(quick):
        steps = {"train.steps": 40}
        return [run({"seed": 0, "grid": grid}, steps, measure={"size": 2}) for grid in "ab"]

    def measured(quick):
        sizes = [1] if quick else [1, 2]
        return [run(row, train=False, measure=row) for row in grid(size=sizes)]

    def broken(quick):
        return [run({"size": size}, train=False, measure={"size": size}) for size in (0, 1)]

    def other_arguments(quick):
        return [run({"size": 1}, train=False, measure={"sise": 1})]

    def other_model(quick):
        return [*measured(quick), run({"heads": 3}, {"model.num_heads": 3})]

    def of_files(quick):
        return [run({"size": 1}, {"data.source": "text"}, train=False, measure={"size": 1})]

    def clash(quick):
        return [run({"beam": size}, {"decode.beam_size": size}) for size in (1, 2)]

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
        "measured": measured,
        "trained": trained,
        "broken": broken,
        "other_arguments": other_arguments,
        "other_model": other_model,
        "of_files": of_files,
        "clash": clash,
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
