"""Events by the names that they have."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests.support.tables import TableBuilder

from stepscope.analysis.selection.names import events_named
from stepscope.trace.model import Trace


@pytest.mark.parametrize("wanted", [[], ["op0"], ["op3", "op5"], [f"op{n}" for n in range(9)]])
def test_events_are_found_by_name(wanted):
    random = np.random.default_rng(1)
    build = TableBuilder()
    called = [f"op{number}" for number in random.integers(0, 9, 200)]
    lanes = random.integers(1, 4, 200).tolist()
    for start, (name, lane) in enumerate(zip(called, lanes, strict=True)):
        build.host(name, 10 * start, 5, thread=lane)
    trace = Trace.from_tables(build.build(), "trace")
    found = events_named(trace, pl.col("name").is_in(wanted))
    assert found.tolist() == [event for event, name in enumerate(called) if name in wanted]
    lane_of = trace.columns("lane_id")["lane_id"].to_list()
    some = events_named(trace, pl.col("name").is_in(wanted), lanes=[0, 2])
    assert some.tolist() == [event for event in found.tolist() if lane_of[event] in (0, 2)]
    within = (10 * 50, 10 * 120)
    begun = events_named(trace, pl.col("name").is_in(wanted), lanes=[0, 2], within=within)
    assert begun.tolist() == [event for event in some.tolist() if 50 <= event < 120]
    assert found.dtype == some.dtype == begun.dtype == np.int64
