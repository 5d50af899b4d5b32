"""Which Python frame spans some time of a thread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import TableBuilder

from stepscope.analysis.calls import places
from stepscope.analysis.calls.places import covering_by_loop, frame_over
from stepscope.trace.model import Trace

EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(-9, 9), st.integers(0, 12)),
    max_size=20,
)


@given(EVENTS, st.integers(-9, 9), st.integers(0, 9), st.integers(0, 9))
def test_the_loop_finds_what_covers_enough_of_a_time(events, first, length, least):
    name_id, lane_id, start, dur = np.array(events, np.int64).reshape(-1, 4).T
    found = np.full(len(events), -1, np.int32)
    count = covering_by_loop(
        name_id.astype(np.uint32),
        lane_id.astype(np.uint32),
        start,
        dur,
        np.array([False, True, True]),
        1,
        first,
        first + length,
        least,
        found,
    )
    # What lies apart from the time covers less than none of it.
    expected = [
        number
        for number, (name, lane, begun, lasts) in enumerate(events)
        if name > 0
        and lane == 1
        and min(begun + lasts, first + length) - max(begun, first) >= least
    ]
    assert found[:count].tolist() == expected


@pytest.mark.parametrize("threshold", [1, 10**9])
def test_the_innermost_frame_is_named_by_any_way(monkeypatch, threshold):
    monkeypatch.setattr(places, "COMPILED_PAYS_FROM", threshold)
    build = TableBuilder()
    build.host("outer", 0, 1000, category="python_function", thread=1)
    build.host("inner", 100, 500, category="python_function", thread=1)
    build.host("short", 200, 300, category="python_function", thread=1)
    build.host("aten::mm", 150, 400, thread=1)
    build.host("elsewhere", 0, 1000, category="python_function", thread=2)
    trace = Trace.from_tables(build.build(), "trace")
    lane = int(trace.columns("lane_id")["lane_id"][0])
    assert frame_over(trace, lane, 150, 550) == "inner"
    assert frame_over(trace, lane, 550, 700) == "outer"
    assert frame_over(trace, lane, 210, 480) == "short"
    assert frame_over(trace, lane, 2000, 2100) is None
