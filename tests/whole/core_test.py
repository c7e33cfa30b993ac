"""The core works where the tools are not, and the command line starts without what takes long."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Imports every module below a package, the command line first; prints what that alone has loaded.
IMPORT_ALL = """
import importlib, pkgutil, sys, transformer_jax.main
print(*sys.modules)
import transformer_jax.config.build
assert "tensorflow_datasets" not in sys.modules  # which only its own sets need
modules = pkgutil.walk_packages(transformer_jax.__path__, "transformer_jax.")
names = [module.name for module in modules]
for name in names:
    importlib.import_module(name)
assert len(names) > 100 and not [name for name in names if ".tools" in name]
"""
# What a mode may do without; each takes as long as much of the rest, most of them seconds.
LATE = set("matplotlib pyarrow scipy seqeval sklearn tensorboardX tensorflow_datasets".split())


@pytest.mark.long
def test_every_core_module_imports_without_the_tools(tmp_path):
    ignored = shutil.ignore_patterns("tools")
    shutil.copytree(ROOT / "transformer_jax", tmp_path / "transformer_jax", ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-P", "-c", IMPORT_ALL],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    at_start = set(done.stdout.split())
    assert "transformer_jax.commands" in at_start and not LATE & at_start
