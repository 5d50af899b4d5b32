"""Whoever watches is told that a function is being compiled, and only then."""

from __future__ import annotations

import io

import numba.core.config

from stepscope.run import working
from stepscope.trace.arrays.compiled import compiled


class Watched(working.WorkingLine):
    """A line that notes its stages."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.stages: list[str] = []
        self.left = 0

    def enter(self, what: str) -> None:
        self.stages.append(what)

    def leave(self) -> None:
        self.left += 1


def double(number: int) -> int:
    return 2 * number


def test_compiling_is_a_stage_of_what_is_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path))
    line = Watched()
    monkeypatch.setattr("stepscope.trace.arrays.compiled.current_line", lambda: line)
    assert compiled(double)(4) == 8
    assert line.stages == ["Compiling, once per installation"]
    assert line.left == 1
    assert compiled(double)(5) == 10  # from the kept code
    assert line.left == len(line.stages) == 1


def test_nothing_is_told_where_nobody_watches(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path))
    assert working.current_line() is None
    assert compiled(double)(4) == 8
