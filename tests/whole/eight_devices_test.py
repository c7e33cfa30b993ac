"""Runs the tests of `eight_devices`, each file in a process that sees eight CPU devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
FILES = sorted(path.name for path in (HERE / "eight_devices").glob("*_test.py"))


@pytest.mark.parametrize("name", FILES)
def test_on_eight_devices(name):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"tests/whole/eight_devices/{name}"],
        cwd=HERE.parents[1],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
