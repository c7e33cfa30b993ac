"""The pages and the headers of configs: every command can be given, every link and path exists."""

import ast
import contextlib
import functools
import importlib
import io
import itertools
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from absl import flags

import transformer_jax.main  # noqa: F401 (it defines the flags)
from experiments.harness.sweep import part
from tests.processes import printed
from tests.tracked import CONFIGS, ROOT, tracked
from transformer_jax.commands import COMMANDS
from transformer_jax.config import effects
from transformer_jax.config.load import flatten, load, split
from transformer_jax.configs import default

DOCS = tracked("docs/*.md")
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *DOCS]
REPORTS = tracked("experiments/**/README.md")
SHELL = ("sh", "bash", "console")
# Programs whose arguments are nobody's business here.
OTHER_PROGRAMS = ("echo", "export")
# What is run: by `launch_help`, by `help_of`, and where generated parts are compared.
RUN = (
    ["./launch.sh", "--help"],
    ["./launch.sh", "tpu", "--help"],
    [".venv/bin/python", "docs/tables.py", "--check"],
)


def blocks(path: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: their languages and texts."""
    text = path.read_text("utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell_text(path: Path) -> str:
    """What a reader may paste into a shell: shell blocks, and the indented lines of a header."""
    if path.suffix == ".md":
        fenced = [text for language, text in blocks(path) if language in SHELL]
        indented = re.findall(r"^ {4}\./launch\.sh .*\n", path.read_text("utf-8"), re.MULTILINE)
        return "".join([*fenced, *indented])
    header = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return "\n".join(line for line in header.splitlines() if line.startswith("    "))


def commands_in(text: str) -> Iterator[list[str]]:
    """The words of each command, without comments and assignments; a pipe has several."""
    for line in text.replace("\\\n", " ").replace("|\n", "| ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        for is_end, words in itertools.groupby(lexer, lambda word: word in ("|", "&&", ";")):
            command = list(itertools.dropwhile(re.compile(r"[A-Z_]+=").match, words))
            if not is_end and command:
                yield command


@functools.cache
def launch_help() -> str:
    return printed("./launch.sh", "--help", cwd=ROOT)


@functools.cache
def help_of(module: str) -> str:
    """What a command of Python prints with --help."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit):
        importlib.import_module(module).main(["--help"])
    return output.getvalue()


@functools.cache
def launch_commands() -> tuple[str, ...]:
    return tuple(re.findall(r"^  ([a-z_]+) ", launch_help(), re.MULTILINE))


def values_of(arguments: Sequence[str]) -> dict[str, str]:
    """What each --flag is set to."""
    pairs = (word.removeprefix("--").partition("=") for word in arguments)
    return {name: value for name, _, value in pairs}


def check_known(arguments: Sequence[str], text: str) -> None:
    """Every --flag is one that a help text names."""
    for flag in (word.partition("=")[0] for word in arguments if word.startswith("--")):
        assert re.search(rf"(?<![\w-]){flag}\b", text), f"{flag} is not a flag there"


def check_main(mode: str, arguments: Sequence[str], own_configs: dict[str, Path]) -> None:
    """A command of transformer_jax.main: its flags, its config, and the changes to it."""
    others, changes = split(arguments)
    values = values_of(others)
    if COMMANDS[mode].words:
        assert not changes and not [word for word in others if word.startswith("-")]
        return
    known = {"config", "workdir", "device", *COMMANDS[mode].flags}
    assert values.keys() <= known, f"{mode} does not read {values.keys() - known}"
    for name in values.keys() & flags.FLAGS:
        flags.FLAGS[name].parser.parse(values[name] or "true")
    config = values.get("config", "configs/default.py")
    file, colon, argument = config.partition(":")
    loaded = load(f"{own_configs.get(file, ROOT / file)}{colon}{argument}", changes)
    if "config" in values:
        effects.check(loaded, changes)


def check_experiment(arguments: Sequence[str]) -> None:
    name, *others = arguments
    check_known(others, help_of("experiments.run"))
    if name == "NAME":  # the reader's own
        return
    folder = ROOT / "experiments" / name
    assert (folder / "sweep.py").exists(), f"there is no experiment {name}"
    values = values_of(others)
    if "sweep" in values:
        assert values["sweep"] in part(folder, "sweep").SWEEPS
    if values.get("executor") == "tpu":
        check_known(shlex.split(values["options"]), help_of("transformer_jax.tools.cloud.launcher"))


def check_launch(arguments: Sequence[str], own_configs: dict[str, Path]) -> None:
    if not arguments or arguments == ["--help"]:
        return
    command, *others = arguments
    assert command in launch_commands(), f"launch.sh has no command {command}"
    if command == "tpu":
        inner = [word for word in others if word in launch_commands()]
        words = others[: others.index(inner[0])] if inner else others
        check_known(words, help_of("transformer_jax.tools.cloud.launcher"))
        if inner:
            check_launch(others[len(words) :], own_configs)
    elif command == "experiment":  # launch.sh itself reads --device
        check_experiment([word for word in others if not word.startswith("--device=")])
    elif command in ("compare", "report"):
        check_known(others, help_of(f"transformer_jax.tools.reports.{command}"))
        named = ("--experiment=",) if command == "report" else ()
        assert any(word[0] != "-" or word.startswith(named) for word in others), "which runs?"
    elif command in ("test", "setup"):
        check_known(others, launch_help())
        assert all((ROOT / word).exists() for word in others if not word.startswith("-"))
    elif command != "tensorboard":  # whose flags are not ours
        check_main(command, others, own_configs)


def check(words: list[str], own_configs: dict[str, Path]) -> None:
    """Raises where the command could not be given, as ValueError, AssertionError or the like."""
    program, *arguments = words
    if words in RUN or program in OTHER_PROGRAMS:
        return
    if program == "./launch.sh":
        check_launch(arguments, own_configs)
    elif arguments[:2] == ["-m", "experiments.run"]:
        check_experiment(arguments[2:])
    else:
        assert program in ("python", ".venv/bin/python"), f"what is {program}?"
        assert arguments[:2] == ["-m", "transformer_jax.main"], shlex.join(words)
        others = [word for word in arguments[2:] if not word.startswith("--mode=")]
        check_main(values_of(arguments[2:]).get("mode", "train"), others, own_configs)


def own_configs(page: Path, folder: Path) -> dict[str, Path]:
    """The configs that a page writes out, blocks that begin with their path, saved in a folder."""
    paths = {}
    for number, (language, text) in enumerate(blocks(page)):
        name = re.match(r"# (configs/\w+\.py)\n", text)
        if language == "python" and name:
            paths[name[1]] = folder / f"{number}.py"
            paths[name[1]].write_text(text, "utf-8")
    return paths


def by_path(paths: Sequence[Path]):
    names = [str(path.relative_to(ROOT)) for path in paths]
    return pytest.mark.parametrize("path", paths, ids=names)


@by_path([*PAGES, *REPORTS, *CONFIGS])
def test_every_command_can_be_given(path, tmp_path):
    configs = own_configs(path, tmp_path) if path.suffix == ".md" else {}
    for words in commands_in(shell_text(path)):
        try:
            check(words, configs)
        except (AssertionError, ValueError, OSError) as error:
            pytest.fail(f"{shlex.join(words)}\n{error}")


def test_commands_are_found():
    """So that the test above does not pass for want of commands."""
    commands = {path: list(commands_in(shell_text(path))) for path in (*PAGES, *REPORTS, *CONFIGS)}
    assert ["./launch.sh"] in commands[ROOT / "README.md"]
    assert [path.stem for path in CONFIGS if not commands[path]] == ["default"]  # which is no run
    assert [path for path in REPORTS if not commands[path]] == []


@by_path([*PAGES, *REPORTS])
def test_every_link_leads_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path)):
        if not target.startswith(("https://", "http://")):
            file, _, anchor = target.partition("#")
            page = (path.parent / file).resolve() if file else path
            assert page.exists(), f"{target}: there is no {page}"
            assert not anchor or anchor in anchors(page), f"{target}: no such heading"


