"""Impossible ends of GPU work are cut; possible overlaps stay; steps are those of the truth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gpu_trace import COMM_STREAM, GpuTrace, ms, us
from tests.support.tables import TableBuilder

from stepscope.analysis.kernels import kernels
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.timeline import timeline
from stepscope.trace.model import Trace

EXCESSES = (us(900), ms(5), ms(30), ms(2000), 2**53 * 1000)


def training(vendor: str = "nvidia", *, annotate_steps: bool = True) -> GpuTrace:
    """Six steps of 5 ms with a copy, eight products and a collective, each on a stream of its own.

    The host waits for the device at the end, as torch does before it stops recording.
    """
    t = GpuTrace(vendor=vendor, annotate_steps=annotate_steps)
    for _ in range(6):
        with t.step(dur_ns=ms(5)):
            t.op("aten::copy_").copy("HtoD", 1 << 20, us(50), stream=13)
            for _ in range(8):
                t.op("aten::mm").launch("gemm", us(400))
            t.op("c10d::allreduce_").launch("ncclDevKernel_AllReduce", us(300), stream=COMM_STREAM)
    return t


def on_device(t: GpuTrace) -> list[dict]:
    return [event for event in t.events if event["cat"] in ("kernel", "gpu_memcpy")]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("excess_ns", EXCESSES)
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize("which", ["gemm", "nccl", "copy", "several"])
def test_steps_are_those_of_the_truth(which: str, vendor: str, excess_ns: int) -> None:
    truth = training(vendor).load()
    t = training(vendor)
    work = on_device(t)
    wrong = {"copy": [30], "gemm": [21], "nccl": [39], "several": [21, 30, 39, 55, 59]}[which]
    for row in wrong:
        if row % 10 in (0, 9) and excess_ns < ms(10):
            return  # such an excess ends before the next work of its stream: possible
        work[row]["dur"] += excess_ns
    trace = t.load()
    assert len(trace.overruns) == len(wrong)
    assert trace.device_steps.equals(truth.device_steps)
    found, known = timeline(trace), timeline(truth)
    assert (found.busy_ns, found.total_ns) == (known.busy_ns, known.total_ns)
    assert kernels(trace).kernels.equals(kernels(truth).kernels)
    assert trace.events.collect()["dur_ns"].sum() > truth.events.collect()["dur_ns"].sum()
    (row,) = trace.event_problems.filter(problem="overrun").iter_rows(named=True)
    assert row["count"] == len(wrong)


@pytest.mark.parametrize("row", [58, 59, 50])
def test_the_last_of_a_stream_cannot_go_on_alone_for_long(row: int) -> None:
    truth = training(annotate_steps=False).load()
    t = training(annotate_steps=False)
    on_device(t)[row]["dur"] += ms(30)
    assert timeline(t.load()).total_ns == timeline(truth).total_ns


def test_a_long_end_that_the_host_waits_for_is_possible() -> None:
    t = training()
    t.op("aten::mm").launch("gemm", ms(50))
    t.sync()
    assert t.load().overruns.is_empty()


@st.composite
def serial_streams(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Work as a stream can do it: lane, start, end, call. Each ends after what was before it."""
    work, call = [], 0
    for stream in (7, 20):
        start, end = 0, 0
        for _ in range(draw(st.integers(4, 30))):
            call += 1
            start = max(start, end - draw(st.integers(0, 15_000))) + draw(st.integers(1, 9_000))
            end = max(end, start) + draw(st.integers(0, 90_000))
            work.append((stream, start, end, call))
    return work


def tables_of(work: list[tuple[int, int, int, int]]) -> Trace:
    build = TableBuilder()
    for stream, start, end, call in work:
        build.gpu("gemm", start, end - start, stream=stream, correlation=call)
    build.host("aten::mm", 0, max(end for _, _, end, _ in work) + ms(1))
    return Trace.from_tables(build.build(), "t")


@given(serial_streams())
def test_what_a_stream_can_do_stays_as_it_is(work: list[tuple[int, int, int, int]]) -> None:
    assert tables_of(work).overruns.is_empty()


@given(serial_streams(), st.data())
def test_work_that_outlasts_later_work_is_cut_at_the_next_start_or_before(
    work: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(work) - 2).filter(lambda i: work[i][0] == work[i + 1][0]))
    stream, start, _, call = work[row]
    after = [other for other in work if other[0] == stream and other[3] > call]
    too_late = min(other[2] for other in after) + data.draw(st.integers(1_001, ms(100)))
    work[row] = (stream, start, too_late, call)
    trace = tables_of(work)
    (event,) = trace.overruns["event"].to_list()
    cut = recorded_work(trace).filter(event=event)
    assert cut["start_ns"][0] == start
    assert start <= cut["end_ns"][0] <= after[0][1]


def test_the_kernels_of_a_graph_may_run_side_by_side() -> None:
    for lasting, cut in ((us(50), []), (us(500), [(0, us(200))])):
        build = TableBuilder()
        build.gpu("gemm", 0, lasting, correlation=1)
        build.gpu("relu", us(10), us(5), correlation=1)
        build.gpu("mul", us(200), us(20), correlation=2)
        assert Trace.from_tables(build.build(), "t").overruns.rows() == cut


def test_a_lane_that_two_processes_share_is_no_serial_stream() -> None:
    build = TableBuilder()
    for number in range(8):
        build.gpu("long", us(100) * number, us(90), correlation=2 * number + 1)
        build.gpu("short", us(100) * number + us(20), us(10), correlation=2 * number + 2)
    assert Trace.from_tables(build.build(), "t").overruns.is_empty()


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_many_ends_that_no_number_of_processes_explains_are_cut(vendor: str) -> None:
    truth = training(vendor).load()
    t = training(vendor)
    products = [event for event in on_device(t) if event["name"] == "gemm"]
    for event in products[::6]:
        event["dur"] += ms(2000)
    trace = t.load()
    assert len(trace.overruns) == len(products[::6]) > len(products) // 10
    assert trace.device_steps.equals(truth.device_steps)
