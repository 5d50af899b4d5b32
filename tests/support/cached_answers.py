"""What is cached in stores: every trace gets one, what is in them, and which traces are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from stepscope.trace import load as loading
from stepscope.trace.store.cached_answers import ANSWERS


@contextmanager
def storing_everything(cache: Path) -> Iterator[None]:
    """Every trace gets a store, as only large ones do otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "STORE_ABOVE_BYTES", 0)
        patch.setenv("STEPSCOPE_CACHE", str(cache))
        yield


def cached_in(folder: Path) -> list[Path]:
    """The answers that are cached in the stores below a folder."""
    return sorted(folder.rglob(f"*.stepscope/{ANSWERS}/*"))


def loads_of(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by a name whenever the function `load` of a module reads a trace."""
    names: list[str] = []
    load = module.load

    def loaded(path: object) -> object:
        names.append(Path(str(path)).name)
        return load(path)

    monkeypatch.setattr(module, "load", loaded)
    return names
