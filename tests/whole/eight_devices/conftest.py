"""Tests that need eight devices: `eight_devices_test.py` runs them in processes that see eight."""

import os

if "device_count=8" not in os.environ.get("XLA_FLAGS", ""):
    collect_ignore_glob = ["*_test.py"]
