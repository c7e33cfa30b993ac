"""What only a GPU can show: kernels, speed, whether runs repeat, and two processes on one device.

    python -m experiments.speed.gpu [--out=FILE] [--only=PIECE,...] [--quick]   (gpu.sh prepares it)

It writes one JSON file, after every piece. Each piece is a process of its own with a limit of time;
one that fails leaves an "error" there, and the others go on. With --only, those that the file has
stay. `gpu_report` makes a page of it.
"""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments.harness import results
from experiments.harness.sweep import ROOT, Run
from experiments.speed import limit, measure, sweep
from experiments.speed.workers import Row
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    METRICS,
    read_metrics,
    read_results,
    write_atomically,
)

RESULTS = Path(__file__).parent / "results" / "gpu.json"
PACKAGES = "jax jaxlib flax optax orbax-checkpoint numpy nvidia-cudnn-cu13 torch transformers"
_SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # so that processes take what they need
_CPU = {"JAX_PLATFORMS": "cpu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """A function (empty folder, quick) -> rows, its limit, and what is added to its environment."""

    rows: Callable[[Path, bool], Iterable[Row]]
    seconds: int
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


# Pieces ------------------------------------------------------------------------------------------


def machine(folder: Path, quick: bool) -> list[Row]:
    """The device, and the operations a second of one large product in bfloat16."""
    import jax
    import jax.numpy as jnp

    size = 256 if quick else 8192
    a, b = (jax.random.normal(jax.random.key(n), (size, size), jnp.bfloat16) for n in (0, 1))
    device, statistics = jax.devices()[0], jax.devices()[0].memory_stats() or {}
    rate = 2 * size**3 / _seconds(jax.jit(jnp.matmul), a, b)
    memory = statistics.get("bytes_limit", 0)
    return [{"device": device.device_kind, "memory": memory, "product_rate": rate}]


def quickstart(folder: Path, quick: bool) -> Iterator[Row]:
    """configs/quickstart.py through the command line, twice: the second finds compiled programs."""
    short = ["--config.train.steps=20"] if quick else []
    for number in ("first", "second"):
        done = _main(folder / number, "train", "--config=configs/quickstart.py", *short)
        metrics = read_results(folder / number)
        scores = {name: metrics[name] for name in metrics if name.startswith(("test/", "time/"))}
        yield {"run": number, **done, **scores}


# queries, keys, heads' size, causal, whether packed, whether the end is padding
CASES = {
    "causal": (1024, 1024, 64, True, False, False),
    "causal, packed, padded": (1024, 1024, 64, True, True, True),
    "packed, padded, heads of 128": (512, 512, 128, False, True, True),
    "padded": (512, 512, 64, False, False, True),
    "causal, heads of 8": (64, 64, 8, True, False, False),
    "odd length, causal, packed, padded": (333, 333, 64, True, True, True),
    "cross": (128, 512, 64, False, False, True),
    "cross, odd lengths": (129, 77, 64, False, True, True),
    "one query": (1, 512, 64, False, False, True),
    "causal, 8,192 tokens": (8192, 8192, 64, True, False, False),
}


def parity(folder: Path, quick: bool) -> Iterator[Row]:
    """Errors of each kernel in bfloat16, over the largest number of a float32 reference."""
    import jax

    from transformer_jax.models.layers.kernels import KERNELS

    platform = jax.default_backend()

    def of_case(case: str) -> list[Row]:
        rows, reference = [], None
        for name, kernel in KERNELS.items():
            if platform not in (kernel.platforms or (platform,)):
                continue
            row: Row = {"case": case, "kernel": name}
            try:
                errors, reference = _attention(kernel, reference, quick, *CASES[case])
                rows.append(row | errors)
            except Exception as error:  # whatever a kernel does not take
                rows.append(row | {"error": f"{type(error).__name__}: {str(error)[:300]}"})
        return rows

    with ThreadPoolExecutor(5) as pool:  # most of the time goes into compilation
        for rows in pool.map(of_case, CASES):
            yield from rows


def _attention(
    kernel: Any,
    reference: Any,
    quick: bool,
    queries: int,
    keys: int,
    size: int,
    causal: bool,
    packed: bool,
    padded: bool,
) -> tuple[Row, Any]:
    """Errors of one kernel, and the reference, which is computed where there is none."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from transformer_jax.models.layers.kernels import KERNELS
    from transformer_jax.models.layers.masks import MASKED, Segments

    if quick:
        queries, keys = (length % 64 or 64 for length in (queries, keys))
    batch, heads = (1, 8) if keys > 4096 else (4, 8)

    def segments(length: int) -> Any:
        """Rows differ in where an example ends, and padding begins."""
        place, row = np.arange(length)[None], np.arange(batch)[:, None]
        ids = 1 + packed * (place >= (row + 1) * length // (batch + 2))
        return jnp.asarray(np.where(place < length - padded * (row * length // 5), ids, 0))

    def weights(queries, keys, mask):
        scores = jnp.einsum("BTHK,BSHK->BHTS", queries, keys, preferred_element_type=jnp.float32)
        return jax.nn.softmax(jnp.where(mask[:, None], scores, MASKED)).astype(keys.dtype)

    shared = Segments(segments(queries), segments(keys), causal)
    pairs = zip(jax.random.split(jax.random.key(0), 4), (queries, keys, keys, queries), strict=True)
    shapes = [jax.random.normal(key, (batch, length, heads, size)) for key, length in pairs]
    q, k, v, cotangent = (x.astype(jnp.bfloat16) for x in shapes)
    real = (shared.queries > 0)[..., None, None]

    def run(row: Any) -> Any:
        mask = shared if row.reads_segments else shared.pairs()

        def loss(*arrays):
            out = row.attend(*arrays, mask, weights)
            return jnp.sum(jnp.where(real, out, 0).astype(jnp.float32) * cotangent), out

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))

    operands = (q * size**-0.5, k, v)
    if reference is None:
        with jax.default_matmul_precision("highest"):
            reference = run(KERNELS["xla"])(*(x.astype(jnp.float32) for x in operands))
    call = run(kernel)
    (_, out), gradients = call(*operands)
    (_, true), true_gradients = reference

    def error(array: Any, wanted: Any) -> float:
        return float(jnp.max(jnp.abs(array.astype(jnp.float32) - wanted)) / jnp.max(abs(wanted)))

    row = {
        "values": error(jnp.where(real, out, 0), jnp.where(real, true, 0)),
        "gradients": max(map(error, gradients, true_gradients)),
        "finite": bool(all(jnp.all(jnp.isfinite(x)) for x in (out, *gradients))),
    }
    return row, reference


def repeat(folder: Path, quick: bool) -> Iterator[Row]:
    """Trainings that are run again, or killed and continued, or made elsewhere: are they the same?

    Each is compared with the unbroken one of the same environment, and that with a CPU's.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")  # this process only reads
    steps, every = (60, 20) if quick else (900, 300)
    flags = ["--config=configs/bigram_copy.py", f"--config.train.steps={steps}"]
    flags += [f"--config.checkpoint.every={every}", "--config.train.log_every=1"]
    environments = {
        "cpu": _CPU,
        "default": {},
        "deterministic": {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"},
        "highest precision": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    }
    # Otherwise programs of the first spare later ones the choice of products by their time.
    anew = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    kills = {"SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}

    def train(each: tuple[str, str]) -> Row:
        environment, way = each
        variables = {**environments[environment], **(anew if way == "compiled anew" else {})}
        workdir = folder / " ".join(each)
        row: Row = {"environment": environment, "run": way}
        if way in kills:
            with _started(workdir, "train", *flags, **variables) as process:
                _wait_for(workdir, steps * 3 // 5, process)
                process.send_signal(kills[way])
                row["broken with status"] = process.wait(timeout=60)
        return {**row, **_main(workdir, "train", *flags, **variables)}

    runs = [(name, "unbroken") for name in environments]
    others = ("again", "compiled anew", *kills)
    runs += [(name, way) for name in ("default", "deterministic") for way in others]
    with ThreadPoolExecutor(2 if quick else len(runs)) as pool:
        rows = list(pool.map(train, runs))
    for row, (name, way) in zip(rows, runs, strict=True):
        other = f"{'cpu' if way == 'unbroken' else name} unbroken"
        difference = _difference(folder / f"{name} {way}", folder / other, steps)
        yield {**row, "compared with": other, **difference}


def _difference(workdir: Path, other: Path, steps: int) -> Row:
    """How far losses and last parameters of two trainings are apart."""
    logs = [list(read_metrics(each)) for each in (workdir, other)]
    losses = [{line["step"]: line["train/loss"] for line in log} for log in logs]
    a, b = (_parameters(each / CHECKPOINTS / str(steps)) for each in (workdir, other))
    return {
        "first step that differs": results.parting(logs[0], logs[1]),
        "loss at the end": losses[0].get(steps),
        **{f"difference at step {n}": abs(losses[0][n] - losses[1][n]) for n in (1, 10, steps)},
        "same parameters": a.keys() == b.keys() and all((a[n] == b[n]).all() for n in a),
    }


def _parameters(folder: Path) -> dict[str, Any]:
    import jax
    import numpy as np

    from transformer_jax.checkpoint import arrays

    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arrays.saved(folder)["params"]
    )
    loaded = arrays.load(folder, {"params": shapes})
    return {path: np.asarray(leaf) for path, leaf in arrays.flat(loaded).items()}


def sharing(folder: Path, quick: bool) -> Iterator[Row]:
    """Processes beside a training, which has taken its share of the memory at its start.

    And before it, what a model too large for the GPU is told.
    """
    flags = ["--config=configs/bigram_copy.py", "--config.checkpoint.every=50"]
    large = ["--config.model.d_model=32768", "--config.model.num_heads=256"]
    row = _main(folder / "large", "train", *flags, *large, "--config.model.num_layers=48")
    yield {"beside it": "nothing, and the model is too large", **row}
    workdir, again = folder / "first", [*flags, "--config.train.steps=100"]
    with _started(workdir, "train", *flags, "--config.train.steps=1000000") as process:
        _wait_for(workdir, 200, process)
        for name, variables in {"": {}, ", without preallocation": _SHARED}.items():
            row = _main(folder / f"second{len(name)}", "train", *again, **variables)
            yield {"beside it": f"train{name}", **row, "first goes on": process.poll() is None}
            row = _main(workdir, "evaluate", "--split=validation", **variables)
            yield {"beside it": f"evaluate{name}", **row, "first goes on": process.poll() is None}


def turns(run: Run, folder: Path, quick: bool) -> list[Row]:
    """Programs in turns; each row with the tokens and, of a step, the operations of one call."""
    config, settings = run.resolved, run.measure or {}
    if settings["work"] == "step":
        tokens = config.data.batch_size * config.data.row_target_length
        operations = limit.step(config)
    else:
        tokens, operations = config.data.batch_size * settings["arguments"]["tokens"], 0.0
    rows = measure.measure(config, folder, **settings)
    return [
        row if "error" in row else {**row, "tokens": tokens, "operations": operations}
        for row in rows
    ]


def pieces(quick: bool) -> dict[str, Piece]:
    """In the order in which they are run."""
    by_name = {
        "machine": Piece(rows=machine, seconds=60),
        "parity": Piece(rows=parity, seconds=150, environment=_SHARED),
        "quickstart": Piece(rows=quickstart, seconds=150),
        "repeat": Piece(rows=repeat, seconds=200, environment=_SHARED),
        "sharing": Piece(rows=sharing, seconds=150),
    }
    for run in sweep.gpu(quick):
        rows = functools.partial(turns, run)
        by_name[str(run.labels["work"])] = Piece(rows=rows, seconds=150, environment=_SHARED)
    return by_name


# Processes ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _started(
    workdir: Path, mode: str, *flags: str, **environment: str
) -> Iterator[subprocess.Popen]:
    """The command line at work in `mode`; ended at the end. Its output goes to WORKDIR.txt."""
    command = [sys.executable, "-P", "-m", "transformer_jax.main", f"--mode={mode}"]
    with workdir.with_suffix(".txt").open("a") as log:
        process = subprocess.Popen(
            [*command, f"--workdir={workdir}", *flags],
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _main(workdir: Path, mode: str, *flags: str, **environment: str) -> Row:
    """The command line in `mode`: its status, seconds, and last lines where it failed."""
    log, started = workdir.with_suffix(".txt"), time.perf_counter()
    with _started(workdir, mode, *flags, **environment) as process:
        try:
            status: int | str = process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            status = "no end in 120 s"
    said = log.read_text("utf-8", errors="replace").splitlines()[-8:] if status else []
    seconds = time.perf_counter() - started
    return {"status": status, "seconds": seconds, "said": "\n".join(said)[-1500:]}


def _wait_for(workdir: Path, step: int, process: subprocess.Popen) -> None:
    """Until the log has the step, or the process ended."""
    while process.poll() is None:
        if (workdir / METRICS).exists() and max(
            (line["step"] for line in read_metrics(workdir)), default=0
        ) >= step:
            return
        time.sleep(0.05)


def _seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """The median time of a call, which is made once before."""
    import jax

    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(10):
        started = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - started)
    return results.median(times)


def _run_piece(name: str, piece: Piece, flags: Sequence[str]) -> Row:
    """A piece in a process of its own, all of whose processes end with it."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "experiments.speed.gpu", f"--piece={name}", *flags]
        log = Path(folder) / "log.txt"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, f"--folder={folder}"],
                env={**os.environ, **piece.environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            outcome: Row = {}
            try:
                process.wait(timeout=piece.seconds)
            except subprocess.TimeoutExpired:
                outcome["error"] = f"no end in {piece.seconds} s"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        rows = Path(folder) / "rows.json"
        if rows.exists():
            outcome["rows"] = json.loads(rows.read_text("utf-8"))
        if process.returncode or not rows.exists():
            end = log.read_text("utf-8", errors="replace")[-3000:]
            outcome["error"] = f"{outcome.get('error', process.returncode)}\n{end}"
    return {"seconds": round(time.perf_counter() - started, 1), **outcome}


def _versions() -> Iterator[tuple[str, str]]:
    """Those of the packages that are installed."""
    for name in PACKAGES.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


def main() -> None:
    """Runs the pieces, or one of them."""
    parser = argparse.ArgumentParser(description="Shows what only a GPU can.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="pieces, separated by commas")
    parser.add_argument("--quick", action="store_true", help="all tiny, to try it on a CPU")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    every = pieces(flags.quick)
    if flags.piece:
        rows = []
        for row in every[flags.piece].rows(flags.folder, flags.quick):
            rows.append(row)  # what there is by the end of the time stays
            write_atomically(flags.folder / "rows.json", json.dumps(rows))
    else:
        report = {
            "date": str(datetime.date.today()),
            "versions": dict(_versions()),
            "pieces": results.read_json(flags.out).get("pieces", {}) if flags.only else {},
        }
        for name in flags.only.split(",") if flags.only else every:
            report["pieces"][name] = _run_piece(name, every[name], ["--quick"] * flags.quick)
            flags.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
            print(name, {**report["pieces"][name], "rows": "..."}, flush=True)


if __name__ == "__main__":
    main()
