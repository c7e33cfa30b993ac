"""Estimates what a run takes of memory, before anything of it is allocated or compiled.

What cannot fit is refused, in one line that names the settings which decide it; what probably does
not fit is told. `report` compiles the programs instead, which takes longer and is exact.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from transformer_jax.data.prepare.recipe import Form
from transformer_jax.data.serve.rows import PACKING_BINS
from transformer_jax.evaluation.decoder import DecodeSettings
from transformer_jax.evaluation.generate import rooms_of
from transformer_jax.process import machine, tables
from transformer_jax.process.machine import Need
from transformer_jax.run import Run

_AHEAD = 4  # batches at a time: one in use, two ready, one in the making


class Phase(NamedTuple):
    """What a run does at a time. held: what is there all the time. used: what comes and goes."""

    name: str
    held: list[Need]
    used: list[Need]

    @property
    def likely(self) -> float:
        """Bytes of all of it."""
        return sum(need.likely for need in self.held + self.used)


# Those of a mode of the command line, by what a state holds
Phases = Callable[[Run, list[Need]], list[Phase]]


class Place(NamedTuple):
    """Memory that programs share. share: how much of what all devices take lies in it."""

    name: str
    whole: float
    free: float
    share: float


def check(run: Run, phases: Phases) -> None:
    """Warns where one of the phases probably does not fit into memory.

    Raises:
      ValueError: one of them certainly does not.
    """
    place = _place(run.mesh)
    if place is None:
        return
    # The first state is not traced, so that a model of any size gets an answer.
    found: list[Phase] = []
    for state in (_least, _state):
        found = phases(run, state(run))
        for phase in found:
            if message := _impossible(phase, place):
                raise ValueError(message)
    largest = max(found, key=lambda phase: phase.likely)
    if message := _unlikely(largest, place):
        logging.warning("%s", message)


def check_constants(needs: Sequence[Need], lengths: Mapping[str, int]) -> None:
    """Raises ValueError where the arrays that tracing a model makes do not fit into memory.

    lengths: the settings of the rows that it is traced for.
    """
    whole = machine.memory().whole
    for need in _with(lengths, needs):
        if need.least > whole:
            raise ValueError(
                f"this machine has {machine.size(whole)} of memory, too little for {need.name} "
                f"with {machine.size(need.least)}. Lower {_settings(need)}"
            )


def table(run: Run) -> Iterator[str]:
    """Yields the lines of a table of what training, scoring and decoding take."""
    place, phases = _place(run.mesh), train(run, _state(run))
    share = place.share if place else 1 / run.mesh.size
    names = [need.name for phase in phases for need in phase.held + phase.used]
    rows = [["", *(phase.name for phase in phases)]]
    for name in dict.fromkeys(names):
        parts = [
            sum(need.likely for need in phase.held + phase.used if need.name == name)
            for phase in phases
        ]
        rows.append([name, *(machine.size(share * part) if part else "" for part in parts)])
    rows.append(["sum", *(machine.size(share * phase.likely) for phase in phases)])
    yield from tables.aligned(rows)
    if place is None:
        return
    free = machine.size(place.free)
    yield f"{place.name} has {machine.size(place.whole)}, of which {free} are free"
    messages = (_impossible(phase, place) or _unlikely(phase, place) for phase in phases)
    yield from itertools.islice(filter(None, messages), 1)


def train(run: Run, state: list[Need]) -> list[Phase]:
    """Training steps, and the scores of splits with the state beside."""
    return [_training(run, state), *_scores(run, state)]


def evaluate(run: Run, state: list[Need]) -> list[Phase]:
    """The scores of a split."""
    return _scores(run, state[:1])


def generate(run: Run, state: list[Need]) -> list[Phase]:
    """The results of batches of lines."""
    rows = run.data.settings.evaluation_batch_size
    if run.task.limit is None:
        return [_scoring(run, state[:1])]
    return [_decoding(run, state[:1], run.decode, run.data.settings.max_prompt_length, rows)]


def stream(run: Run, state: list[Need]) -> list[Phase]:
    """The results of one line at a time."""
    return [_decoding(run, state[:1], run.decode, run.data.settings.max_prompt_length, 1)]


def embed(run: Run, state: list[Need]) -> list[Phase]:
    """The vectors of batches of lines, for which there are no logits."""
    phase = _scoring(run, state[:1])
    return [phase._replace(used=[need for need in phase.used if need.name != "logits"])]


def replay(run: Run, state: list[Need]) -> list[Phase]:
    """Training steps, and the state before each of them."""
    before = [need._replace(name=f"{need.name} before") for need in state]
    return [_training(run, state + before)]


def _scores(run: Run, state: list[Need]) -> list[Phase]:
    phases = [_scoring(run, state)]
    if run.task.scored is not None:
        decode, prompt = run.task.scored(run.decode, run.data.settings.max_prompt_length)
        rows = run.data.settings.evaluation_batch_size
        phases.append(_decoding(run, state, decode, prompt, rows))
    return phases


def _training(run: Run, held: list[Need]) -> Phase:
    data, sides = run.data.settings, run.data.settings.recipe.batch_sides()
    shapes = run.data.batch_shapes()
    lengths = {side: shapes[key].shape[1] for key, side in sides.items()}
    settings = {"data.batch_size": data.batch_size}
    kind = "row" if data.packing else "max"
    settings |= {f"data.{kind}_{side}_length": length for side, length in lengths.items()}
    row = sum(form.bytes for form in shapes.values()) / data.batch_size
    rows = _AHEAD * data.batch_size + data.packing * data.streams * PACKING_BINS
    micro_batch = data.batch_size // run.train.accumulation_steps
    activations = run.needs.activations(micro_batch, lengths, training=True)
    used = [
        held[0]._replace(name="gradients", least=0),
        Need("batches", row * data.batch_size, row * rows, settings),
        *_with(settings, activations),
    ]
    return Phase("training", held, used)


def _scoring(run: Run, held: list[Need]) -> Phase:
    data, rows = run.data.settings, run.data.settings.evaluation_batch_size
    most = {side: data.longest[side] for side in data.recipe.sides}
    settings = {"evaluate.batch_size": rows}
    settings |= {f"data.max_{side}_length": length for side, length in most.items()}

    def needs(lengths: Mapping[str, int]) -> list[Need]:
        columns = data.recipe.batch_columns().values()
        batch = rows * sum(
            lengths[column.side] * Form(column.shape, column.dtype).bytes for column in columns
        )
        activations = run.needs.activations(rows, lengths, training=False)
        return [Need("batches", batch, batch, settings), *_with(settings, activations)]

    # Rows are as long as the texts ask for.
    shortest = dict.fromkeys(most, 1)
    return Phase("scoring", held, _between(needs(shortest), needs(most)))


def _decoding(
    run: Run, held: list[Need], decode: DecodeSettings, longest_prompt: int, rows: int
) -> Phase:
    limit, positions = run.task.limit, run.model.config.longest_row
    assert limit is not None
    beam = decode.method == "beam"
    name = "beam_size" if beam else "num_samples"
    hypotheses = getattr(decode, name)
    settings = {f"decode.{name}": hypotheses, "decode.extra_length": decode.extra_length}
    settings |= {"evaluate.batch_size": rows} if rows > 1 else {}

    def needs(prompt: int) -> list[Need]:
        # A limit grows with the prompt, or falls.
        length = int(np.max(limit(np.array([1, prompt]), decode.extra_length, positions)))
        length = max(length, 1)
        room, *_ = rooms_of(length)
        return run.needs.decoding(rows, hypotheses, prompt, length, room=room, beam=beam)

    used = _between(needs(1), needs(longest_prompt))
    return Phase("decoding", held, _with(settings, used))


def _least(run: Run) -> list[Need]:
    """What the state holds at least, by arithmetic: its parameters, each on one device alone."""
    parts = run.mesh.shape["data"] * run.mesh.shape["sequence"]
    needs = run.needs.parameters()
    found = [_parameters(run, parts * sum(need.least for need in needs))]
    return found + [found[0]._replace(name="moving average")] * (run.train.ema_decay > 0)


def _state(run: Run) -> list[Need]:
    """What the state holds, exactly: of shapes, as they are sharded."""
    state = run.abstract_state()
    parameters = _parameters(run, _bytes(state.params, run.mesh))
    others = {"optimizer state": state.opt_state, "moving average": state.ema_params}
    sizes = {name: _bytes(tree, run.mesh) for name, tree in others.items()}
    return [
        parameters,
        *(parameters._replace(name=name, least=n, likely=n) for name, n in sizes.items() if n),
    ]


def _parameters(run: Run, needed: float) -> Need:
    decisive = max(run.needs.parameters(), key=lambda need: need.least)
    return Need("parameters", needed, needed, decisive.settings)


def _bytes(tree: Any, mesh: Mesh) -> int:
    """Bytes of arrays on all devices, each as often as it is there."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize * mesh.size
        for leaf in jax.tree.leaves(tree)
    )


