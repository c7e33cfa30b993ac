"""One set of small models for all tests of tasks in a process."""

import pytest

from tests.tasks import small


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """task -> (run, parameters) of an untrained model."""
    return small.make_models(tmp_path_factory.mktemp("tasks"))
