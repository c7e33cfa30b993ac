"""The command line of the launcher."""

import argparse
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_jax.tools import accelerators
from transformer_jax.tools.cloud.gcloud import call
from transformer_jax.tools.cloud.launch import Launch, Stop, check_buckets

ROOT = Path(__file__).resolve().parents[3]


# Of each generation that is lent, its name in gcloud's accelerator types and its hosts' image
_LENT = {
    "v4": ("v4", "tpu-ubuntu2204-base"),
    "v5e": ("v5litepod", "v2-alpha-tpuv5-lite"),
    "v5p": ("v5p", "v2-alpha-tpuv5"),
    "v6e": ("v6e", "v2-alpha-tpuv6e"),
}


def parse(argv: Sequence[str]) -> tuple[Launch, bool]:
    """The launch that a command line asks for, and whether only to print what it would do.

    Raises:
      Stop: where it cannot be launched.
    """
    flags = _parser().parse_args(argv)
    slice = _slice(flags.accelerator)
    name, runtime = _LENT[slice.generation]
    if shutil.which("gcloud") is None and not (flags.dry_run and flags.project):
        raise Stop("found no gcloud on PATH: https://cloud.google.com/sdk/docs/install")
    project = flags.project or call(["gcloud", "config", "get-value", "project"]).out
    if not project:
        raise Stop("give --project, or: gcloud config set project PROJECT")
    capacity = ["--spot"] * flags.spot + ["--reserved"] * flags.reserved
    if flags.flex_start:
        if flags.now:
            raise Stop("--flex_start is queued always: leave --now out")
        capacity = ["--provisioning-model=flex-start", f"--max-run-duration={flags.flex_start}"]
    if slice.hosts > 1 and "experiment" in flags.command[:1]:
        raise Stop(f"an experiment runs on one host: {flags.accelerator} has {slice.hosts}")
    launch = Launch(
        command=tuple(_command(flags.command)),
        home=_home(flags.command),
        accelerator=f"{name}-{slice.number}",
        runtime=runtime,
        hosts=slice.hosts,
        zone=flags.zone,
        project=project,
        capacity=tuple(capacity),
        queued=not flags.now,
        create=tuple(flags.create),
        max_wait_hours=flags.max_wait_hours,
        deadline=time.monotonic() + flags.max_hours * 3600,
        max_failures=flags.max_failures,
        hang_minutes=flags.hang_minutes,
        poll_seconds=flags.poll_seconds,
        keep=flags.keep,
    )
    check_buckets(flags.command, launch.bucket)
    return launch, flags.dry_run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch.sh tpu", description="Runs a command of launch.sh on a Cloud TPU slice."
    )
    parser.add_argument("--accelerator", required=True, help="v4-32, v5e-16, v5p-256, v6e-8, ...")
    parser.add_argument("--zone", required=True, help="as us-west4-a")
    parser.add_argument("--project", help="default: gcloud's")
    lent = parser.add_mutually_exclusive_group()
    lent.add_argument("--spot", action="store_true", help="cheaper, and may be taken away")
    lent.add_argument("--reserved", action="store_true", help="from a reservation")
    lent.add_argument("--flex_start", metavar="DURATION", help="for up to 7d, as 12h")
    parser.add_argument("--now", action="store_true", help="do not queue: at once, or try again")
    parser.add_argument("--create", type=shlex.split, default=[], help="flags of gcloud's create")
    parser.add_argument("--max_wait_hours", type=float, default=24.0, help="for a slice (24)")
    parser.add_argument("--max_hours", type=float, default=float("inf"), help="in all")
    parser.add_argument("--max_failures", type=int, default=3, help="preemptions do not count (3)")
    parser.add_argument("--hang_minutes", type=float, default=30.0, help="without output (30)")
    parser.add_argument("--poll_seconds", type=float, default=30.0, help="between looks (30)")
    parser.add_argument("--keep", action="store_true", help="do not delete the slice at the end")
    parser.add_argument("--dry_run", action="store_true", help="only print every command")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of launch.sh, with its flags")
    return parser


def _slice(accelerator: str) -> accelerators.Slice:
    """The slice of an accelerator type. Raises Stop for one that cannot be launched."""
    try:
        slice = accelerators.parse(accelerator)
    except ValueError as error:
        raise Stop(f"--accelerator: {error}") from error
    if slice.generation not in _LENT:
        raise Stop(
            f"--accelerator={accelerator}: Google lends {slice.generation} through Compute Engine "
            "and GKE alone, which is not built yet. It can be compiled for: launch.sh preflight"
        )
    if slice.slices > 1:
        raise Stop(f"--accelerator={accelerator}: expected one slice, as v5e-16")
    return slice


def _home(command: Sequence[str]) -> str:
    """The gs:// folder that the command writes to. Raises Stop where there is none."""
    for argument in command:
        flag, _, value = argument.partition("=")
        if flag in ("--workdir", "--runs_dir"):
            if not re.fullmatch(r"gs://[^/]+/.*[^/]", value):
                raise Stop(f"{argument}: expected {flag}=gs://BUCKET/FOLDER, to outlive a slice")
            return value
    raise Stop("give a command of launch.sh: train --config=... --workdir=gs://BUCKET/FOLDER")


def _command(command: Sequence[str]) -> Iterator[str]:
    """The command as it is on a host, where configs are relative to the checkout."""
    for argument in command:
        flag, _, value = argument.partition("=")
        if argument == "--config":
            raise Stop("--config FILE: write --config=FILE")
        if flag == "--config":
            file, colon, rest = value.partition(":")
            path = Path(file).resolve() if Path(file).exists() else ROOT / file
            if not path.is_relative_to(ROOT) or not path.is_file():
                raise Stop(f"{argument}: the file has to be in {ROOT}, which is what hosts get")
            argument = f"--config={path.relative_to(ROOT)}{colon}{rest}"
        yield argument
