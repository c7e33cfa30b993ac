"""Writes the tables of the pages from the code, between `<!-- generated: NAME -->` and its end.

python docs/tables.py            rewrites them
python docs/tables.py --check    only compares: the exit status is 1 if a page is out of date
"""

import argparse
import ast
import importlib
import inspect
import json
import re
import runpy
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import transformer_jax as tj
from transformer_jax.config import load as overrides
from transformer_jax.config.kinds import CHOICES
from transformer_jax.configs import default
from transformer_jax.data.read import sources
from transformer_jax.inspection import measures
from transformer_jax.models.recurrent import config as recurrent
from transformer_jax.models.transformer import draws, parameterizations, schemes
from transformer_jax.tasks import TASKS
from transformer_jax.tools.show import meanings as comments

ROOT = Path(__file__).resolve().parents[1]
VERDICTS = ("held", "held in part", "not seen", "undecided", "contradicted")
# In the order of the page, as a folder's SUBJECT has them.
SUBJECTS = "norms initialisation rates optimizers attention data models tools".split()
_CLAIM = ("Claim", "Source", "Verdict", "Size")
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = argparse.ArgumentParser(description="Writes the tables of the pages from the code.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args(argv).check
    outdated = []
    for page in pages():
        text = page.read_text("utf-8")
        current = generate(text)
        if text != current:
            outdated.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(current, "utf-8")
    if outdated:
        verb = "out of date, run `python docs/tables.py`" if check else "rewritten"
        print(f"{verb}: {', '.join(outdated)}")
    return 1 if outdated and check else 0


def pages() -> list[Path]:
    """The pages that may have generated parts; experiments write those of their own READMEs."""
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "experiments/README.md"]


