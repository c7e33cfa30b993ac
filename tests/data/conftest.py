import pytest

from tests.data import datasets


@pytest.fixture
def folder(tmp_path):
    """The folder of `datasets.write`."""
    datasets.write(tmp_path)
    return tmp_path
