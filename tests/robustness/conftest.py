"""What the tests of a module start ends with it."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_server_is_left():
    """Other tests count the children of their process."""
    yield
    forked = sys.modules.get("tests.support.forked")
    if forked is not None:
        forked.end_server()
