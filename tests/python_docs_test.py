"""The page on Python and the tutorial run as they stand, from their first block to the last."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import transformer_jax as tj
from tests.defaults import SMALL
from tests.docs_test import blocks
from tests.processes import printed

DOCS = Path(__file__).parents[1] / "docs"
# Of the page's run, which has been trained before.
QUICK = SMALL | {
    "data.max_source_length": 24,
    "data.max_target_length": 24,
    "train.steps": 2,
    "train.evaluate_every": 2,
    "checkpoint.every": 2,
    "decode.method": "greedy",
    "decode.extra_length": 1,
}

pytestmark = pytest.mark.long


def run(folder: Path, texts: list[str], end: str) -> list[Any]:
    """What `end` is after the texts, in a process that optimises what it compiles."""
    # Programs without run several times as long.
    plain = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "MPLBACKEND": "agg"}
    script = "\n".join([*texts, f"import json\nprint('\\n' + json.dumps({end}))"])
    environment = os.environ | plain | {"HOME": str(folder)}
    text = printed(sys.executable, "-c", script, cwd=folder, env=environment)
    return json.loads(text.splitlines()[-1])


def test_the_page_runs_as_it_stands(tmp_path):
    config = tj.load_config(
        "configs/quickstart.py", **QUICK, **{"data.cache_dir": str(tmp_path / "cache")}
    )
    tj.train(config, tmp_path / "runs/quickstart")
    texts = [text for language, text in blocks(DOCS / "python.md") if language == "python"]
    end = "[int(trainer.state.step), bool(curve), sorted(row['run'] for row in results)]"
    assert run(tmp_path, texts, end) == [20, True, ["admin", "own_loop", "quickstart"]]


def test_the_tutorial_runs_as_it_stands(tmp_path):
    cells = json.loads((DOCS / "tutorial.ipynb").read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    # What its last lines say: Pre-LN is ahead either way, and Post-LN gains from warm-up.
    first, *_, last = run(tmp_path, texts, "sorted(loss, key=loss.get)")
    assert first.startswith("pre_ln") and last == "post_ln, warm-up 0"
    assert (tmp_path / "tutorial/answer.png").stat().st_size > 0
