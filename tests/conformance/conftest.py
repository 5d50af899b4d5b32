"""Reading traces of others leaves nothing beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_trace_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where stores of real traces are kept, for all modules."""
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module", autouse=True)
def stores_apart(real_trace_stores: Path) -> Iterator[None]:
    """Keep stores in a directory of the tests, while a module of this directory runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_STORES", "cache")
        patch.setenv("STEPSCOPE_CACHE", str(real_trace_stores))
        yield
