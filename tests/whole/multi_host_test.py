"""Several processes train as one: the same numbers, however many continue."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import host_settings, wait_for
from tests.whole.command_line import BYTES, records, results
from transformer_jax.config.load import load, to_json
from transformer_jax.configs import default
from transformer_jax.runs.workdir import saved_steps

pytestmark = pytest.mark.long

STEPS = 24
TINY = BYTES | {
    "data.train": ("text",),
    "data.validation_size": 16,
    "data.test": (),
    "model.architecture": "encoder_only",
    "model.num_layers": 1,
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": 0,
    "train.steps": STEPS,
    "train.log_every": 1,
    "train.evaluate_every": 0,
    "checkpoint.every": 3,
    "evaluate.batch_size": 8,
    "mesh.data": 1,
    "mesh.fsdp": -1,  # every device, and so every host, holds a part of each parameter
}


def start(workdir: Path, processes: int, devices: int, *flags: str) -> list[subprocess.Popen]:
    """Trains in a work directory, in `processes` processes of `devices` devices each."""
    folder = workdir.parent
    config = load(default.__file__, TINY | {"data.dir": str(folder)})
    (folder / "config.json").write_text(to_json(config))
    paths = f"--config={folder / 'config.json'}", f"--config.data.cache_dir={folder / 'cache'}"
    command = [sys.executable, "-m", "transformer_jax.main", f"--workdir={workdir}", *paths, *flags]
    flag = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    started = []
    for process, settings in enumerate(host_settings(processes)):
        with (folder / f"{workdir.name}.{process}").open("w") as output:
            environment = os.environ | settings | {"XLA_FLAGS": flag}
            started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
    return started


def assert_equal_runs(workdir: Path, reference: Path) -> None:
    """All that was logged and scored is equal, up to the order of float additions."""
    ours, theirs = records(workdir), records(reference)
    assert [record.keys() for record in ours] == [record.keys() for record in theirs]
    assert [record["step"] for record in ours] == list(range(1, STEPS + 1))
    for record, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(list(record.values()), list(other.values()), rtol=1e-5)
    scores = [name for name in results(reference) if name.startswith("validation/")]
    assert scores
    for name in scores:
        np.testing.assert_allclose(results(workdir)[name], results(reference)[name], rtol=1e-5)


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abcde"), 1 + n % 3)) for n in range(400)]
    lines = [" ".join(words[n : n + 1 + n % 6]) for n in range(len(words))]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    yield tmp_path
    for path in sorted(tmp_path.glob("*.[01]")):  # shown if the test fails
        print(path.name, path.read_text(), sep="\n")


def test_a_job_that_is_stopped_and_goes_on_on_fewer_hosts_equals_an_unbroken_one(folder):
    unbroken, broken = folder / "unbroken", folder / "broken"
    (alone,) = start(unbroken, 1, devices=8)
    assert alone.wait() == 0

    pair = start(broken, 2, devices=4)
    wait_for(lambda: any(saved_steps(broken)) or any(process.poll() for process in pair))
    pair[1].terminate()
    assert [process.wait() for process in pair] == 2 * [128 + signal.SIGTERM]
    assert results(broken)["status"] == "preempted"

    (alone,) = start(broken, 1, 2, "--config.mesh.fsdp=1")
    assert alone.wait() == 0
    assert_equal_runs(broken, unbroken)
    assert results(broken)["devices"] == 1


def test_two_hosts_find_what_became_non_finite_first(folder):
    changes = {
        "data.dir": str(folder),
        "model.architecture": "decoder_only",
        "model.residual": "admin",
        "optimizer.learning_rate": 1e30,  # the first update ruins all parameters
    }
    workdir = folder / "diverging"
    workdir.mkdir()
    (workdir / "config.json").write_text(to_json(load(default.__file__, TINY | changes)))
    pair = start(workdir, 2, 1, "--mode=replay", "--step=3", f"--config={workdir}/config.json")
    assert [process.wait() for process in pair] == [0, 0]
    output = (folder / "diverging.0").read_text()
    assert "Step 2 is bad" in output
    assert "first tensor that is not finite: decoder/layer 1" in output
