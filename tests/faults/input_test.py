"""Whatever is given runs or ends in one message: settings, files, command lines, lines to read.

What is read is compared with what was written: values of the config, numbers of examples and lines.
"""

import functools
import gzip
import importlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.data import datasets
from tests.data.read.open_file_test import packed
from tests.faults import drawn_settings
from tests.faults.drawn_command_lines import command_lines
from tests.faults.drawn_files import FORMATS
from tests.faults.endings import (
    MAIN,
    Ending,
    as_process,
    call,
    call_text,
    check_ending,
    in_process,
    short_of_compiling,
)
from tests.tasks import detection_test, image_classification_test
from tests.whole import command_line
from transformer_jax.config.load import flatten, load, to_json
from transformer_jax.configs import default
from transformer_jax.data.settings import SPLITS
from transformer_jax.models import FAMILIES
from transformer_jax.tasks import TASKS
from transformer_jax.tools.reports import figures

TRIALS = int(os.environ.get("FAULT_TRIALS", "200"))  # of the long form
CASES = 50  # of a trial
# Of twenty trials in a row, so many are of each kind.
KINDS = 10 * ["settings"] + 5 * ["files"] + 3 * ["command_lines"] + 2 * ["lines"]
TINY = command_line.CONFIG | {
    "data.workers": 1,
    "train.log_every": 1,
    "train.steps": 2,
    "evaluate.batch_size": 8,
    "data.row_source_length": 16,
    "data.row_target_length": 16,
    "data.streams": 2,
    **{f"data.{split}": (split,) for split in SPLITS},
}
RECURRENCES = {"encoder_decoder": "rnnsearch", "encoder_only": "lstm", "decoder_only": "lstm"}
IMAGES = {"image_classification": image_classification_test, "detection": detection_test}
# The configs of small models, of every task over tokens and family
BASES = [f"{task}.{family}" for task in datasets.TOKENIZED for family in FAMILIES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, compiled_once):
    """The current folder, with a config for each of BASES and the files that it reads."""
    folder = tmp_path_factory.mktemp("inputs")
    datasets.write(folder)
    (folder / "t").write_text("a b\n")
    (folder / "latin").write_bytes(b"a\n\xe4\n")
    (folder / "t.gz").write_bytes(gzip.compress(b"a\n"))
    (folder / "broken.py").write_text("def get_config(argument):\n    return nothing\n")
    for base in BASES:
        task, family = base.split(".")
        source, name = datasets.SOURCE_OF[TASKS[task].recipe.reads]
        architecture = next(iter(TASKS[task].heads))
        changes = {
            "task.name": task,
            "model.architecture": architecture,
            "model.family": family,
            "data.source": source,
            "data.dir": str(folder / name),
            "data.cache_dir": str(folder / "cache"),
        }
        if family == "recurrent":
            changes |= {"model.recurrence": RECURRENCES[architecture], "model.residual": "post_ln"}
        (folder / f"{base}.json").write_text(to_json(load(default.__file__, TINY | changes)))
    for task, module in IMAGES.items():
        changes = module.CHANGES | {"data.cache_dir": str(folder / "cache"), "train.steps": 2}
        (folder / f"{task}.transformer.json").write_text(to_json(load(default.__file__, changes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def trained(folder):
    """A function from one of BASES to a trained work directory."""

    @functools.cache
    def train(base):
        workdir = folder / "trained" / base
        assert call(f"--config={folder}/{base}.json", f"--workdir={workdir}").status in (0, 1)
        assert (workdir / "results.json").exists()
        return workdir

    return train


def new_folder(folder):
    """A folder that no case had before; those of earlier cases go."""
    for path in folder.glob("case*"):
        shutil.rmtree(path)
    return Path(tempfile.mkdtemp(prefix="case", dir=folder))


def flags(changes: dict[str, Any]) -> list[str]:
    return [f"--config.{key}={drawn_settings.text_of(value)}" for key, value in changes.items()]


# Settings


def settings_cases(number, small):
    """A base, a mode, and two keys with their values."""
    modes = ["train"] if small else ["train", "train", "train", "inspect", "prepare"]
    pairs = drawn_settings.pairs(small=small)
    return st.tuples(st.sampled_from(BASES), st.sampled_from(modes), pairs)


def check_settings(case, process, folder, trained):
    base, mode, changes = case
    workdir, runs = new_folder(folder), []
    changes = {
        key: value.replace("@", str(folder)) if isinstance(value, str) else value
        for key, value in changes.items()
    }
    arguments = [f"--mode={mode}", f"--config={folder}/{base}.json", f"--workdir={workdir}"]
    arguments += flags(changes)

    def see(run):
        runs.append(run)
        values = flatten(run.as_json)
        for key, value in changes.items():
            meant = drawn_settings.meant(key, value)
            same = values[key] == meant and isinstance(values[key], bool) == isinstance(meant, bool)
            assert meant is ... or same, f"{key} is {values[key]!r}{call_text(arguments)}"

    if process:
        ending = as_process(*arguments)
    else:
        with short_of_compiling(see):
            ending = call(*arguments)
        assert mode != "train" or bool(runs) == (ending.status == 0), call_text(arguments, ending)
    keys = [key for key in drawn_settings.KINDS if "." in key]  # it may name one that was there
    check_ending(ending, [*changes, *keys, "~"], call_text(arguments, ending), workdir)


# Files

BINARY = ["parquet", "folder"]  # sources whose files have no lines
DAMAGES = ["cut", "empty", "gone", "folder", "mac", "utf-16", "packed", "unpacked"]


def file_cases(number, small):
    """Rows of a format, and how the file of a split is dressed and damaged."""
    return st.sampled_from(FORMATS).flatmap(_cases_of)


def _cases_of(format):
    tasks = [name for name in TASKS if TASKS[name].recipe.reads == format.columns]
    if format.source in ("squad", "fairytaleqa"):  # which have several right targets
        tasks.remove("translation")
    now_and_then = st.integers(0, 7).map(lambda number: number == 7)
    good = st.lists(format.good, max_size=5)
    packing = "" if format.source in BINARY else "|.gz|.zst"
    first = format.good.filter(lambda row: row.examples == 1)
    strategies = {
        "format": st.just(format),
        "task": st.sampled_from(tasks),
        "first": first,
        "rows": st.tuples(good, st.just([]) | st.lists(format.bad, max_size=2))
        .map(lambda lists: sum(lists, []))
        .flatmap(st.permutations),
        "others": st.lists(first, min_size=4, max_size=4),  # those of the other splits
        "split": st.sampled_from(SPLITS),
        "mark": now_and_then,  # a byte-order mark
        "crlf": now_and_then,
        "last": st.booleans(),  # whether the last line has an end
        "packing": st.sampled_from(packing.split("|")),
        "damage": st.one_of(*4 * [st.just("")], st.sampled_from(DAMAGES)),
        # Other bytes, at a share of the file's length
        "noise": st.one_of(
            *4 * [st.just([])],
            st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3)), min_size=1, max_size=3),
        ),
        "skip_bad": st.booleans(),
        "tokenizer": st.sampled_from(["words", "bytes", "bpe"]),
        "modes": st.permutations(["inspect", "train"]),
    }
    return st.fixed_dictionaries(strategies).map(lambda case: SimpleNamespace(**case))


