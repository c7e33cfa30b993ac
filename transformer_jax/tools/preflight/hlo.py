"""Reads what XLA compiled: which collectives run, how often, and what moves through memory.

XLA's own cost analysis counts the body of a loop once, and a scan over layers is a loop. Here each
instruction counts as often as it runs.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

_KINDS = (
    "all-gather all-reduce reduce-scatter all-to-all collective-permute ragged-all-to-all "
    "collective-broadcast"
).split()
# These move nothing themselves: they name things, or call what moves them.
_FREE = (
    "parameter constant tuple get-tuple-element bitcast while conditional call after-all "
    "partition-id replica-id iota opt-barrier"
).split()

# Where the name of a file begins that everybody knows
_INSTALLED = re.compile(r"^.*(?:/transformer_jax/|/site-packages/)")

# An array's dtype, sizes and layout
_ARRAY = r"[a-z]\w*\[[\d,]*\](?:\{[^}]*\})?"
# An axis of a mesh, or a part of one
_PART = r"'([^']+)'(?::\((\d+)\)(\d+))?"


class Collective(NamedTuple):
    """One kind of exchange over one set of mesh axes, summed over a step.

    group: devices that exchange with each other; across: how many slices they belong to. calls: in
    one step. payload: bytes of one device's operands or results, whichever are more.
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    across: int
    calls: int
    payload: float

    def sent(self) -> tuple[float, float]:
        """Bytes that a device sends within its slice and to other slices, in rings.

        Slices exchange what is left once each has done its part on its own devices; an all-to-all,
        whose parts all differ, goes to each device as it is.
        """
        inner = self.group // self.across
        if "all-to-all" in self.kind:
            part = self.payload / self.group
            return part * (inner - 1), part * (self.group - inner)
        if self.across == 1:
            return _sent(self.kind, self.payload, inner), 0.0
        between = _sent(self.kind, self.payload / inner, self.across)
        return _sent(self.kind, self.payload, inner), between


def _sent(kind: str, payload: float, group: int) -> float:
    if kind == "collective-permute":
        return payload if group > 1 else 0.0
    return (2 if kind == "all-reduce" else 1) * payload * (group - 1) / group


class Instruction(NamedTuple):
    name: str
    type: str
    op: str
    operands: tuple[str, ...]
    rest: str  # attributes


class Module(NamedTuple):
    """The computations of a compiled module by name, and how often each runs in one call of it.

    A loop counts once where XLA does not know how often it runs, as in decoding. roots: the
    instruction of each computation that gives its result. sources: the line of Python of each
    stack frame.
    """

    computations: dict[str, list[Instruction]]
    roots: dict[str, Instruction]
    runs: dict[str, int]
    sources: dict[str, str]


