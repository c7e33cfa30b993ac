"""Mutants: whether tests notice small changes to the core.

    python -m tests.faults.mutants SEED NUMBER RESULTS.jsonl [SECONDS]

Draws mutants of cosmic-ray's operators, from each module in proportion. Each one meets the tests
that run what is changed, quickest first, those of ten seconds in all or of SECONDS ("inf": all of
them), in a clone of this repository, until a test fails or takes too long. The results get a line
for every mutant; the same command continues after the last one. It needs
`pip install cosmic-ray==8.7.0 pytest-cov==7.0.0`, all changes committed, and from these two files
which tests run what, and for how long:

    pytest -m "not long and not faults" --cov --cov-context=test --junit-xml=times.xml
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
from typing import NamedTuple
from xml.etree import ElementTree

from cosmic_ray.ast import ast_nodes, get_ast  # pyright: ignore[reportMissingImports]
from cosmic_ray.mutating import mutate_code  # pyright: ignore[reportMissingImports]
from cosmic_ray.plugins import get_operator, operator_names  # pyright: ignore[reportMissingImports]
from coverage import CoverageData  # pyright: ignore[reportMissingImports]
from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]
MODULES = """
    models/transformer/residual.py models/transformer/schemes.py models/layers/masks.py
    models/layers/attention.py training/losses.py training/cross_entropy.py evaluation/search.py
    evaluation/decoder.py evaluation/generate.py checkpoint/*.py runs/manifest.py data/serve/*.py
    data/prepare/*.py
"""
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


def mutants(module: str) -> list[Mutant]:
    """All of a module but those of annotations, which nothing computes with."""
    source = (ROOT / module).read_text()
    parts = [
        part
        for node in ast.walk(ast.parse(source))
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
    ]
    nodes, mutations = list(ast_nodes(get_ast(source))), []
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
                mutations.append(Mutant(module, name, occurrence, place[0]))
    return mutations


def sample(seed: int, number: int) -> list[Mutant]:
    """So many mutants that compile, in random order."""
    core, rng, selection = ROOT / "transformer_jax", random.Random(seed), []
    files = [path for glob in MODULES.split() for path in sorted(core.glob(glob))]
    by_module = [mutants(str(path.relative_to(ROOT))) for path in files]
    ends = [0, *itertools.accumulate(map(len, by_module))]
    for candidates, (start, end) in zip(by_module, itertools.pairwise(ends), strict=True):
        rng.shuffle(candidates)
        share = end * number // ends[-1] - start * number // ends[-1]
        selection += itertools.islice(filter(Mutant.compiles, candidates), share)
    rng.shuffle(selection)
    return selection


def tests_of(mutant: Mutant, data: CoverageData, seconds: dict[str, float]) -> list[str]:
    """The tests that run the changed statement, quickest first.

    What runs when the module is imported meets all tests that run anything of it.
    """
    tree = ast.parse((ROOT / mutant.module).read_text())
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0)
    ]
    inner = max(around, key=lambda node: node.lineno, default=None)  # None around a decorator
    span = range(inner.lineno, (inner.end_lineno or 0) + 1) if inner else ()
    (name,) = [name for name in data.measured_files() if name.endswith(f"/{mutant.module}")]
    lines = data.contexts_by_lineno(name)
    tests: set[str] = set()
    for numbers in (span, lines):
        contexts = {context.split("|")[0] for line in numbers for context in lines.get(line, ())}
        tests = tests or contexts & seconds.keys()
    return sorted(tests, key=seconds.__getitem__)


def run(folder: Path, tests: list[str], seconds: float) -> tuple[str, str]:
    """Whether a mutant survives these tests, and the one that fails."""
    log = folder / "log"
    (folder / "tests.txt").write_text("\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", ""]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "@tests.txt"], cwd=folder, stdout=file, stderr=file, start_new_session=True
        )
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return "timeout", ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = log.read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return ("killed", (failed or lines[-1:])[0]) if status else ("survived", "")


def main(seed: str, number: str, results: str, most: str = "10") -> None:
    path = Path(results).absolute()
    rows = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    outcomes = {Mutant(*row["mutant"]): row["outcome"] for row in rows}
    folder, data = path.with_suffix(".clone"), CoverageData(str(ROOT / ".coverage"))
    data.read()
    seconds = {
        f"{test.attrib['classname'].replace('.', '/')}.py::{test.attrib['name']}": float(
            test.attrib["time"]
        )
        for test in ElementTree.parse(ROOT / "times.xml").iter("testcase")
    }
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(path.with_suffix(".compiled"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    selection = sample(int(seed), int(number))
    for mutant in selection:
        if mutant in outcomes:
            continue
        start, (outcome, by) = time.monotonic(), ("survived", "")
        tests = tests_of(mutant, data, seconds)
        ends = itertools.accumulate(map(seconds.__getitem__, tests))
        tests = tests[: max(1, sum(end <= float(most) for end in ends))]
        if tests:  # else nothing runs it
            (folder / mutant.module).write_text(mutant.code())
            outcome, by = run(folder, tests, 90 + 5 * sum(map(seconds.__getitem__, tests)))
            shutil.copy2(ROOT / mutant.module, folder / mutant.module)
        row = {"mutant": mutant, "tests": len(tests), "outcome": outcome, "by": by}
        row |= {"seconds": round(time.monotonic() - start, 1)}
        with path.open("a") as file:
            print(json.dumps(row), file=file)
        outcomes[mutant] = outcome
    alive = [mutant for mutant in selection if outcomes[mutant] == "survived"]
    print(*alive, sep="\n")
    killed = len(selection) - len(alive)
    low, high = binomtest(killed, len(selection)).proportion_ci(method="wilson")
    print(
        f"{killed} of {len(selection)} killed, {killed / len(selection):.1%}: "
        f"{low:.1%} to {high:.1%}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
