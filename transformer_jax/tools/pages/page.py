"""One HTML file from a title, data, and the style sheets and scripts that lie in this folder."""

import base64
import contextlib
import html
import importlib.resources
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]  # of a clone
# The policy forbids every request: what a page shows, it holds.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{styles}</style>
</head>
<body>
<header><h1>{title}</h1></header>
<main>{body}</main>
<noscript>This page needs JavaScript.</noscript>
<footer>{made}</footer>
<script type="application/json" id="data">{data}</script>
{scripts}
</body>
</html>
"""


def page(
    title: str,
    data: Any,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    body: str = "",
) -> str:
    """An HTML file that shows `data`; it needs no network and no other file.

    The scripts find <main>, and what `page.js` gives them, first of all the data.

    Args:
      data: what JSON holds; arrays as `numbers` gives them.
      styles, scripts: names of files in this folder, after the shared `page.css` and `page.js`.
      body: HTML that <main> begins with.

    Raises:
      ValueError: there is a NaN or an infinity in `data`, which JSON lacks.
    """
    sheets = "".join(file(name) for name in ("page.css", *styles))
    code = "\n".join(f"<script>\n{_script(file(name))}</script>" for name in ("page.js", *scripts))
    fields = {"title": html.escape(title), "styles": sheets, "scripts": code, "body": body}
    return _PAGE.format(**fields, data=embedded(data), made=html.escape(_origin()))


def check_name(output: str | Path) -> None:
    """Raises ValueError where a file for a page is called as if it were something else."""
    if Path(output).suffix not in ("", ".html", ".htm"):
        other = Path(output).with_suffix(".html")
        raise ValueError(f"--output={output}: what is written is HTML; name it {other}")


def _origin() -> str:
    """When, by which command and by which commit of this code the page was written."""
    program = Path(sys.argv[0]).stem
    words = [word.removeprefix("--mode=") for word in (program, *sys.argv[1:]) if word != "main"]
    command = ["git", f"--git-dir={ROOT}/.git", f"--work-tree={ROOT}", "describe"]
    command += ["--always", "--dirty", "--abbrev=9"]
    text = f"{time.strftime('%Y-%m-%d %H:%M')} by ./launch.sh {shlex.join(words)}"
    with contextlib.suppress(OSError, subprocess.CalledProcessError):  # no git, no clone
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        text += f", commit {process.stdout.strip()}"
    return text


def embedded(data: Any) -> str:
    """JSON that means the same inside of an HTML script element, whatever texts it holds.

    No "<" ends the element or begins a comment, and no line separator ends a line of a script.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def numbers(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON, its values in float32; `page.numbers` of page.js reads it."""
    values = np.ascontiguousarray(array, "<f4")
    return {"shape": list(values.shape), "float32": base64.b64encode(values.tobytes()).decode()}


def file(name: str) -> str:
    """The text of a file in this folder."""
    return (importlib.resources.files("transformer_jax.tools.pages") / name).read_text("utf-8")


def _script(code: str) -> str:
    """Code that neither ends nor nests a script element; JavaScript's strings mean the same."""
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", code, flags=re.IGNORECASE)
