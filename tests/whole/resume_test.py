"""A run that is killed again and again ends like an undisturbed one, bit for bit."""

import functools
import json
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from configs import default
from tests.processes import wait_for
from tests.whole.command_line import BYTES, records, results, timeless
from transformer_jax.checkpoint.checkpoints import restore
from transformer_jax.config.build import build
from transformer_jax.config.load import load, to_json
from transformer_jax.process import interrupt

pytestmark = pytest.mark.long

TINY = BYTES | {
    "data.max_target_length": 16,
    "data.row_target_length": 24,
    "model.num_layers": 2,
    "optimizer.schedule": "cosine",
    "optimizer.warmup_steps": 5,
    "train.accumulation_steps": 2,
    # Windows that neither begin nor end where checkpoints are.
    "train.log_every": 3,
    "train.evaluate_every": 10,
    "checkpoint.every": 2,
    "checkpoint.average_last": 2,
    "decode.extra_length": 2,
    "decode.beam_size": 2,
}
# Documents of several pieces, and shorter ones that share a row.
TEXT = {"data.train": ("text",), "data.test": (), "data.validation_size": 200}
# Readers and what they remember, across documents and kills.
READERS = TEXT | {
    "model.architecture": "decoder_only",
    "data.row_target_length": 16,
    "train.steps": 90,
    "decode.method": "greedy",
}
# Three formats; the folder of each comes between its source and its files.
MIXTURE = (
    ("text", "text", 1.0),
    ("json", "upper.jsonl.zst", 2.0),
    ("parquet", "parts-*.parquet", 1.5),
)
MIXED = {
    "data.mixture": MIXTURE,
    "data.text_feature": "text",
    "data.validation": ("text",),
    "data.test": (),
}
# Each shape: how often it is killed, and its config.
SHAPES = {
    "encoder_decoder": (
        3,
        {
            "data.validation_size": 9,
            "data.tokenizer.kind": "unigram",  # which takes a while to train
            "data.tokenizer.vocab_size": 60,
            "model.residual": "admin",
            "train.steps": 40,
        },
    ),
    "decoder_only": (
        2,
        MIXED
        | {
            "model.positions": "rotary",
            "model.residual": "pre_ln",
            "optimizer.name": "muon",
            "train.ema_decay": 0.9,
            "train.steps": 24,
            "decode.method": "sample",
        },
    ),
    "encoder_only": (
        2,
        TEXT | {"model.tied_embeddings": "none", "optimizer.name": "adafactor", "train.steps": 24},
    ),
    "memory": (10, READERS | {"model.positions": "distance", "model.memory_length": 10}),
    "states": (
        5,
        READERS | {"model.family": "recurrent", "model.recurrence": "lstm", "model.stateful": True},
    ),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with a tiny corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 3)) for _ in range(80)]
    for split in ("train", "test"):
        for language, text in (("en", str), ("de", str.upper)):
            lines = [text(f"{a} {b}\n") for a, b in zip(words, reversed(words), strict=True)]
            (folder / f"{split}.{language}").write_text("".join(lines))
    documents = [" ".join(words[n : n + 1 + n % 8]) for n in range(len(words))]
    (folder / "text").write_text("".join(f"{document}\n" for document in documents))
    upper = "".join(json.dumps({"text": document.upper()}) + "\n" for document in documents)
    with pyarrow.output_stream(str(folder / "upper.jsonl.zst"), compression="zstd") as file:
        file.write(upper.encode())
    for part, words in enumerate((documents[:50], documents[50:])):
        table = pyarrow.table({"text": [document.title() for document in words]})
        parquet.write_table(table, folder / f"parts-{part}.parquet")
    return folder


@pytest.fixture(scope="module")
def launch(corpus):
    """A function that starts a shape's training in a work directory, in its own process.

    Beside the work directory it keeps the data's cache, and what its processes print.
    """

    def launch(architecture, workdir):
        folders = {"data.dir": str(corpus), "data.cache_dir": str(workdir.parent / "cache")}
        shape = {"model.architecture": architecture} | SHAPES[architecture][1]
        if "data.mixture" in shape:
            rows = [(source, str(corpus), *rest) for source, *rest in shape["data.mixture"]]
            shape["data.mixture"] = tuple(rows)
        config = load(default.__file__, TINY | shape | folders)
        (workdir.parent / "config.json").write_text(to_json(config))
        arguments = [f"--config={workdir.parent / 'config.json'}", f"--workdir={workdir}"]
        with (workdir.parent / "output.txt").open("a") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "transformer_jax.main", *arguments],
                stdout=file,
                stderr=file,
            )

    return launch


