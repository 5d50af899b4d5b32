"""What ran on a stream before the steps of a graph: against a search by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.graph.work import _earlier_ends

WORK = st.tuples(
    st.integers(0, 4), st.integers(-30, 60), st.integers(0, 20), st.booleans()
)  # stream, start, duration, whether the steps have it


@given(st.lists(WORK, max_size=25))
def test_the_first_of_each_stream_knows_the_last_end_before_it(work):
    everything = pl.DataFrame(
        [(lane, start, start + duration) for lane, start, duration, _ in work],
        schema={"lane_id": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    )
    rows = sorted((lane, start) for lane, start, _, is_in_steps in work if is_in_steps)
    lane = np.array([lane for lane, _ in rows], np.int64)
    start = np.array([start for _, start in rows], np.int64)
    expected = []
    for place, (stream, begin) in enumerate(rows):
        ends = [e for one, s, e in everything.rows() if one == stream and s < begin]
        is_first = place == 0 or rows[place - 1][0] != stream
        expected.append(max(ends) if is_first and ends else -(2**63))
    assert _earlier_ends(everything, lane, start).tolist() == expected
