"""From a command line to what is launched."""

import re

import pytest

from transformer_jax.tools.cloud import flags, launcher, slices

REPLAY = "replay --workdir=gs://b/a"


def _arguments(accelerator="v6e-8", command=REPLAY):
    flags = [f"--accelerator={accelerator}", "--zone=us-west4-a", "--project=p", "--dry_run"]
    return [*flags, *command.split()]


@pytest.mark.parametrize(
    ("more", "command", "requested"),
    [
        ([], "gcloud compute tpus queued-resources create", "--async"),
        (["--spot"], "queued-resources create", "--spot"),
        (["--reserved"], "queued-resources create", "--reserved"),
        (["--flex_start=2h"], "gcloud alpha compute tpus queued-res", "--max-run-duration=2h"),
        (["--now", "--spot"], "tpu-vm create", "--version=v2-alpha-tpuv6e --spot"),
        (["--create=--network=a --tags=b,c"], "create", "--network=a --tags=b,c"),
    ],
)
def test_the_kinds_of_capacity(more, command, requested):
    launch, dry_run = flags.parse([*more, *_arguments()])
    create = slices.create_command(launch)
    assert dry_run and command in " ".join(create) and {*requested.split()} <= {*create}


def test_a_config_is_relative_to_the_current_directory_or_to_the_repository(cloud):
    # As `python -m` would import it without -P.
    (cloud.clone / "configs/transformer_jax.py").write_text("raise ImportError")
    for folder, file in ((cloud.clone / "configs", "mine.py"), (cloud.cwd, "configs/mine.py")):
        cloud.cwd = folder
        command = ("train", f"--config={file}:big", "--workdir=gs://b/a")
        status, out = cloud.launch("--dry_run", "--project=p", command=command)
        assert status == 0 and "--config=configs/mine.py:big" in out


@pytest.mark.parametrize(
    ("accelerator", "command", "message"),
    [
        ("tpu7x-16", REPLAY, "tpu7x-16: .* through Compute Engine and GKE alone"),
        ("v3-8", REPLAY, "--accelerator: 'v3-8' is not an accelerator type: expected"),
        ("2xv5e-16", REPLAY, "--accelerator=2xv5e-16: expected one slice"),
        ("v5p-7", REPLAY, "--accelerator: 'v5p-7' is not a slice: v5p comes .*: v5p-8, v5p-16"),
        ("v6e-8", "", "give a command of launch.sh"),
        ("v6e-8", "train --workdir=runs/a", "expected --workdir=gs://BUCKET/FOLDER"),
        ("v6e-8", "train --workdir=gs://b", "expected --workdir=gs://BUCKET/FOLDER"),
        ("v6e-8", f"{REPLAY} --config=/etc/hosts", "--config=/etc/hosts: the file has to be in"),
        ("v6e-8", f"{REPLAY} --config=", "--config=: the file has to be in"),
        ("v6e-8", f"{REPLAY} --config configs/a.py", "--config FILE: write --config=FILE"),
        ("v6e-8", f"{REPLAY} --config.data.dir=gs://b-large/x", "mount gs://b alone; .*gs://b-la"),
        ("v6e-8", f"{REPLAY} --config.data.dir=(('gs://b/x'),('gs://c'))", "copy there .* gs://c$"),
    ],
)
def test_mistakes_are_refused_at_once(accelerator, command, message, capsys):
    assert launcher.main(_arguments(accelerator, command)) == 1
    assert re.search(message, capsys.readouterr().err)


def test_without_gcloud_one_message_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launcher.main([each for each in _arguments() if each != "--dry_run"]) == 1
    assert "found no gcloud on PATH" in capsys.readouterr().err
