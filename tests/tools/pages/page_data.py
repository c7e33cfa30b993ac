"""What a page holds, read back."""

import base64
import json
import re
from typing import Any

import numpy as np


def data(page: str) -> Any:
    """What was embedded into a page."""
    match = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match[1])


def unreached(tab: Any) -> list[str]:
    """The controls of a page that no Tab comes to, or that do not show that they have the focus."""
    controls = "button, select, input, summary, [tabindex='0']"
    waiting = f"""Array.from(document.querySelectorAll("{controls}")).filter((each) =>
        each.checkVisibility() && !each.reached).map((each) => each.outerHTML.slice(0, 99))"""
    for _ in range(len(tab.evaluate(waiting)) + 20):
        tab.keyboard.press("Tab")
        style = "getComputedStyle(document.activeElement)"
        tab.evaluate(f"document.activeElement.reached = parseFloat({style}.outlineWidth) > 2")
    return tab.evaluate(waiting)


def array(encoded: dict[str, Any]) -> np.ndarray:
    """The array of `numbers`."""
    values = np.frombuffer(base64.b64decode(encoded["float32"]), "<f4")
    return values.reshape(encoded["shape"])