def generate(text: str) -> str:
    """The text of a page with its generated parts made anew. KeyError: an unknown part."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n\n{part[3]}", text)


def schemes_table() -> str:
    """The residual schemes: the equation, what its constants start from, and the source."""
    notes = _row_comments(schemes, "SCHEMES")
    calls = {key: value for key, value, _ in _rows(schemes, "SCHEMES")}
    rows = []
    for name, row in schemes.SCHEMES.items():
        call = calls[name]
        assert isinstance(call, ast.Call)
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        labels = {
            "skip": "ω at first" if row.trained_skip else "s",
            "branch": "c at first" if row.trained_branch else "c",
            "read": "r",
            "pre_where": "sublayers with a Norm of x",
            "post_where": "sublayers with a Norm of the sum",
            "stream": "a at first",
            "input": "b at first",
            "gain": f"gain on {', '.join(map(_code, row.gained))}",
            "embedding_gain": "gain on the embedding",
        }
        constants = [
            f"{label}: {_formula(schemes, keywords[field])}"
            for field, label in labels.items()
            if field in keywords
        ]
        if row.profiled:
            constants.append("ω at first: profiled on the first batch")
        rows.append((_code(name), row.equation, "; ".join(constants), notes[name]))
    return _table(("Scheme", "Output", "Constants", "Source and notes"), rows)


def parameterizations_table() -> str:
    """The parameterisations: by role the powers of width and depth, and the source."""
    notes = _row_comments(parameterizations, "PARAMETERIZATIONS")
    roles = ("embedding", "hidden", "output", "vector")
    rows = []
    for name, row in parameterizations.PARAMETERIZATIONS.items():
        cells = [_growth(getattr(row, role)) if row else "" for role in roles]
        branch = _powers(N=row.branch) if row else ""
        rows.append((_code(name), *cells, branch, notes[name]))
    columns = ("Embedding", "Matrices of layers", "Matrix to logits", "Vectors of layers")
    return _table(("Row", *columns, "Branches", "Source and notes"), rows)


def draws_table() -> str:
    """The draws: by place their deviations, and the source."""
    notes = _row_comments(draws, "DRAWS")
    return _table(("Row", "Source and notes"), [(_code(name), notes[name]) for name in draws.DRAWS])


def _growth(growth: parameterizations.Growth) -> str:
    """Draw; multiplier; learning rate; epsilon, as powers of n and N."""
    pairs = (growth.draw, 0.0), (growth.multiplier, 0.0), growth.learning_rate, growth.epsilon
    return "; ".join(_powers(n=width, N=depth) for width, depth in pairs)


def _powers(**exponents: float) -> str:
    return " ".join(f"{name}^{power:g}" for name, power in exponents.items() if power) or "1"


def _formula(module: Any, node: ast.expr) -> str:
    """What a formula computes: a function's docstring, or a lambda's body, of a depth."""
    if isinstance(node, ast.Name):
        return comments.first_sentence(inspect.getdoc(getattr(module, node.id)) or "").rstrip(".")
    assert isinstance(node, ast.Lambda)
    return _code(ast.unparse(node.body).replace("depth.", ""))


def recurrences_table() -> str:
    """The recurrent models: their cell, what each is made for, and the source."""
    notes = _row_comments(recurrent, "RECURRENCES")
    rows = [
        (_code(name), _code(row.cell), ", ".join(map(_code, row.architectures)), notes[name])
        for name, row in recurrent.RECURRENCES.items()
    ]
    return _table(("`model.recurrence`", "Cell", "Architecture", "Source and notes"), rows)


def configuration_tables() -> str:
    """Every key of the config: its default and its comment, a table for each section."""
    meanings = comments.keys()
    sections: dict[str, list[tuple[str, str, str]]] = {}
    for key, value, meaning, choices in comments.settings():
        names = f"One of {', '.join(map(_code, choices))}." if choices else ""
        if key.endswith("coder_residual"):
            names = "Otherwise one of the same schemes."
        text = json.dumps(value) if isinstance(value, str) else repr(value)
        section = key.partition(".")[0] if "." in key else ""
        row = (_code(key), _code(text), " ".join(filter(None, [meaning, names])))
        sections.setdefault(section, []).append(row)
    texts = []
    for section, rows in sections.items():
        title = f"### {section}\n\n" if section else ""
        intro = f"{meanings[section]}\n\n" if meanings.get(section) else ""
        texts.append(f"{title}{intro}{_table(('Key', 'Default', 'Meaning'), rows)}")
    return "\n\n".join(texts)


def choices_table() -> str:
    """The settings that name one of several things."""
    defaults = overrides.flatten(default.get_config())
    rows = [
        (_code(key), ", ".join(map(_code, names)))
        for key, names in CHOICES.items()
        if not (key.endswith("coder_residual") or isinstance(defaults[key], tuple))
    ]
    return _table(("Key", "Values"), rows)


def tasks_table() -> str:
    """The tasks: what each learns, on which architectures, from which columns."""
    docs = {name: _doc(f"transformer_jax.tasks.{name}").partition(": ")[2] for name in TASKS}
    rows = [
        (
            _code(name),
            docs[name][:1].upper() + docs[name][1:],
            ", ".join(f"{_code(shape)}: {_code(head)}" for shape, head in task.heads.items()),
            ", ".join(map(_code, task.recipe.reads)),
            ", ".join(map(_code, [*task.recipe.columns, *task.recipe.random_columns])),
        )
        for name, task in TASKS.items()
    ]
    columns = ("Task", "The model learns", "Architecture and head", "Reads", "A batch holds")
    return _table(columns, rows)


def sources_table() -> str:
    """The sources: what each is, and the tasks that find their columns in it."""
    notes = _row_comments(sources, "SOURCES")
    rows = [
        (
            _code(name),
            notes[name],
            ", ".join(_code(task) for task in TASKS if TASKS[task].recipe.reads in yielded),
        )
        for name, yielded in sources.SOURCES.items()
    ]
    return _table(("`data.source`", "Examples", "Tasks"), rows)


def probes_table() -> str:
    """What can be measured inside a model in training, and what of it is a diagnostic."""
    notes = _row_comments(measures, "DIAGNOSTICS") | _row_comments(measures, "PROBES")
    rows = [
        (_code(name), notes[name], "yes" if name in measures.DIAGNOSTICS else "")
        for name in measures.PROBES
    ]
    return _table(("Name", "Meaning", "One of the diagnostics"), rows)


def experiments_table() -> str:
    """The experiments: question and sweeps."""
    rows = []
    for folder in _experiments():
        question = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
        tree = ast.parse((folder / "sweep.py").read_text("utf-8"))
        sweeps = [key for key, _, _ in _dict_rows(tree, "SWEEPS")]
        rows.append((_link(folder), question or "", ", ".join(map(_code, sweeps))))
    return _table(("Folder", "Question", "Sweeps"), rows)


def claims_table() -> str:
    """The claims that the experiments put to the test, from the conclusions of their READMEs: a
    table for each subject, which a folder's `__init__.py` names."""
    rows: dict[str, list[tuple[str, ...]]] = {subject: [] for subject in SUBJECTS}
    for folder in _experiments():
        subject = runpy.run_path(str(folder / "__init__.py"))["SUBJECT"]
        for claim in claims((folder / "README.md").read_text("utf-8")):
            rows[subject].append((*claim, _link(folder)))
    return "\n\n".join(
        f"### {subject.capitalize()}\n\n{_table((*_CLAIM, 'Folder'), entries)}"
        for subject, entries in rows.items()
        if entries
    )