def parse(text: str) -> Module:
    """Reads what `as_text()` of a compiled function gives."""
    computations: dict[str, list[Instruction]] = {}
    roots: dict[str, Instruction] = {}
    entry = name = ""
    for line in text.splitlines():
        if header := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = header[2]
            computations[name] = []
            entry = name if header[1] else entry
        # A type may contain blanks, so it ends where a word follows with a parenthesis after it.
        elif match := re.match(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(", line):
            inside, _, rest = line[match.end() :].partition(")")
            operands = tuple(re.findall(r"%([\w.\-]+)", inside))
            if match[4] in ("constant", "parameter"):
                rest = inside
            instruction = Instruction(match[2], match[3], match[4], operands, rest)
            computations[name].append(instruction)
            if match[1]:
                roots[name] = instruction
        # The attributes of a Pallas kernel go on after its own, which take lines of their own.
        elif line.startswith("}}, ") and computations.get(name):
            last = computations[name][-1]
            computations[name][-1] = last._replace(rest=last.rest + line)
    runs: dict[str, int] = {}
    for name, times in _visits(computations, entry, 1):
        runs[name] = runs.get(name, 0) + times
    return Module(computations, roots, runs, _sources(text))


def _sources(text: str) -> dict[str, str]:
    """The line of each stack frame, from the tables in front of the computations.

    That is the innermost one that is not JAX's, as "models/layers/norm.py:54".
    """
    files = dict(re.findall(r'^(\d+) "(.*)"$', text.partition("\nFunctionNames")[0], re.MULTILINE))
    places = {
        place: f"{files[file]}:{line}"
        for place, file, line in re.findall(
            r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", text, re.MULTILINE
        )
    }
    frames = re.findall(
        r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", text, re.MULTILINE
    )
    # A frame's number is greater than its parent's; libtpu 0.0.42 writes the parent's plus one.
    shift = any(frame == parent for frame, _, parent in frames)
    lines: dict[int, str] = {}
    for frame, place, parent in frames:
        line = places[place]
        if "/jax/" in line:
            line = lines.get(int(parent or 0) - shift, line)
        lines[int(frame)] = line
    return {str(frame): re.split(_INSTALLED, line)[-1] for frame, line in lines.items()}


def _visits(computations: dict, name: str, times: int) -> Iterator[tuple[str, int]]:
    yield name, times
    for instruction in computations[name]:
        repeats = _trips(computations, instruction) if instruction.op == "while" else 1
        for called in _called(instruction):
            yield from _visits(computations, called, times * repeats)


def _called(instruction: Instruction) -> list[str]:
    """The computations that an instruction runs, except conditions and the additions of sums."""
    parts = re.findall(
        r"\b(?:body|calls|called_computations|\w+_computations?)=([^=]*)", instruction.rest
    )
    if instruction.op in ("call", "async-start"):
        parts += re.findall(r"\bto_apply=([^=]*)", instruction.rest)
    return [name for part in parts for name in re.findall(r"%([\w.\-]+)", part)]


def _trips(computations: dict, loop: Instruction) -> int:
    """How often a loop runs: as XLA states, or by its counter's bound; 1 where both are unknown."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest):
        return int(known[1])
    condition = re.search(r"\bcondition=%([\w.\-]+)", loop.rest)
    instructions = computations[condition[1]] if condition else []
    compared = [i for i in instructions if i.op == "compare" and "direction=LT" in i.rest]
    bounds = {i.name: i.rest for i in instructions if i.op == "constant" and i.rest.isdecimal()}
    counts = [int(bounds[name]) for i in compared for name in i.operands if name in bounds]
    return counts[0] if len(instructions) <= 8 and len(counts) == 1 else 1


def collectives(module: Module, mesh: dict[str, int], slices: Sequence[int]) -> list[Collective]:
    """What devices exchange in one call, most bytes first.

    Args:
      mesh: sizes of the axes, in order.
      slices: the slice of each device of the mesh.
    """
    # An exchange that overlaps with computation has parts, which share a channel and count once.
    exchanges: dict[tuple, tuple[int, float]] = {}
    for name, instructions in module.computations.items():
        for instruction in instructions:
            kind = instruction.op.removesuffix("-start")
            if kind not in _KINDS or not module.runs.get(name):
                continue
            # This is a TPU's name for a sum of which each device keeps a part.
            if name.startswith("all-reduce-scatter"):
                kind = "reduce-scatter"
            axes, group, across = _over(instruction.rest, mesh, slices)
            channel = re.search(r"channel_id=(\d+)", instruction.rest)
            key = (channel[1] if channel else (name, instruction.name), kind, axes, group, across)
            calls, payload = exchanges.get(key, (0, 0.0))
            largest = max(payload, _payload(module.computations[name], instruction, kind, group))
            exchanges[key] = max(calls, module.runs[name]), largest
    total: dict[tuple, Collective] = {}
    for (_, *key), (calls, payload) in exchanges.items():
        kind, axes, group, across = key
        sofar = total.get(tuple(key), Collective(kind, axes, group, across, 0, 0.0))
        payload = sofar.payload + calls * payload
        total[tuple(key)] = sofar._replace(calls=sofar.calls + calls, payload=payload)
    entries = (collective for collective in total.values() if collective.group > 1)
    return sorted(entries, key=lambda collective: -collective.payload)


def _payload(computation: list, instruction: Instruction, kind: str, group: int) -> float:
    """Bytes of the operands, or of the results if these are more."""
    types = {other.name: other.type for other in computation}
    operands = sum(bytes_of(types[name]) for name in instruction.operands if name in types)
    return operands * group if kind == "all-gather" else operands


def _over(
    rest: str, mesh: dict[str, int], slices: Sequence[int]
) -> tuple[tuple[str, ...], int, int]:
    """The axes along which members of a group differ, and how many members and slices it has."""
    groups = _groups(rest, math.prod(mesh.values()))
    differ = np.zeros(len(mesh), bool)
    for group in groups:
        places = np.array(np.unravel_index(group, tuple(mesh.values())))
        differ |= np.any(places != places[:, :1], axis=1)
    axes = tuple(axis for axis, part in zip(mesh, differ, strict=True) if part)
    across = max(len({slices[device] for device in group}) for group in groups)
    return axes, max(len(group) for group in groups), across


def _groups(rest: str, devices: int) -> list[list[int]]:
    """Devices that exchange with each other, which XLA writes as lists, ranges or mesh axes."""
    if pairs := re.search(r"source_target_pairs=\{(\{.*?\})\}", rest):
        return _lists(pairs[1])
    if ranges := re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", rest):
        return _range(ranges[2]).reshape(_numbers(ranges[1])).tolist()
    if axes := re.search(
        r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.+?)\))? \{(.*?)\}", rest
    ):
        return _along(axes[1], axes[2] or "", axes[3]).tolist()
    if lists := re.search(r"replica_groups=\{(\{.*?\})\}", rest):
        return _lists(lists[1])
    if "replica_groups={}" in rest or "replica_groups" not in rest:
        return [list(range(devices))]
    raise ValueError(
        "XLA writes groups of devices in a way that is not known here, so preflight/hlo.py needs "
        f"another case: {rest[:300]}"
    )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _lists(text: str) -> list[list[int]]:
    return [_numbers(group) for group in re.findall(r"\{([\d,]+)\}", text)]


def _range(text: str) -> np.ndarray:
    """ "[2,4]T(1,0)": the numbers from 0, shaped and transposed."""
    shape, *order = (_numbers(part) for part in re.findall(r"[\[(]([\d,]+)[\])]", text))
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return numbers.transpose(*order) if order else numbers


def _along(mesh: str, ids: str, used: str) -> np.ndarray:
    """The groups along axes of a mesh, "'a'=2,'b'=8" and "'a'"; or along parts of them.

    "'b':(2)4" is a part of size four between a part of two before it and the rest after it. ids:
    the devices of the mesh, as a range or a list, where they do not count from 0.
    """
    parts = {axis: (before, size) for axis, before, size in re.findall(_PART, used)}
    shape, group = [], []
    for axis, size in re.findall(r"'([^']+)'=(\d+)", mesh):
        before, part = parts.get(axis, ("1", "1"))
        cut = int(before or 1), int(part or size)
        group += [len(shape) + 1]
        shape += [*cut, int(size) // math.prod(cut)]
    numbers = np.arange(math.prod(shape))
    if ids:
        numbers = np.ravel(_range(ids)) if ids.startswith("[") else np.array(_numbers(ids))
    others = [dimension for dimension in range(len(shape)) if dimension not in group]
    members = math.prod(shape[dimension] for dimension in group)
    return numbers.reshape(shape).transpose(*others, *group).reshape(-1, members)


def moving(module: Module) -> Iterator[tuple[Instruction, int, float]]:
    """Yields each instruction that moves memory, how often it runs, and about its bytes each time.

    It reads its operands and writes its results once. What stays in a TPU's own fast memory does
    not count, and where an array is sliced or updated in place, only that part does.
    """
    fused = _fused(module)
    for name, instructions in module.computations.items():
        runs = module.runs.get(name, 0)
        if name in fused or not runs:
            continue
        types = {instruction.name: instruction.type for instruction in instructions}
        for instruction in instructions:
            if moved := _moved(module, types, instruction):
                yield instruction, runs, moved


def steps(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    """Yields an instruction and, where it is a fusion, all that is fused in it."""
    yield instruction
    if instruction.op in ("fusion", "async-start"):
        for name in _called(instruction):
            for step in module.computations[name]:
                yield from steps(module, step)


def _fused(module: Module) -> set[str]:
    """Computations whose intermediate values stay in registers."""
    return {
        name
        for instructions in module.computations.values()
        for instruction in instructions
        if instruction.op in ("fusion", "async-start")
        for name in _called(instruction)
    }


def _moved(module: Module, types: dict[str, str], instruction: Instruction) -> float:
    op = instruction.op
    if op in _FREE or op.endswith("-done") or "AllocateBuffer" in instruction.rest:
        return 0.0
    operands = [
        bytes_of(types[name], memory=True) for name in instruction.operands if name in types
    ]
    result = bytes_of(instruction.type, memory=True)
    if op == "copy-start":  # its result contains the source too
        return result
    if op == "slice-start":
        return bytes_of(instruction.type) - bytes_of(types[instruction.operands[0]])
    if op.endswith("-start"):
        return result
    if op in ("dynamic-slice", "slice", "gather"):
        return result + min(operands[0], bytes_of(instruction.type))
    if op == "dynamic-update-slice":
        return operands[1] + min(result, bytes_of(types[instruction.operands[1]]))
    if op != "fusion":
        return result + sum(operands)
    (name,) = _called(instruction)
    read = (min(size, _read(module, name, i)) for i, size in enumerate(operands))
    leaves = [bytes_of(leaf, memory=True) for leaf in re.findall(_ARRAY, instruction.type)]
    written = _written(module, name)
    # Where the results cannot be told apart, they count whole.
    whole = len(written) != len(leaves)
    return sum(read) + (result if whole else sum(map(min, leaves, written)))


def _read(module: Module, name: str, index: int) -> float:
    """Bytes of a fusion's parameter that it needs: all, or what it slices or passes on."""
    inside = module.computations[name]
    (parameter,) = (i for i in inside if i.op == "parameter" and int(i.rest) == index)
    return _used(module, inside, parameter.name, bytes_of(parameter.type))


def _used(module: Module, inside: list[Instruction], name: str, whole: float) -> float:
    needed = 0.0
    for user in inside:
        for position, operand in enumerate(user.operands):
            if operand != name or user.op == "tuple":
                continue
            if user.op in ("dynamic-slice", "slice", "gather") and position == 0:
                needed += bytes_of(user.type)
            elif user.op == "bitcast" or _lays_out(module, inside, user):
                needed += _used(module, inside, user.name, whole)
            elif user.op == "fusion":
                needed += _read(module, _called(user)[0], position)
            elif user.op != "dynamic-update-slice" or position != 0:  # written in place
                return whole
    return min(needed, whole)


def _lays_out(module: Module, inside: list[Instruction], instruction: Instruction) -> bool:
    """Whether an instruction only changes the layout of a value, as TPUs do before slicing it."""
    steps = [instruction]
    if instruction.op == "fusion":
        steps = module.computations[_called(instruction)[0]]
    copies = all(step.op in ("copy", "parameter") for step in steps)
    return copies and any(instruction.name in other.operands for other in inside)


def _written(module: Module, name: str) -> list[float]:
    """Bytes that a fusion writes for each of its results: all, or what it updates in place."""
    inside = module.computations[name]
    by_name = {instruction.name: instruction for instruction in inside}

    def of(instruction: Instruction) -> list[float]:
        match instruction.op:
            case "tuple":
                return [part for operand in instruction.operands for part in of(by_name[operand])]
            case "bitcast":
                return of(by_name[instruction.operands[0]])
            case "dynamic-update-slice":
                return [bytes_of(by_name[instruction.operands[1]].type)]
            case "fusion":
                return _written(module, _called(instruction)[0])
            case "get-tuple-element":
                index = re.search(r"\bindex=(\d+)", instruction.rest)
                return [of(by_name[instruction.operands[0]])[int(index[1])]] if index else []
            case "parameter":
                return [0.0]
        return [bytes_of(instruction.type)]

    return of(module.roots[name])


def bytes_of(type_: str, *, memory: bool = False) -> float:
    """Size of all arrays of a type; with `memory` without those in a TPU's fast memory, "S(1)"."""
    total = 0.0
    for dtype, sizes, layout in re.findall(r"([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?", type_):
        bits = re.search(r"\d+", dtype)
        if dtype == "token" or (memory and re.search(r"S\([1-9]", layout)):
            continue
        count = math.prod(int(size) for size in sizes.split(",") if size)
        total += count * (int(bits[0]) if bits else 8) / 8
    return total
