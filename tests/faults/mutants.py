"""Mutants: whether tests notice small changes to the core.

    python -m tests.faults.mutants SEED NUMBER RESULTS.jsonl [MINUTES]

Draws mutants of cosmic-ray's operators, from each module in proportion. Each one meets its stages
of tests, in a copy of this repository, until a test fails or takes too long. The results get a line
for every stage; the same command continues after the last one. After so many minutes it stops.
Needs `pip install cosmic-ray==8.7.0`.
"""

import ast
import contextlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast  # pyright: ignore[reportMissingImports]
from cosmic_ray.mutating import mutate_code  # pyright: ignore[reportMissingImports]
from cosmic_ray.plugins import get_operator, operator_names  # pyright: ignore[reportMissingImports]
from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]
MODULES = """
    models/transformer/residual.py models/transformer/schemes.py models/layers/masks.py
    models/layers/attention.py training/losses.py training/cross_entropy.py evaluation/search.py
    evaluation/decoder.py evaluation/generate.py checkpoint/*.py runs/manifest.py data/serve/*.py
    data/prepare/*.py
"""
OTHERS = "models/decoding_test.py tasks inspection commands whole faults"  # the last stage of all
MEMORY = 12 * 2**30  # bytes of a process: a mutant may ask for any number


class Mutant(NamedTuple):
    module: str
    operator: str
    occurrence: int
    line: int

    def code(self) -> str:
        operator = get_operator(self.operator)()
        return mutate_code((ROOT / self.module).read_text(), operator, self.occurrence) or ""

    def compiles(self) -> bool:
        with contextlib.suppress(SyntaxError):
            return bool(compile(self.code(), "", "exec"))
        return False

    def stages(self) -> list[str]:
        """The module's own tests, those beside them, those of the room, and others."""
        _, room, *_ = Path(self.module).parts
        own = self.module.removeprefix("transformer_jax/").replace(".py", "_test.py")
        stages = dict.fromkeys([own, str(Path(own).parent), room, OTHERS])
        return [stage for stage in stages if stage != own or (ROOT / "tests" / own).exists()]


def mutants(module: str) -> list[Mutant]:
    """All of a module but those of annotations, which nothing computes with."""
    source = (ROOT / module).read_text()
    parts = [
        part
        for node in ast.walk(ast.parse(source))
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
    ]
    nodes, found = list(ast_nodes(get_ast(source))), []
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments():  # the two that need the name of a variable
            continue
        places = (place for node in nodes for place, _ in operator().mutation_positions(node))
        for occurrence, place in enumerate(places):
            if not any(
                (part.lineno, part.col_offset) <= place < (part.end_lineno, part.end_col_offset)
                for part in parts
            ):
                found.append(Mutant(module, name, occurrence, place[0]))
    return found


def sample(seed: int, number: int) -> list[Mutant]:
    """So many mutants that compile, in random order."""
    core, rng, drawn = ROOT / "transformer_jax", random.Random(seed), []
    files = [path for glob in MODULES.split() for path in sorted(core.glob(glob))]
    by_module = [mutants(str(path.relative_to(ROOT))) for path in files]
    ends = [0, *itertools.accumulate(map(len, by_module))]
    for own, (start, end) in zip(by_module, itertools.pairwise(ends), strict=True):
        rng.shuffle(own)
        share = end * number // ends[-1] - start * number // ends[-1]
        drawn += itertools.islice(filter(Mutant.compiles, own), share)
    rng.shuffle(drawn)
    return drawn


def run(folder: Path, tests: str, compiled: Path, seconds: float | None) -> tuple[str, str]:
    """Whether a mutant survives, and the test that fails. seconds: None for the original."""
    # Mutants find compiled programs and byte code of the original, and leave none.
    own = {"JAX_COMPILATION_CACHE_DIR": str(compiled)}
    own["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1e9" if seconds else "0"
    own |= {"PYTHONDONTWRITEBYTECODE": "1"} if seconds else {}
    marks = ["-m", "not long and not faults"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", *marks, *[f"tests/{t}" for t in tests.split()]],
            cwd=folder,
            env=os.environ | own,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY)),
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "timeout", ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = (folder / "log").read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return ("killed", (failed or lines[-1:])[0]) if status else ("survived", "")


def main(seed: str, number: str, results: str, minutes: str = "inf") -> None:
    until, path = time.monotonic() + 60 * float(minutes), Path(results).absolute()
    rows = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    known = {(tuple(row["mutant"]), row["tests"]): row for row in rows}
    folder = path.with_suffix(".copy")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in tracked.stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)

    def tried(tests: str, mutant: Mutant | tuple[()] = ()) -> dict[str, Any]:
        """What the tests say of a mutant, or of the original: whether they run at all."""
        if (mutant, tests) not in known:
            seconds = 60 + 4 * tried(tests)["seconds"] if mutant else None
            start = time.monotonic()
            if mutant:
                (folder / mutant.module).write_text(mutant.code())
            outcome, by = run(folder, tests, path.with_suffix(".compiled"), seconds)
            if mutant:
                shutil.copy2(ROOT / mutant.module, folder / mutant.module)
            assert mutant or outcome == "survived", f"{tests} fails without any change: {by}"
            row = {"mutant": mutant, "tests": tests, "outcome": outcome, "by": by}
            known[mutant, tests] = row | {"seconds": round(time.monotonic() - start, 1)}
            with path.open("a") as file:
                print(json.dumps(known[mutant, tests]), file=file)
        return known[mutant, tests]

    outcomes: dict[Mutant, str] = {}
    for depth, mutant in itertools.product(range(4), sample(int(seed), int(number))):
        stages, alive = mutant.stages(), outcomes.get(mutant, "survived") == "survived"
        if alive and depth < len(stages) and time.monotonic() < until:
            outcomes[mutant] = tried(stages[depth], mutant)["outcome"]
    alive = [mutant for mutant, outcome in outcomes.items() if outcome == "survived"]
    print(*alive, sep="\n")
    killed = len(outcomes) - len(alive)
    low, high = binomtest(killed, len(outcomes)).proportion_ci(method="wilson")
    print(
        f"{killed} of {len(outcomes)} killed, {killed / len(outcomes):.1%}: {low:.1%} to {high:.1%}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