@pytest.fixture(scope="module")
def unbroken(launch, tmp_path_factory):
    """A function from a shape to the work directory of a run that nothing has disturbed."""

    @functools.cache
    def run(architecture):
        workdir = tmp_path_factory.mktemp(architecture) / "unbroken"
        status = launch(architecture, workdir).wait()
        assert status == 0, (workdir.parent / "output.txt").read_text()
        return workdir

    return run


@pytest.fixture
def broken(tmp_path):
    """The work directory of a run that is disturbed."""
    yield tmp_path / "broken"
    print((tmp_path / "output.txt").read_text())  # shown if the test fails


def _trace(workdir):
    """What is visible of a run from outside: it changes with every line logged and file saved."""
    metrics, checkpoints = workdir / "metrics.jsonl", workdir / "checkpoints"
    size = metrics.stat().st_size if metrics.exists() else -1
    return size, sorted(path.name for path in checkpoints.glob("*"))


def _kill_after(process, workdir, changes):
    """Kills the process after that many visible changes; returns whether it was alive."""
    seen = _trace(workdir)
    while changes and process.poll() is None:
        now = _trace(workdir)
        changes -= now != seen
        seen = now
        time.sleep(0.001)
    process.kill()
    return process.wait() < 0


def _state(workdir):
    config = load(str(workdir / "config.json"))
    run = build(config, workdir)
    folder = run.checkpoints(workdir).find("last")
    assert folder is not None
    restored = restore(folder, run.abstract_state())
    assert restored.step == config.train.steps
    state = restored.state
    parts = (state.params, state.ema_params, state.opt_state, state.memory)
    parts += (state.window, state.recent)
    leaves, structure = jax.tree.flatten(parts)
    return [np.asarray(leaf).tobytes() for leaf in leaves], structure, restored.streams


def _assert_equal(broken, unbroken):
    assert records(broken) == records(unbroken)
    assert _state(broken) == _state(unbroken)
    assert timeless(results(broken)) == timeless(results(unbroken))
    assert results(broken)["status"] in ("finished", "plateaued")
    assert (broken / "samples.txt").read_text() == (unbroken / "samples.txt").read_text()


@pytest.mark.parametrize("architecture", SHAPES)
def test_a_run_killed_again_and_again_equals_an_unbroken_one(
    launch, unbroken, broken, architecture
):
    rng = np.random.default_rng(0)
    for _ in range(SHAPES[architecture][0]):
        alive = _kill_after(launch(architecture, broken), broken, changes=rng.integers(1, 14))
        assert alive, "the run ended before it was killed often enough: train for longer"
    assert launch(architecture, broken).wait() == 0
    _assert_equal(broken, unbroken(architecture))


def test_a_run_interrupted_in_each_phase_equals_an_unbroken_one(launch, unbroken, broken, tmp_path):
    """In preparation, while compiling, in training and while scoring: one line, and no loss."""
    architecture = "encoder_decoder"

    def steps():
        return results(broken)["steps"] if (broken / "results.json").exists() else 0

    for reached in (
        (tmp_path / "cache").exists,
        (broken / "config.json").exists,
        lambda: _trace(broken)[0] > 0,
        lambda: steps() == SHAPES[architecture][1]["train.steps"],
    ):
        output = tmp_path / "output.txt"
        before = len(output.read_text()) if output.exists() else 0
        process = launch(architecture, broken)
        wait_for(reached, process)
        process.send_signal(signal.SIGINT)
        assert process.wait() == interrupt.EXIT_STATUS
        lines = output.read_text()[before:].splitlines()
        (line,) = [line for line in lines if "(SIGINT)" in line]
        assert line.startswith(("Interrupted", "Stopping"))
        assert not any(line.startswith("Traceback") for line in lines)

    assert launch(architecture, broken).wait() == 0
    _assert_equal(broken, unbroken(architecture))
