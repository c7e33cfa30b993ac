"""Runs the tests of `eight_devices` in a process that sees eight CPU devices."""

from pathlib import Path

import pytest

from tests.processes import on_eight_devices


@pytest.mark.long
def test_on_eight_devices():
    on_eight_devices("-m", "pytest", str(Path(__file__).parent / "eight_devices"))
