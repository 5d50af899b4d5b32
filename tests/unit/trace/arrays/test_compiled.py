"""Whoever watches is told that a function is being compiled, and only then."""

from __future__ import annotations

import numba.core.config
from tests.support.watched import Watched

from stepscope.run import working
from stepscope.trace.arrays.compiled import compiled


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