def written(case, data):
    """The bytes of a file, dressed and damaged as the case says."""
    if case.format.source not in BINARY:
        data = data if case.last else data.removesuffix(b"\n")
        end = b"\r" if case.damage == "mac" else b"\r\n" if case.crlf else b"\n"
        data = b"\xef\xbb\xbf" * case.mark + data.replace(b"\n", end)
    if case.damage == "utf-16":
        data = data.decode("utf-8", "replace").encode("utf-16")
    data = b"" if case.damage == "empty" else data
    data = packed(data, ".gz") if case.damage == "packed" else data
    data = data if case.damage == "unpacked" else packed(data, case.packing)
    data = data[: len(data) * 2 // 3] if case.damage == "cut" else data
    for share, other in case.noise:
        place = int(share * len(data))
        data = data[:place] + other + data[place + 1 :]
    return data


def damaged_file(case, folder):
    """Writes the files of all splits; returns that which is dressed and damaged."""
    for split in SPLITS:
        rows = [case.first, *case.rows] if split == case.split else case.others
        contents = case.format.write([row.written for row in rows])
        for name, data in zip(case.format.names, contents, strict=False):
            (folder / name.format(split)).parent.mkdir(parents=True, exist_ok=True)
            (folder / name.format(split)).write_bytes(data)
    plain = folder / case.format.names[0].format(case.split)
    data, path = written(case, plain.read_bytes()), plain.with_name(plain.name + case.packing)
    plain.unlink()
    if case.damage == "folder":
        path.mkdir()
    elif case.damage != "gone":
        path.write_bytes(data)
    return path


def expected_examples(case):
    """How many examples the files hold; None where they are refused, ... where nobody knows."""
    rows, binary = [case.first, *case.rows], case.format.source in BINARY
    lines = case.format.write([row.written for row in rows])[0].count(b"\n")
    cut = case.damage == "cut" and not case.packing and not binary
    if case.damage and case.format.source == "folder":  # other pictures remain
        return ...
    if case.noise or cut or (case.damage == "mac" and (binary or lines <= 1)):
        return ...
    if case.damage and (case.damage, case.packing) != ("unpacked", ""):
        return None
    if any(row.examples is None for row in rows):
        if not case.skip_bad or case.format.source == "squad":
            return None
    return sum(row.examples or 0 for row in rows)


def check_files(case, process, folder, trained):
    """Where training is refused so is inspecting, in the same words."""
    place = new_folder(folder)
    path = damaged_file(case, place)
    changes = case.format.settings | {"data.packing": False, "data.dir": str(place)}
    stem = re.sub(r"\.en$|/a/0$", "", case.format.names[0])
    changes |= {f"data.{name}": (stem.format(name),) for name in SPLITS}
    changes |= {"data.source": case.format.source, "data.skip_bad_lines": case.skip_bad}
    if case.task not in IMAGES:
        changes |= {"data.max_source_length": 160, "data.max_target_length": 160}
        changes["data.tokenizer.kind"] = case.tokenizer
    config = load(f"{folder}/{case.task}.transformer.json", changes)
    (place / "config.json").write_text(to_json(config))
    split = case.split
    names = [path.name, f"/{split}", f"in {split}", f"data.{split}", "data.train"]
    expected, endings = expected_examples(case), []
    for mode in ["train"] if process else case.modes:
        arguments = [f"--mode={mode}", f"--config={place}/config.json", f"--workdir={place}/run"]
        if process:
            ending = as_process(*arguments)
        else:
            with short_of_compiling():
                ending = call(*arguments)
        if absent := re.search(r"^Data: not at hand \((.*)\)$", ending.out, re.M | re.S):
            ending = Ending(1, "", f"error: {absent[1]}\n")
        check_ending(ending, names, call_text(arguments, ending), place / "run")
        endings.append(ending)
        if TASKS[case.task].recipe.labels and "nothing to learn" in ending.err:
            continue
        failed = "error: " in ending.err
        assert expected is ... or failed == (expected is None), call_text(arguments, ending)
        if not failed and expected is not ...:
            header, counts = re.findall("^(?:Data|examples) .*", ending.out, re.M)[:2]
            numbers = dict(zip(header.split(), counts.split(), strict=True))
            assert int(numbers[split]) == expected, call_text(arguments, ending)
    first, *others = (ending.err for ending in endings)
    assert all(other == first for other in others), f"{case.modes}: {[first, *others]}"


# Command lines


def check_command_lines(case, process, folder, trained):
    """What is refused leaves the work directory as it is."""
    workdir = trained(BASES[0])
    places = {"@/run.json": f"{folder}/{BASES[0]}.json", "@/run": workdir, "@": folder}
    arguments, before = case.arguments, command_line.files(workdir)
    for name, place in places.items():
        arguments = [text.replace(name, str(place)) for text in arguments]
    if process:
        ending = as_process(*arguments, module=case.module, stdin=b"a b\n")
    elif case.module == MAIN:
        with short_of_compiling():
            ending = call(*arguments, stdin=b"a b\n")
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(figures, "save", lambda figure, stem: None)
            main = importlib.import_module(case.module).main
            ending = in_process(lambda: main(arguments))
    parts = [part for text in arguments for part in text.lstrip("-").split("=", 1)]
    names = ["--", "required", "~NAME", *(f"flag '{text[2:]}'" for text in arguments)]
    names += [text for text in [*arguments, *parts] if len(text) > 1 or not text.isascii()]
    names += [str(folder), "unrecognized arguments: "] if "" in parts else []
    check_ending(ending, names, call_text(arguments, ending, case.module))
    assert ending.status == 0 or command_line.files(workdir) == before, call_text(arguments, ending)


# Lines to read


_ODD = "| |\t|a\tb|<unk>|<bos> a <eos>|< mask >|<pad>|[MASK]|\x1b[31m|\x7f|\ufeff|\u2028a|\x85|a\rb"
_ODD = [*_ODD.split("|"), "日本語 abc עברית", "é" * 3000, "a " * 3000, "train a b", "\0"]
_BYTES = [b"\xff", b"\xed\xa0\x80", b"a\xe4b", b"\xf0\x9f", b"a"]


def lines_cases(number, small):
    """Lines that a model reads, and how they come and go."""
    base = BASES[(number // 20 * 2 + number % 2) % len(BASES)]  # one in a trial: it is trained
    encodes = "encoder_only" in TASKS[base.split(".")[0]].heads
    words = st.text(st.characters(exclude_characters="\n"), max_size=30) | st.sampled_from(_ODD)
    lines = st.lists(words.map(lambda text: text.encode("utf-8", "surrogatepass")), max_size=6)
    changes = [{}, {"decode.method": "greedy"}]
    changes += [{"decode.method": "sample", "decode.num_samples": 2}]
    strategies = {
        "base": st.just(base),
        "mode": st.sampled_from(["generate"] + ["embed"] * encodes),
        "lines": st.one_of(*4 * [lines], st.lists(st.sampled_from(_BYTES), min_size=1, max_size=2)),
        "end": st.sampled_from([b"\n", b"\n", b"\r\n"]),
        "last": st.booleans(),  # whether the last line has an end
        "piped": st.booleans(),
        "changes": st.sampled_from(changes),
    }
    return st.fixed_dictionaries(strategies).map(lambda case: SimpleNamespace(**case))


def lines_of(data):
    """The lines of a file as a command reads them; None where it refuses them, ... unknown."""
    if b"\0" in data or data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    text = text.removeprefix("\ufeff")
    if "\r" in text.removesuffix("\n").removesuffix("\r") and "\n" not in text.removesuffix("\n"):
        return None
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def check_lines(case, process, folder, trained):
    task = TASKS[case.base.partition(".")[0]]
    workdir, path, out = trained(case.base), folder / "lines", folder / "results"
    data = case.end.join(case.lines) + case.end * (case.last and bool(case.lines))
    path.write_bytes(data)
    out.unlink(missing_ok=True)
    arguments = [f"--mode={case.mode}", f"--workdir={workdir}", f"--output={out}"]
    arguments += [] if case.piped else [f"--input={path}"]
    decodes = case.mode == "generate" and task.limit is not None
    arguments += flags(case.changes) if decodes else []
    stdin = data if case.piped else b""
    ending = as_process(*arguments, stdin=stdin) if process else call(*arguments, stdin=stdin)
    lines = lines_of(data)
    refused = lines is None or (case.mode == "generate" and task.results is None)
    text = call_text(arguments, ending)
    check_ending(ending, ["-" if case.piped else str(path), "--mode=embed"], text)
    assert (ending.status == 1) == refused, text
    if lines is None or refused:
        return
    written = out.read_text().split("\n")[:-1]
    copies = case.changes.get("decode.num_samples", 1) if decodes else 1
    assert len(written) == copies * len(lines), text
    for line, result in zip(lines, written[::copies], strict=True):
        if case.mode == "embed":
            assert np.all(np.isfinite([float(number) for number in result.split(" ")]))
        elif task.recipe.labels == "tags":
            assert len(result.split()) <= len(re.findall(r"[^ \t]+", line))
        elif task.recipe.labels:
            labels = json.loads((workdir / "labels.json").read_text())
            assert result in (labels if line.strip() else [""])


CASES_OF: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "settings": (settings_cases, check_settings),
    "files": (file_cases, check_files),
    "command_lines": (command_lines, check_command_lines),
    "lines": (lines_cases, check_lines),
}


def try_cases(kind, number, count, process, fixtures):
    """Draws so many cases by a number, and checks them in this process or as processes."""
    strategy, check = CASES_OF[kind]

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),  # pyright: ignore (it is an Enum)
    )
    @given(strategy(number, small=process))
    def cases(case):
        check(case, process, *fixtures)

    cases()


@pytest.mark.parametrize("kind", ["settings", "files"])
def test_a_few_that_need_no_trained_model(folder, trained, kind):
    try_cases(kind, 0, 3, False, (folder, trained))


@pytest.mark.faults
@pytest.mark.parametrize(("number", "kind"), [(n, KINDS[n % len(KINDS)]) for n in range(TRIALS)])
def test_whatever_is_given_runs_or_ends_in_one_message(folder, trained, number, kind):
    """By the function that the command line calls, and one or two of the cases as processes."""
    processes = 1 + number % 2
    try_cases(kind, number, CASES - processes, False, (folder, trained))
    try_cases(kind, number, processes, True, (folder, trained))
