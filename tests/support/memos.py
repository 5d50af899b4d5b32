"""Memos of a test: what is in its cache directory, and which traces are read."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from stepscope.trace.store.origin import memo_directory


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
