"""The core works where the tools are not, and the command line starts without what takes long."""

import sys

import pytest

from tests.processes import printed

# Imports every module below a package but the tools, as if these were not there, and the command
# line first; prints what that alone has loaded.
IMPORT_ALL = """
import importlib, pkgutil, sys
tools = "transformer_jax.tools"
sys.modules[tools] = None
import transformer_jax.main
print(*sys.modules)
import transformer_jax.config.build
assert "tensorflow_datasets" not in sys.modules  # which only its own sets need
modules = pkgutil.walk_packages(transformer_jax.__path__, "transformer_jax.")
names = [module.name for module in modules if module.name != tools]
for name in names:
    importlib.import_module(name)
assert len(names) > 100 and not [name for name in names if ".tools" in name]
"""
# What a mode may do without; each takes as long as much of the rest, most of them seconds.
LATE = set("matplotlib pyarrow scipy seqeval sklearn tensorboardX tensorflow_datasets".split())


@pytest.mark.long
def test_every_core_module_imports_without_the_tools():
    at_start = set(printed(sys.executable, "-P", "-c", IMPORT_ALL).split())
    assert "transformer_jax.commands" in at_start and not LATE & at_start
