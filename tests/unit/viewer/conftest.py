"""One viewer for all tests of the server, on one small training."""

from __future__ import annotations

import pytest
from tests.support.viewer import training, viewing


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("viewer") / "trace.json"
    path.write_bytes(training().json())
    return path


@pytest.fixture(scope="session")
def viewer(trace_file):
    with viewing([trace_file]) as client:
        yield client
