"""Creates, watches and deletes the slice."""

import re
import shlex
import signal
import time
from typing import Literal, NamedTuple

from transformer_jax.tools.cloud.gcloud import Answer, call, raise_if_hopeless
from transformer_jax.tools.cloud.launch import Launch, Stop, backoff, pause, say

_DELETIONS = 5  # tried before the slice counts as still there
# Google's states of a slice, or of a request for one, that is worth waiting for.
_COMING = (
    "READY",  # and under maintenance
    "CREATING",
    "STARTING",
    "RESTARTING",
    "REPAIRING",
    "ACCEPTED",
    "PROVISIONING",
    "WAITING_FOR_RESOURCES",
)


class State(NamedTuple):
    """A slice's state, and gcloud's words for it. lost: it was taken away."""

    word: Literal["absent", "coming", "ready", "lost", "unknown"]
    detail: str


def create_command(launch: Launch) -> list[str]:
    """Asks for the slice: in a queue, or at once or not at all."""
    flex = any("flex-start" in flag for flag in launch.capacity)
    common = [*launch.place, f"--accelerator-type={launch.accelerator}", *launch.capacity]
    if not launch.queued:
        create = ["gcloud", "compute", "tpus", "tpu-vm", "create", launch.name]
        return [*create, *common, f"--version={launch.runtime}", *launch.create]
    create = ["gcloud", *["alpha"] * flex, "compute", "tpus", "queued-resources", "create"]
    node = [f"--node-id={launch.name}", f"--runtime-version={launch.runtime}"]
    return [*create, launch.name, *common, *node, *launch.create, "--async"]


def delete_commands(launch: Launch) -> list[list[str]]:
    """Ends the request and its slice, if that is queued, and then a slice without a request."""
    tpus, named = ["gcloud", "compute", "tpus"], ["delete", launch.name, *launch.place]
    request, node = [*tpus, "queued-resources", *named, "--force"], [*tpus, "tpu-vm", *named]
    return [request, node] if launch.queued else [node]


def describe_commands(launch: Launch) -> list[list[str]]:
    """Asks for the request, if the slice is queued, and then for the slice itself."""
    tpus, place = ["gcloud", "compute", "tpus"], launch.place
    form = "--format=value(state.state,state.failedData.error.message)"
    request = [*tpus, "queued-resources", "describe", launch.name, *place, form]
    node = [*tpus, "tpu-vm", "describe", launch.name, *place, "--format=value(state,health)"]
    return [request, node] if launch.queued else [node]


def look(launch: Launch) -> State:
    """The slice's state now."""
    states = [_described(call(command)) for command in describe_commands(launch)]
    words = [state.word for state in states]
    if "unknown" in words:
        return states[words.index("unknown")]
    if words == ["ready", "absent"]:  # a request never gets another slice
        return State("lost", "deleted")
    if words == ["absent", "ready"]:
        return State("lost", "without its request")
    # Where only the request exists, its state counts.
    return states[0] if words[0] in ("coming", "lost") else states[-1]


def _described(answer: Answer) -> State:
    if not answer.ok:
        match = re.search("not.found", answer.error, re.I)
        return State("absent", "") if match else State("unknown", answer.error)
    word = answer.out.partition("\t")[0]
    if word in ("ACTIVE", "READY") and "MAINTENANCE" not in answer.out:
        return State("ready", answer.out)
    return State("coming" if word in _COMING else "lost", answer.out)


def obtain(launch: Launch) -> None:
    """Returns once the slice is ready. Raises Stop if it cannot be had, or not within the time."""
    since, message, refused = time.monotonic(), "", 0
    while True:
        state = look(launch)
        if state.word == "ready":
            return
        waited = time.monotonic() - since
        if waited > launch.max_wait_hours * 3600:
            raise Stop(
                f"no {launch.accelerator} in {launch.zone} within {launch.max_wait_hours:g} hours "
                f"({state.detail or message}). Try another --zone, --spot, or a longer "
                "--max_wait_hours"
            )
        seconds = launch.poll_seconds
        if state.word in ("lost", "unknown"):
            raise_if_hopeless(state.detail)
        if state.word == "lost":
            say(f"{launch.name} was {state.detail}: deleting it, to ask for another.")
            delete(launch)
        elif state.word == "absent":
            say(f"Asking for {launch.accelerator} in {launch.zone}, as {launch.name}.")
            answer = call(create_command(launch))
            if not answer.ok:
                raise_if_hopeless(answer.error)
                if not re.search("capacity|exhausted|unavailable", answer.error, re.I):
                    raise Stop(f"gcloud could not make the slice: {answer.error}")
                refused += 1
                seconds, message = backoff(launch, refused), answer.error
                say(f"No capacity now, trying again in {seconds:.0f} s.")
        elif state.detail != message:
            message = state.detail
            say(f"{message}, after {waited / 60:.0f} minutes of waiting.")
        pause(launch, seconds)


def delete(launch: Launch) -> None:
    """Deletes the slice and looks whether it is gone. Raises Stop when that cannot be seen.

    It ignores signals meanwhile: a slice that is left behind costs money.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        say(f"Deleting {launch.name} ...")
        for trial in range(_DELETIONS):
            time.sleep(launch.poll_seconds * bool(trial))
            for command in delete_commands(launch):
                call(command)
                state = look(launch)
                if state.word == "absent":
                    say(f"{launch.name} is deleted.")
                    return
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    raise Stop(
        f"{launch.name} may still be there and cost money ({state.detail}). Delete it:\n"
        + "\n".join(f"  {shlex.join(command)}" for command in delete_commands(launch))
    )
