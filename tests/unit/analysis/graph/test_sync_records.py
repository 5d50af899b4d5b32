"""Synchronisation as the recorder wrote it: what waited for what, exactly."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.gpu_trace import COMPUTE_STREAM, GpuTrace, us

from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.replay import replay, unchanged

FIRST, SECOND, THIRD = COMPUTE_STREAM, 30, 31


def edges(t, kind):
    """Names of what waited for what: pairs of GPU work, or of GPU work and the waiting call."""
    return edges_of(t.load(), kind)


def edges_of(trace, kind):
    graph = build_step_graph(trace)
    names = (
        trace.events.select("name_id")
        .collect()
        .join(trace.names.select("name_id", "name").collect(), on="name_id", maintain_order="left")
    )["name"].to_list()
    found = set()
    for edge in np.nonzero(graph.edge_kind == kind)[0]:
        source, target = int(graph.source[edge]), int(graph.target_of(edge))
        after = graph.call[edge] if kind == EdgeKind.SYNC else graph.event[target]
        found.add((names[int(graph.event[source])], names[int(after)]))
    return found


def two_sources(sync_records):
    """The third stream waits for the first work of the first stream, and for nothing else."""
    t = GpuTrace(sync_records=sync_records)
    with t.step():
        t.launch("a1", us(100), stream=FIRST)
        mark = t.record_event(FIRST)
        t.launch("a2", us(20), stream=FIRST)
        t.launch("b", us(30), stream=SECOND)
        t.python(us(300))
        t.wait_event(mark, THIRD)
        t.launch("c", us(10), stream=THIRD)
        t.sync()
    return t


def test_a_stream_waits_for_what_the_record_names():
    assert edges(two_sources(sync_records=True), EdgeKind.WAIT) == {("a1", "c")}
    # Without records all that was given before stands in for it.
    assert edges(two_sources(sync_records=False), EdgeKind.WAIT) == {("a2", "c"), ("b", "c")}


def event_sync(sync_records):
    """The host waits for an event between two kernels, while another stream ends just then."""
    t = GpuTrace(sync_records=sync_records, wake_ns=0)
    with t.step():
        t.launch("a1", us(200), stream=FIRST)
        mark = t.record_event(FIRST)
        t.launch("a2", us(400), stream=FIRST)
        t.launch("b", us(185), stream=SECOND)
        t.sync_event(mark)
        t.python(us(50))
    return t


def test_the_host_waits_for_the_event_that_the_record_names():
    assert edges(event_sync(sync_records=True), EdgeKind.SYNC) == {("a1", "cudaEventSynchronize")}
    assert edges(event_sync(sync_records=False), EdgeKind.SYNC) != {("a1", "cudaEventSynchronize")}


def test_the_host_waits_for_the_stream_that_the_record_names():
    t = GpuTrace(sync_records=True, wake_ns=0)
    with t.step():
        t.launch("a", us(200), stream=FIRST)
        t.launch("b", us(198), stream=SECOND)
        t.sync(stream=FIRST)
        t.python(us(50))
    assert edges(t, EdgeKind.SYNC) == {("a", "cudaStreamSynchronize")}


def test_a_device_is_waited_for_alone():
    t = GpuTrace(sync_records=True)
    with t.step():
        t.launch("a", us(200))
        t.launch("other", us(50), device=1)
        t.sync()
        t.python(us(50))
    assert edges(t, EdgeKind.SYNC) == {("a", "cudaDeviceSynchronize")}


def test_a_stream_without_work_is_waited_for_by_nobody():
    t = GpuTrace(sync_records=True)
    with t.step():
        t.launch("a", us(2), stream=FIRST)
        t.python(us(100))
        t.sync(stream=SECOND)
        t.wait_event(t.record_event(SECOND), FIRST)
        t.launch("b", us(20), stream=FIRST)
        t.wait_event(t.record_event(FIRST), THIRD)
    graph = build_step_graph(t.load())
    assert not np.isin(graph.edge_kind, (EdgeKind.SYNC, EdgeKind.WAIT)).any()


def test_a_record_without_its_event_falls_back_on_the_times():
    t = two_sources(sync_records=True)
    for event in t.events:
        if event["cat"] == "cuda_sync" and "wait_on_stream" in event["args"]:
            event["args"]["wait_on_stream"] = -1
            event["args"]["wait_on_cuda_event_record_corr_id"] = -1
    assert edges(t, EdgeKind.WAIT) == {("a2", "c"), ("b", "c")}
    # The record still says which stream waits: work of others that comes first does not.
    t = GpuTrace(sync_records=True)
    with t.step():
        t.launch("a", us(100), stream=FIRST)
        t.python(us(200))
        t.wait_event(t.record_event(FIRST), THIRD)
        t.launch("b", us(10), stream=SECOND)
        t.launch("c", us(10), stream=THIRD)
    for event in t.events:
        if event["cat"] == "cuda_sync":
            event["args"]["wait_on_stream"] = -1
    assert edges(t, EdgeKind.WAIT) == {("a", "c")} | {("b", "c")} & edges(t, EdgeKind.WAIT)
    assert not any(after == "b" for _, after in edges(t, EdgeKind.WAIT))


def test_a_record_that_the_times_contradict_is_not_believed():
    t = two_sources(sync_records=True)
    for event in t.events:
        if event["name"] == "a1":
            event["dur"] = us(900)
        if event["name"] == "a2":
            event["ts"] += us(900)
    assert ("a1", "c") not in edges(t, EdgeKind.WAIT)


steps_of_programme = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), st.sampled_from([FIRST, SECOND, THIRD]), st.integers(1, 400)),
        st.tuples(st.just("record"), st.sampled_from([FIRST, SECOND, THIRD]), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([FIRST, SECOND, THIRD]), st.integers(0, 3)),
        st.tuples(st.just("event sync"), st.just(0), st.integers(0, 3)),
        st.tuples(st.just("stream sync"), st.sampled_from([FIRST, SECOND, THIRD]), st.just(0)),
        st.tuples(st.just("python"), st.just(0), st.integers(1, 200)),
    ),
    min_size=1,
    max_size=14,
)


def play(programme, shrunk=None, factor=1.0):
    """Run a programme over three streams; the work of one stream takes `factor` of its time."""
    t = GpuTrace(sync_records=True, wake_ns=0)
    with t.step():
        # Where nothing else holds work up, the recorder's latency shows.
        for stream in (FIRST, SECOND, THIRD):
            t.sync()
            t.python(us(100))
            t.launch(f"clear {stream}", us(50), stream=stream)
        t.sync()
        marks = []
        for what, stream, number in programme:
            if what == "launch":
                length = us(number) if stream != shrunk else round(us(number) * factor)
                t.launch(f"work {stream}", length, stream=stream)
            elif what == "record":
                marks.append(t.record_event(stream))
            elif what == "wait" and marks:
                t.wait_event(marks[number % len(marks)], stream)
            elif what == "event sync" and marks:
                t.sync_event(marks[number % len(marks)])
            elif what == "stream sync":
                t.sync(stream=stream)
            elif what == "python":
                t.python(us(number))
        t.python(us(30))
    return t


@settings(max_examples=3 * settings.default.max_examples // 5, deadline=None)
@given(
    steps_of_programme,
    st.sampled_from([FIRST, SECOND, THIRD]),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_a_replay_with_records_is_what_the_simulated_device_does(programme, stream, factor):
    t, after = play(programme), play(programme, stream, factor)
    trace = t.load()
    graph = build_step_graph(trace)
    names = (
        trace.events.select("name_id")
        .collect()
        .join(trace.names.select("name_id", "name").collect(), on="name_id", maintain_order="left")
    )
    is_shrunk = (names["name"] == f"work {stream}").to_numpy()
    nodes = np.where(graph.event >= 0, is_shrunk[graph.event], False)
    ends = replay(unchanged(graph).scale_work(nodes, factor)).end_ns
    assert ends.max() == max(after.now, *(w.end_ns for w in after.work))


@pytest.mark.parametrize("key", ["wait_on_stream", "wait_on_cuda_event_record_corr_id"])
@pytest.mark.parametrize("value", [10**30, -5, "x", None, 2**63])
def test_odd_numbers_in_records_harm_nothing(key, value):
    t = two_sources(sync_records=True)
    for event in t.events:
        if key in event["args"]:
            event["args"][key] = value
    graph = build_step_graph(t.load())
    assert replay(unchanged(graph)).total_ns == graph.total_ns


def test_streams_of_two_processes_are_told_apart():
    """Several processes on one GPU number their streams alike."""
    first, second = two_sources(sync_records=True), two_sources(sync_records=True)
    for event in second.events:
        if event["name"].startswith("ProfilerStep"):
            continue
        args = event["args"] = dict(event["args"])
        for key in ("correlation", "wait_on_cuda_event_record_corr_id"):
            if key in args:
                args[key] += 1000
        if event["cat"] == "kernel":
            event["name"] += " of the other"
            event["tid"] = f"{event['tid']} of the other"
        if event["pid"] == second.process:
            event["pid"] = 999
        if event["name"] != "ProfilerStep#0":
            first.events.append(event)
    trace = first.load()
    work = trace.lanes.filter(pl.col("stream") == FIRST)
    assert len(work) == 2
    assert edges_of(trace, EdgeKind.WAIT) == {
        ("a1", "c"),
        ("a1 of the other", "c of the other"),
    }
