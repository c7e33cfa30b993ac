"""The stand-in cloud as a fixture."""

import pytest

from tests.tools.cloud.stand_in import Cloud


@pytest.fixture
def cloud(tmp_path):
    cloud = Cloud(tmp_path)
    yield cloud
    cloud.close()
