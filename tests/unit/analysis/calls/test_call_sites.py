"""Which Python frame spans some time of a thread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import TableBuilder

from stepscope.analysis.calls import call_sites
from stepscope.analysis.calls.call_sites import function_of, names_over
from stepscope.trace.model import Trace

EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(-9, 9), st.integers(0, 12)),
    max_size=20,
)


@given(EVENTS, st.integers(-9, 9), st.integers(0, 20))
def test_frames_cover_nearly_all_of_a_time(events, first, length):
    build = TableBuilder()
    build.host("on the lane", 0, 0, thread=1)
    build.host("on the other", 0, 0, thread=0)
    for number, (kind, thread, begun, lasts) in enumerate(events):
        category = "python_function" if kind > 0 else "cpu_op"
        build.host(f"event {number}", begun, lasts, category=category, thread=thread)
    trace = Trace.from_tables(build.build(), "trace")
    lane = int(trace.columns("lane_id")["lane_id"][0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_sites, "_AT_ONCE", 3)
        found = names_over(trace, lane, first, first + length)
    # What lies apart from the time covers less than none of it.
    expected = [
        f"event {number}"
        for number, (kind, thread, begun, lasts) in enumerate(events)
        if kind > 0
        and thread == 1
        and 10 * (min(begun + lasts, first + length) - max(begun, first)) >= 9 * length
    ]
    assert sorted(found) == sorted(expected)


def test_the_innermost_frame_is_named():
    build = TableBuilder()
    build.host("outer", 0, 1000, category="python_function", thread=1)
    build.host("inner", 100, 500, category="python_function", thread=1)
    build.host("short", 200, 300, category="python_function", thread=1)
    build.host("aten::mm", 150, 400, thread=1)
    build.host("elsewhere", 0, 1000, category="python_function", thread=2)
    trace = Trace.from_tables(build.build(), "trace")
    lane = int(trace.columns("lane_id")["lane_id"][0])
    assert function_of(names_over(trace, lane, 150, 550)) == "inner"
    assert function_of(names_over(trace, lane, 550, 700)) == "outer"
    assert function_of(names_over(trace, lane, 210, 480)) == "short"
    assert function_of(names_over(trace, lane, 2000, 2100)) is None
