"""Synchronisation records of real files: who waited for which stream, against the file itself."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests.support.traces import trace_path

import stepscope
from stepscope.analysis.graph.blocking_calls import STREAM_SYNC, STREAM_WAIT
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.graph.sync_records import read_sync_records, recorded_waits
from stepscope.analysis.graph.work import read_work

FILES = {
    # Records of: streams waited for by the host, streams made to wait; and those of the latter that
    # have work in the file.
    "nsys/h100_2gpu_1s.sqlite": (8, 236, 0),
    "nsys/mfu_2gpu_before.sqlite": (33, 200, 66),
}


@pytest.mark.parametrize("name", FILES)
def test_the_host_waits_for_streams_of_its_own_process(name):
    trace = stepscope.load(trace_path(name))
    work = read_work(trace, None)
    records = read_sync_records(trace, work)
    syncs = records.filter(pl.col("role") == STREAM_SYNC)
    waits = records.filter(pl.col("role") == STREAM_WAIT)
    with_work = int((waits["waiting_lane"] >= 0).sum())
    assert (len(syncs), len(waits), with_work) == FILES[name]
    # Both processes number their streams and devices for themselves.
    assert (syncs["awaited_lane"] >= 0).all()
    process = dict(trace.lanes.select("lane_id", "pid").iter_rows())
    events = trace.events.select("lane_id", "start_ns", "dur_ns").collect()
    graph = build_step_graph(trace)
    assert replay(unchanged(graph)).total_ns == graph.total_ns
    call_lane_of = dict(zip(work.lane.tolist(), work.call_lane.tolist(), strict=True))
    found = 0
    for call, awaited in syncs.select("call", "awaited_lane").iter_rows():
        lane, start, length = events.row(call)
        for edge in np.nonzero((graph.edge_kind == EdgeKind.SYNC) & (graph.call == call))[0]:
            source = int(graph.source[edge])
            assert graph.lane[source] == awaited
            assert process[call_lane_of[awaited]] == process[lane]
            assert graph.end_ns[source] <= start + length + 2_000
            found += 1
    assert found >= len(syncs) - 1  # before the first of a file there may have been no work


def test_nsight_does_not_say_what_streams_wait_for():
    trace = stepscope.load(trace_path("nsys/mfu_2gpu_before.sqlite"))
    work = read_work(trace, None)
    recorded = recorded_waits(read_sync_records(trace, work), work)
    assert not recorded.are_complete
    assert not len(recorded.waiting)
    assert 0 < len(recorded.unexplained) <= 66