def without_code(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_path([*PAGES, *REPORTS])
def test_every_path_of_the_repository_exists(path):
    """Those in backquotes; a * stands for anything, and a NAME in capitals for the reader's own."""
    spans = re.findall(r"`([^`\n]+)`", without_code(path))
    folders = r"(configs|transformer_jax|experiments|tests|docs)/[\w/.*-]*"
    named = [span for span in spans if re.fullmatch(folders, span) and span == span.lower()]
    assert not [name for name in named if not list(ROOT.glob(name.rstrip("/")))]


@by_path([*PAGES, *REPORTS])
def test_every_config_key_exists(path):
    """In backquotes, with or without its value; a * stands for the keys of a section."""
    keys = flatten(default.get_config())
    sections = "|".join({key.partition(".")[0] for key in keys if "." in key})
    named = re.findall(rf"`(?:--config\.)?((?:{sections})\.[a-z_.0-9]*\*?)", without_code(path))
    named = [name for name in named if not name.endswith((".py", ".md", ".svg", ".en", ".txt"))]
    unknown = [name for name in named if not any(key.startswith(name.rstrip("*")) for key in keys)]
    assert not unknown


def test_the_readme_is_short_and_lists_all_pages():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 200
    assert [path for path in DOCS if f"](docs/{path.name})" not in readme] == []


def test_every_message_of_troubleshooting_is_one_of_the_program():
    """In the words of a constant or an f-string, around the values that ... stands for."""
    files = (ROOT / "transformer_jax").rglob("*.py")
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
    program = "\0".join([*texts, (ROOT / "launch.sh").read_text("utf-8")])
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    parts = [part.strip() for message in messages for part in message.split("...")]
    assert len(messages) > 40 and [part for part in parts if part not in program] == []


def test_every_dependency_has_a_licence_and_a_purpose():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w-]+) \| [\w., -]+ \| .+ \|$", page, re.MULTILINE)
    assert {re.sub(r"[^\w-].*", "", line) for line in lines} == set(rows) - {"Package"}