def _place(mesh: Mesh) -> Place | None:
    """Where the devices of this process have their memory; None where nobody says how much."""
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        whole, free = machine.memory()
        return Place("this machine", whole, free, len(mesh.local_devices) / mesh.size)
    statistics = device.memory_stats() or {}
    if "bytes_limit" not in statistics:
        return None
    whole = statistics["bytes_limit"]
    name = f"each device ({device.device_kind})"
    return Place(name, whole, whole - statistics.get("bytes_in_use", 0), 1 / mesh.size)


def _impossible(phase: Phase, place: Place) -> str | None:
    """Says that a phase cannot fit: what it holds, and one more thing, are too much."""
    most = max(phase.used, key=lambda need: need.least)
    parts = [*phase.held, most]
    least = place.share * sum(need.least for need in parts)
    if least <= place.whole:
        return None
    largest = max(parts, key=lambda need: need.least)
    return (
        f"{phase.name} needs at least {machine.size(least)} of memory, and {place.name} has "
        f"{machine.size(place.whole)}. Largest part: {largest.name}, "
        f"{machine.size(place.share * largest.least)}. Lower {_settings(largest)}"
    )


def _unlikely(phase: Phase, place: Place) -> str | None:
    """Says that a phase probably does not fit."""
    likely = place.share * phase.likely
    if likely <= place.free:
        return None
    largest = max(phase.held + phase.used, key=lambda need: need.likely)
    return (
        f"{phase.name} probably needs {machine.size(likely)} of memory, and {place.name} has "
        f"{machine.size(place.free)} free, so it may be killed. Largest part: {largest.name}, "
        f"{machine.size(place.share * largest.likely)}. Lower {_settings(largest)}"
    )


def _settings(need: Need) -> str:
    """The largest settings that decide it, as "model.d_ff=2048 or model.d_model=512"."""
    ordered = sorted(need.settings.items(), key=lambda item: -item[1])
    *others, last = [f"{name}={value}" for name, value in ordered[:3]]
    return f"{', '.join(others)} or {last}" if others else last


def _with(settings: Mapping[str, Any], needs: Sequence[Need]) -> list[Need]:
    """The needs, which these settings decide too."""
    return [need._replace(settings={**settings, **need.settings}) for need in needs]


def _between(least: Sequence[Need], likely: Sequence[Need]) -> list[Need]:
    """What the first needs take at least, and what the others take likely."""
    return [a._replace(likely=b.likely) for a, b in zip(least, likely, strict=True)]
