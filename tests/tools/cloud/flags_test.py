"""From a command line to what is launched."""

import re

import pytest

from transformer_jax.tools.cloud import flags, launcher


@pytest.mark.parametrize(
    ("flags", "command", "requested"),
    [
        ([], "queued-resources create", "--async"),
        (["--spot"], "queued-resources create", "--spot"),
        (["--reserved"], "queued-resources create", "--reserved"),
        (
            ["--flex_start=2h"],
            "gcloud alpha compute tpus queued-resources",
            "--max-run-duration=2h",
        ),
        (["--now", "--spot"], "tpu-vm create", "--version=v2-alpha-tpuv6e --spot"),
        (["--create=--network=a --tags=b,c"], "create", "--network=a --tags=b,c"),
    ],
)
def test_the_kinds_of_capacity(cloud, flags, command, requested):
    _, out = cloud.launch("--dry_run", "--project=p", *flags)
    (create,) = [line for line in out.splitlines() if " create " in line]
    assert command in create and set(requested.split()) <= set(create.split())


@pytest.mark.parametrize(
    ("accelerator", "name", "runtime", "hosts"),
    [
        ("v4-8", "v4-8", "tpu-ubuntu2204-base", 1),
        ("v4-32", "v4-32", "tpu-ubuntu2204-base", 4),
        ("v5e-8", "v5litepod-8", "v2-alpha-tpuv5-lite", 1),
        ("v5litepod-256", "v5litepod-256", "v2-alpha-tpuv5-lite", 64),
        ("v5p-256", "v5p-256", "v2-alpha-tpuv5", 32),
        ("v6e-16", "v6e-16", "v2-alpha-tpuv6e", 4),
    ],
)
def test_accelerators(accelerator, name, runtime, hosts):
    launch, _ = flags.parse(_arguments(accelerator))
    assert (launch.accelerator, launch.runtime, launch.hosts) == (name, runtime, hosts)


def test_a_config_is_relative_to_the_current_directory_or_to_the_repository(cloud):
    # As `python -m` would import it without -P.
    (cloud.clone / "configs/transformer_jax.py").write_text("raise ImportError")
    for folder, file in ((cloud.clone / "configs", "mine.py"), (cloud.cwd, "configs/mine.py")):
        cloud.cwd = folder
        command = ("train", f"--config={file}:big", "--workdir=gs://b/a")
        status, out = cloud.launch("--dry_run", "--project=p", command=command)
        assert status == 0 and "--config=configs/mine.py:big" in out


def _arguments(accelerator="v6e-8", *, dry_run=True, command=("replay", "--workdir=gs://b/a")):
    flags = [f"--accelerator={accelerator}", "--zone=us-west4-a", "--project=p"]
    return [*flags, *["--dry_run"] * dry_run, *command]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (_arguments("tpu7x-16"), "tpu7x-16: .* through Compute Engine and GKE alone"),
        (
            _arguments("v3-8"),
            "--accelerator: 'v3-8' is not an accelerator type: expected",
        ),
        (_arguments("2xv5e-16"), "--accelerator=2xv5e-16: expected one slice"),
        (
            _arguments("v5p-7"),
            "--accelerator: 'v5p-7' is not a slice: v5p comes .*: v5p-8, v5p-16",
        ),
        (_arguments(command=()), "give a command of launch.sh"),
        (
            _arguments(command=("train", "--workdir=runs/a")),
            "expected --workdir=gs://BUCKET/FOLDER",
        ),
        (
            _arguments(command=("train", "--workdir=gs://b")),
            "expected --workdir=gs://BUCKET/FOLDER",
        ),
        (
            _arguments(command=("train", "--workdir=gs://b/a", "--config=/etc/hosts")),
            "--config=/etc/hosts: the file has to be in",
        ),
        (
            _arguments(command=("train", "--config", "configs/a.py", "--workdir=gs://b/a")),
            "--config FILE: write --config=FILE",
        ),
        (
            _arguments(command=("train", "--config=", "--workdir=gs://b/a")),
            "--config=: the file has to be in",
        ),
        (_arguments(dry_run=False), "found no gcloud on PATH"),
    ],
)
def test_mistakes_are_refused_at_once(arguments, message, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launcher.main(arguments) == 1
    assert re.search(message, capsys.readouterr().err)