def claims(readme: str) -> list[tuple[str, ...]]:
    """The rows of the table that the conclusion of an experiment's README begins with.

    There are none while the runs, and so the conclusion, are still to come. Raises ValueError where
    there is no table, or a verdict is none of VERDICTS.
    """
    conclusion = readme.split("## Conclusion\n", 1)[1].lstrip()
    if conclusion.startswith("None yet.\n"):
        return []
    lines = conclusion.split("\n\n")[0].splitlines()
    if lines[:1] != [f"| {' | '.join(_CLAIM)} |"]:
        raise ValueError(f"the conclusion begins with {lines[:1]}: expected a table of {_CLAIM}")
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]
    for row in rows:
        if len(row) != len(_CLAIM) or row[_CLAIM.index("Verdict")] not in VERDICTS:
            raise ValueError(f"{row} is no claim with one of the verdicts {', '.join(VERDICTS)}")
    return rows


def _experiments() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("experiments/*/report.py"))


def _link(folder: Path) -> str:
    return f"[{folder.name}]({folder.name}/README.md)"


def python_api() -> str:
    """The signature of each function of `import transformer_jax`, and what it does."""
    rows = []
    for name in sorted(tj.__all__, key=lambda name: (name[0].isupper(), name)):
        value = getattr(tj, name)
        members = {f"tj.{name}": value}
        if inspect.isclass(value) and value.__module__.startswith("transformer_jax"):
            parts = [pair for pair in vars(value).items() if pair[0][0] != "_"]
            methods = [pair for pair in parts if isinstance(pair[1], FunctionType | property)]
            members |= {f"{name}.{key}": part for key, part in methods}
        rows += [_member(*member) for member in members.items()]
    return _table(("Name", "What it is"), rows)


def _member(name: str, value: Any) -> tuple[str, str]:
    """A name with its parameters, and the first sentence of its docstring."""
    doc = inspect.getdoc(value) or ""
    if inspect.isfunction(value):
        parameters = inspect.signature(value).parameters.values()
        name += f"({', '.join(_parameter(one) for one in parameters if one.name != 'self')})"
    paragraph = " ".join(doc.partition("\n\n")[0].split())
    return f"`{name}`", paragraph


