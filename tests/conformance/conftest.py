"""Reading traces of others leaves nothing beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def stores_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep stores in a directory of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_STORES", "cache")
        patch.setenv("STEPSCOPE_CACHE", str(tmp_path_factory.mktemp("stores")))
        yield
