"""Runs the tests of `eight_devices`, each file in a process that sees eight CPU devices."""

from pathlib import Path

import pytest

from tests.processes import on_eight_devices

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parent / "eight_devices"
FILES = sorted(path.name for path in FOLDER.glob("*_test.py"))


@pytest.mark.parametrize("name", FILES)
def test_on_eight_devices(name):
    on_eight_devices("-m", "pytest", str(FOLDER / name))
