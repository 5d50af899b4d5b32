"""One small training for all tests of exports."""

from __future__ import annotations

import pytest
from tests.support.viewer import training

from stepscope.trace.load import load


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "trace.json"
    path.write_bytes(training().json())
    return path


@pytest.fixture(scope="session")
def trace(trace_file):
    return load(trace_file)
