"""What a page holds, read back."""

import base64
import json
import re
from typing import Any

import numpy as np


def data(page: str) -> Any:
    """What was embedded into a page."""
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def array(encoded: dict[str, Any]) -> np.ndarray:
    """The array of `numbers`."""
    values = np.frombuffer(base64.b64decode(encoded["float32"]), "<f4")
    return values.reshape(encoded["shape"])