@pytest.fixture(scope="module")
def tables():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "tables.py")))


def test_generated_parts_are_those_of_the_code():
    """In a process of its own: rows that another test has brought would be in its tables."""
    printed(sys.executable, "docs/tables.py", "--check", cwd=ROOT)


def test_every_part_stands_on_some_page(tables):
    texts = [page.read_text("utf-8") for page in tables.pages()]
    for name in tables.PARTS:
        part = (f"<!-- generated: {name} -->", f"<!-- end: {name} -->")
        assert [text.count(part[0]) for text in texts if part[1] in text] == [1], name


def test_claims_are_read_from_the_conclusions_and_no_verdict_is_made_up(tables):
    readme = (
        "## Conclusion\n\n| Claim | Source | Verdict | Size |\n|---|---|---|---|\n{}\n\n- Text."
    )
    claims = tables.claims(readme.format("| So it is | Noether 1918 | held in part | 2 times |"))
    assert claims == [("So it is", "Noether 1918", "held in part", "2 times")]
    with pytest.raises(ValueError, match="perhaps"):
        tables.claims(readme.format("| So it is | Noether 1918 | perhaps | 2 times |"))
    with pytest.raises(ValueError, match="expected a table"):
        tables.claims("## Conclusion\n\nSo it is.\n")
    assert tables.claims("## Conclusion\n\nNone yet.\n\n## What it does not show\n") == []


def test_every_experiment_says_what_became_of_its_claims(tables):
    table = tables.claims_table()
    for path in REPORTS:
        text = path.read_text("utf-8")
        if (path.parent / "report.py").exists() and "\nNot run yet.\n" not in text:
            assert tables.claims(text), path
            assert f"[{path.parent.name}]" in table
