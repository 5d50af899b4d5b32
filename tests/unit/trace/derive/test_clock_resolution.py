"""The resolution of the clock that times were written with."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.trace.derive import clock_resolution
from stepscope.trace.derive.clock_resolution import COARSE_CLOCKS_NS, clock_resolution_ns


def test_resolution_of_the_clock():
    base = 1_700_000_000_000_000_000
    exact = np.array([base, base + 1003, base + 5555], np.int64)
    quarter = np.array([base, base + 750, base + 2_000_250], np.int64)
    whole = np.array([base, base + 3_000, base + 8_000], np.int64)
    assert clock_resolution_ns(exact) == 0
    assert clock_resolution_ns(quarter) == 250
    assert clock_resolution_ns(whole) == 1000
    assert clock_resolution_ns(whole[:1]) == 0
    assert clock_resolution_ns(whole[[1, 1, 1]]) == 0


@pytest.mark.parametrize("step", [1, 7, 250, 1000])
def test_the_clock_is_that_of_the_rows_asked_for(monkeypatch, step):
    monkeypatch.setattr(clock_resolution, "_STARTS_AT_ONCE", 3)
    random = np.random.default_rng(step)
    start = random.integers(0, 10**6, 50)
    rows = np.sort(random.permutation(50)[:20]).astype(np.int32)
    start[rows] = 5 + step * random.integers(0, 1000, 20)
    assert clock_resolution_ns(start, rows) == clock_resolution_ns(start[rows])
    assert clock_resolution_ns(start, rows) == (step if step in COARSE_CLOCKS_NS else 0)
    assert clock_resolution_ns(start, rows[:0]) == 0
