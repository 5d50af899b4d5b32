"""Memos of a test: a cache directory of its own, what is in it, and which traces are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from stepscope.trace.store.origin import memo_directory


@contextmanager
def cache_of_its_own(cache: Path) -> Iterator[None]:
    """Memos, and stores that cannot be beside their traces, go there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_CACHE", str(cache))
        yield


def memos() -> list[Path]:
    """The files of all memos."""
    return sorted(memo_directory().glob("*"))


def forget() -> None:
    """Removes all memos."""
    for file in memos():
        file.unlink()


def loads_of(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by a name whenever the function `load` of a module reads a trace."""
    names: list[str] = []
    load = module.load

    def loaded(path: object) -> object:
        names.append(Path(str(path)).name)
        return load(path)

    monkeypatch.setattr(module, "load", loaded)
    return names
