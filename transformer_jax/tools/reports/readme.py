"""The README of an experiment's folder as HTML, its figures inside."""

import base64
import html
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt


def readme(folder: Path) -> tuple[str, str]:
    """The title of an experiment, and its question, protocol, results and conclusion as HTML.

    Nothing that the README holds is read as HTML; what it links to, beside its figures, stays where
    it is.

    Raises:
      FileNotFoundError: there is no README, or a figure of it is missing.
    """

    def figure(renderer: Any, tokens: Any, at: int, options: Any, env: Any) -> str:
        file, title = folder / tokens[at].attrs["src"], html.escape(tokens[at].content)
        kind = "svg+xml" if file.suffix == ".svg" else file.suffix[1:]
        data = base64.b64encode(file.read_bytes()).decode()
        return f'<strong>{title}</strong><br>\n<img src="data:image/{kind};base64,{data}" alt="">'

    title, text = (folder / "README.md").read_text("utf-8").split("\n", 1)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.add_render_rule("image", figure)
    without_marks = re.sub("<!--.*?-->", "", text)  # of what is written anew
    return title.lstrip("# "), markdown.render(without_marks)
