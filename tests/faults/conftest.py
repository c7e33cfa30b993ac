"""What is compiled once for all runs of a file."""

from tests.whole.conftest import compiled_once  # noqa: F401
