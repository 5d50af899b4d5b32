"""Events by the names that they have."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import TableBuilder

from stepscope.analysis.selection import names
from stepscope.analysis.selection.names import events_named, order_by_loop
from stepscope.trace.model import Trace


@given(st.lists(st.integers(0, 5), max_size=40))
def test_the_loop_orders_events_by_their_names(name_ids):
    ids = np.array(name_ids, np.uint32)
    first = np.searchsorted(np.sort(ids), np.arange(6)).astype(np.int64)
    order = np.empty(len(ids), np.int32)
    order_by_loop(ids, first, order)
    assert order.tolist() == np.argsort(ids, kind="stable").tolist()


@pytest.mark.parametrize("threshold", [1, 10**9])
@pytest.mark.parametrize("wanted", [[], ["op0"], ["op3", "op5"], [f"op{n}" for n in range(9)]])
def test_events_are_found_by_any_way(monkeypatch, threshold, wanted):
    monkeypatch.setattr(names, "COMPILED_PAYS_FROM", threshold)
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