def _parameter(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def modules_tree() -> str:
    """The files of the library and the harness, each with the first sentence of its docstring."""
    lines: list[tuple[str, str]] = []

    def walk(folder: Path, indent: str) -> None:
        lines.append((f"{indent[2:]}{folder.name}/", comments.docstring(folder / "__init__.py")))
        for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
            if path.suffix == ".py" and path.name != "__init__.py":
                lines.append((f"{indent}{path.name}", comments.docstring(path)))
            elif (path / "__init__.py").exists() and not path.is_symlink():
                walk(path, indent + "  ")

    walk(ROOT / "transformer_jax", "  ")
    walk(ROOT / "experiments/harness", "  ")
    width = max(len(name) for name, _ in lines) + 2
    text = "\n".join(f"{name:{width}}{doc}".rstrip() for name, doc in lines)
    return f"```\n{text}\n```"


# What is added by a row of a table: its module and name, and what goes with the row.
_ADDITIONS = {
    "a residual scheme": (
        "models.transformer.schemes",
        "SCHEMES",
        "its formula in `tests/models/reference.py`, a name there in `FINAL_NORM` if a norm ends "
        "its stacks, and its colour in `transformer_jax/tools/reports/looks.py`",
    ),
    "a parameterisation": (
        "models.transformer.parameterizations",
        "PARAMETERIZATIONS",
        "its exponents in `tests/models/transformer/parameterizations_test.py`",
    ),
    "a draw": (
        "models.transformer.draws",
        "DRAWS",
        "its deviations in `tests/models/transformer/deviations_test.py`",
    ),
    "a recurrent model": (
        "models.recurrent.config",
        "RECURRENCES",
        "its steps in `tests/models/recurrent/reference.py`",
    ),
    "a recurrent cell": ("models.recurrent.cells", "CELLS", ""),
    "an attention kernel": (
        "models.layers.kernels",
        "KERNELS",
        "a file beside it with `attend`; rules of the mesh if it shards anew",
    ),
    "a kind of position": ("models.layers.positions", "POSITIONS", ""),
    "an input that is no token": (
        "models.inputs",
        "INPUTS",
        "the columns that it reads, its parameters, and which vectors belong together",
    ),
    "a stem of patches": ("models.layers.stems", "STEMS", ""),
    "a fit of images": ("data.read.images", "FITS", ""),
    "an augmentation": (
        "data.read.images",
        "AUGMENTATIONS",
        "what becomes of boxes, which a test looks for in the pixels",
    ),
    "a norm": ("models.layers.norm", "NORMS", ""),
    "an activation": ("models.layers.feed_forward", "ACTIVATIONS", ""),
    "an optimizer": ("training.update_rules", "OPTIMIZERS", ""),
    "a schedule": ("training.schedule", "SCHEDULES", ""),
    "a probe": (
        "inspection.measures",
        "PROBES",
        "or in `DIAGNOSTICS`, if it is to go with all of these",
    ),
    "a source of data": (
        "data.read.sources",
        "SOURCES",
        "a reader in `transformer_jax/data/read/`",
    ),
    "a tokenizer": ("data.prepare.tokenizer", "TOKENIZERS", ""),
    "a task": ("tasks", "TASKS", "its file beside it, and a head in `HEADS` if none fits"),
    "a family of models": (
        "models",
        "FAMILIES",
        "its folder; rules of the mesh for new logical axes",
    ),
    "a family of checkpoints": ("tools.convert", "FAMILIES", "its file beside it"),
    "a mode of the command line": (
        "commands",
        "COMMANDS",
        "its file beside it or in a tool, and its line in `launch.sh --help`",
    ),
}


def additions_table() -> str:
    """What is added by a row: the table, its file, and what else to write."""
    rows = []
    for thing, (module, name, then) in _ADDITIONS.items():
        path = f"transformer_jax/{module.replace('.', '/')}"
        path += "/__init__.py" if (ROOT / path).is_dir() else ".py"
        assert getattr(importlib.import_module(f"transformer_jax.{module}"), name)
        rows.append((thing, f"a row in `{name}`, `{path}`", then))
    return _table(("To add", "Write", "Then"), rows)


def imports_order() -> str:
    """Who may import whom, from the contracts of pyproject.toml."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    lines = []
    for contract in contracts["contracts"]:
        if contract["type"] == "layers" and contract["containers"][0].startswith("transformer_jax"):
            room = contract["containers"][0].partition(".")[2] or "transformer_jax"
            layers = [layer.replace(" | ", ", ") for layer in contract["layers"]]
            text = textwrap.fill(" > ".join(layers), 96 - 17, subsequent_indent=" " * 17)
            lines.append(f"{room:17}{text}")
    return "```\n" + "\n".join(lines) + "\n```"


PARTS = {
    "additions": additions_table,
    "imports": imports_order,
    "python_api": python_api,
    "schemes": schemes_table,
    "parameterizations": parameterizations_table,
    "draws": draws_table,
    "recurrences": recurrences_table,
    "configuration": configuration_tables,
    "choices": choices_table,
    "tasks": tasks_table,
    "sources": sources_table,
    "probes": probes_table,
    "experiments": experiments_table,
    "claims": claims_table,
    "modules": modules_tree,
}


def _rows(module: Any, name: str) -> Iterator[tuple[str, ast.expr, int]]:
    return _dict_rows(ast.parse(inspect.getsource(module)), name)


def _dict_rows(tree: ast.Module, name: str) -> Iterator[tuple[str, ast.expr, int]]:
    """Key, value and line of each row of a module's dict."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            table = node.value  # pyright: ignore[reportAttributeAccessIssue]
            assert isinstance(table, ast.Dict)
            for key, value in zip(table.keys, table.values, strict=True):
                if key is not None:  # where it is, all rows of another table
                    assert isinstance(key, ast.Constant)
                    yield str(key.value), value, key.lineno


def _row_comments(module: Any, name: str) -> dict[str, str]:
    """The comment above each row of a module's dict."""
    above, _ = comments.lines(inspect.getsource(module))
    return {key: comments.sentence(above(line)) for key, _, line in _rows(module, name)}


def _doc(module: str) -> str:
    return comments.first_sentence(inspect.getdoc(importlib.import_module(module)) or "")


def _code(text: str) -> str:
    return f"`{text}`"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, in which a bar inside a cell is escaped."""
    cells = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells
    )


if __name__ == "__main__":
    sys.exit(main())
