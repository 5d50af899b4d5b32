"""Captured graphs: one call, many kernels; the gaps before them and between them."""

from __future__ import annotations

from tests.support.gpu_trace import GpuTrace, us
from tests.support.planted import GEMM, SMALL

from stepscope.analysis.calls.runtime_calls import GraphPlace, graph_places
from stepscope.analysis.idle import idle_causes
from stepscope.analysis.kernels import kernels
from stepscope.analysis.launches import launches
from stepscope.analysis.selection.gpu_work import recorded_work


def graphs(call_ns: int = us(8)) -> GpuTrace:
    """Two launches of a graph of four kernels with 3 µs between them, and a plain kernel."""
    t = GpuTrace()
    with t.step():
        t.launch(SMALL, us(20))
        for _ in range(2):
            t.python(us(400))
            t.graph_launch([(GEMM, us(30))] * 4, gap_ns=us(3), call_ns=call_ns)
    return t


def test_the_first_kernel_of_a_graph_is_told_from_the_others():
    trace = graphs().load()
    places = graph_places(trace, recorded_work(trace)).tolist()
    one = [GraphPlace.FIRST] + [GraphPlace.INSIDE] * 3
    assert places == [GraphPlace.NONE, *one, *one]


def test_gaps_inside_a_graph_and_before_its_first_kernel_have_a_cause_of_their_own():
    t = graphs()
    causes = dict(idle_causes(t.load()).causes.select("cause", "idle_ns").iter_rows())
    inside, starting = 2 * 3 * us(3), 2 * t.latency_ns
    assert causes["graph_gap"] == inside + starting
    assert "device_wait" not in causes
    gaps = {row["activity"]: row["idle_ns"] for row in _details(t)}
    assert gaps["between a graph's kernels"] == inside
    assert gaps["a graph starts"] == starting
    assert gaps["cudaGraphLaunch"] == 2 * us(8)


def test_a_call_that_returns_after_its_graph_began_delays_none_of_its_later_kernels():
    t = graphs()
    call = next(e for e in t.events if e["name"] == "cudaGraphLaunch")
    call["dur"] += us(60)  # it returns while the graph runs
    causes = dict(idle_causes(t.load()).causes.select("cause", "idle_ns").iter_rows())
    assert causes["graph_gap"] == 2 * 3 * us(3) + t.latency_ns


def _details(t: GpuTrace):
    return idle_causes(t.load()).details.iter_rows(named=True)


def test_a_graph_counts_as_one_launch_in_delays():
    found = launches(graphs().load())
    counts = dict(found.delays.select("call", "count").iter_rows())
    assert counts == {"cudaGraphLaunch": 2, "cudaLaunchKernel": 1}
    assert found.median_delay_ns == 5_000


def test_kernels_of_a_graph_are_never_faster_than_their_shared_launch():
    table = kernels(graphs(call_ns=us(500)).load()).kernels
    assert table["faster_than_launch"].sum() == 0
