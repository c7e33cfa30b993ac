"""Small labelled images, as files in folders and otherwise."""

from pathlib import Path

import numpy as np
from PIL import Image

COUNTS = {"train": 24, "validation": 5, "test": 7}
LABELS = ("bright", "dark", "striped")


def pixels(split: str, number: int) -> np.ndarray:
    """The image of this number, grey, of 8 to 12 rows and 10 to 14 columns."""
    rng = np.random.default_rng([len(split), number])
    shape = (8 + 4 * (number % 2), 10 + 2 * (number % 3))
    level = {"bright": 200, "dark": 40, "striped": 120}[label(number)]
    image = rng.integers(level - 20, level + 20, shape)
    if label(number) == "striped":
        image[::2] -= 90
    return image.astype(np.uint8)


def label(number: int) -> str:
    return LABELS[number % len(LABELS)]


def write(folder: Path) -> Path:
    """SPLIT/LABEL/NUMBER.png of all splits."""
    for split, count in COUNTS.items():
        for number in range(count):
            path = folder / split / label(number) / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels(split, number)).save(path)
    return folder
