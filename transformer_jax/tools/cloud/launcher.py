"""The launcher: checks, ships, and supervises attempt after attempt. The package says what it does.

python -m transformer_jax.tools.cloud.launcher --accelerator=... --zone=... COMMAND ...
"""

import contextlib
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from transformer_jax.tools.cloud import bucket, flags, jobs, slices
from transformer_jax.tools.cloud.bucket import Code
from transformer_jax.tools.cloud.gcloud import FORBIDDEN, call, hopeless
from transformer_jax.tools.cloud.launch import Launch, OutOfTime, Stop, backoff, pause, say


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0 once the command is done on all hosts."""
    # Also where a shell has started this in the background, whose SIGINT is ignored otherwise.
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup, which shall continue
        signals.append(signal.SIGHUP)
    previous = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        launch, dry_run = flags.parse(sys.argv[1:] if argv is None else argv)
        code = bucket.pack(flags.ROOT)
        if dry_run:
            print(*dry(launch, code), sep="\n")
            return 0
        check(launch)
        with bucket.lease(launch):
            run(launch, code)
        return 0
    except Stop as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("Stopped. The same command continues from the last checkpoint.")
        return 130
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run(launch: Launch, code: Code) -> None:
    """Ships, supervises, and deletes the slice whatever happens."""
    try:
        bucket.ship(launch, code)
        supervise(launch, code)
    except (KeyboardInterrupt, OutOfTime):
        with contextlib.suppress(KeyboardInterrupt):  # a second one: without saving
            if slices.look(launch).word == "ready":
                say("Stopping: training saves where it is. Ctrl-C once more does not wait.")
                jobs.stop(launch, code)
        raise
    finally:
        if launch.keep:
            say(f"{launch.name} stays (--keep) and costs. To delete it:")
            say(f"  {shlex.join(slices.delete_commands(launch)[0])}")
        else:
            slices.delete(launch)


def supervise(launch: Launch, code: Code) -> None:
    """Attempt after attempt until the command is done. Raises Stop where another has no point."""
    preempted, failed_at = 0, []
    while True:
        slices.obtain(launch)
        label = str(time.time_ns())  # unlike any other attempt's, even in the same second
        started = jobs.start(launch, code, label)
        ended = jobs.follow(launch, label) if started else jobs.Ended("preempted")
        step = jobs.last_step(launch)
        if ended.how == "done":
            say("Done on all hosts.")
            return
        preempted = 0 if ended.progress else preempted
        if ended.how == "preempted":
            preempted += 1
            say(f"Preempted at step {step}: continuing from the last checkpoint.")
            pause(launch, backoff(launch, preempted - 1))
            continue
        what = f"It {ended.how} at step {step}: {ended.detail}"
        if ended.hopeless:
            raise Stop(what)
        if launch.logs_steps and step in failed_at:
            raise Stop(f"{what}\nIt is the second time at this step, so there is no third.")
        failed_at.append(step)
        if len(failed_at) > launch.max_failures:
            raise Stop(f"{what}\nThat makes {len(failed_at)}, and --max_failures allows no more.")
        say(f"{what}\nContinuing from the last checkpoint.")
        pause(launch, backoff(launch, len(failed_at)))


def check_commands(launch: Launch) -> list[list[str]]:
    """Asks for the account, and for the bucket's region, which the account may not be allowed."""
    return [
        ["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)"],
        ["gcloud", "storage", "buckets", "describe", launch.bucket, "--format=value(location)"],
    ]


def check(launch: Launch) -> None:
    """Raises Stop for what would fail later, when it costs more."""
    account, place = map(call, check_commands(launch))
    if not account.out:
        raise Stop("gcloud has no account: gcloud auth login")
    if not place.ok and not re.search(FORBIDDEN, place.error, re.I):
        raise Stop(f"{launch.bucket}: {hopeless(place.error) or place.error}")
    region = launch.zone.rpartition("-")[0]
    if place.ok and place.out.lower() not in (region, region.partition("-")[0]):
        say(f"Note: {launch.bucket} is in {place.out}, the slice in {region}: slow, and it costs.")


def dry(launch: Launch, code: Code) -> Iterator[str]:
    """Every command of a launch without accidents; those that look or wait come repeatedly."""
    label = "ATTEMPT"
    scripts = [jobs.start_script(launch, code, host, label) for host in range(launch.hosts)]
    commands = [
        *check_commands(launch),
        bucket.write_command(launch, "lease", "--if-generation-match=0"),
        bucket.write_command(launch, f"{code.hash}.tar.gz"),
        bucket.write_command(launch, f"{code.hash}.patch"),
        *slices.describe_commands(launch),
        slices.create_command(launch),
        bucket.write_command(launch, "lease"),
        *(jobs.ssh_command(launch, host, script) for host, script in enumerate(scripts)),
        ["gcloud", "storage", "cat", "--range=0-", f"{launch.folder}/{label}/log-0"],
        ["gcloud", "storage", "cat", f"{launch.folder}/{label}/exit-*"],
        ["gcloud", "storage", "cat", "--range=-65536", f"{launch.home}/metrics.jsonl"],
        *([] if launch.keep else slices.delete_commands(launch)[:1]),
        ["gcloud", "storage", "rm", "--quiet", f"{launch.folder}/lease"],
    ]
    return map(shlex.join, commands)


if __name__ == "__main__":
    sys.exit(main())
