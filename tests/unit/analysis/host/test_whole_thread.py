"""A CPU trace without steps is judged as one whole."""

from __future__ import annotations

from tests.support.gpu_trace import GpuTrace, ms

from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.host.partition import partition_host
from stepscope.analysis.timeline import break_down
from stepscope.opening.reader import open_run


def trace_without_steps():
    t = GpuTrace(device_name=None)
    t.data_wait(ms(30))
    t.op("aten::linear").python(ms(20))
    t.python(ms(10))
    t.op("aten::linear").python(ms(5))
    return t


def test_the_whole_thread_is_one_step_from_its_first_wait_to_its_last_operator():
    trace = trace_without_steps().load()
    host = partition_host(trace)
    assert host is not None
    assert host.partition.total_ns == ms(65) + 2 * 3_000
    assert host.partition.of("input") == ms(30)
    assert host.partition.of("other") == ms(10)
    assert sum(part.total_ns for part in host.partition.parts) == host.partition.total_ns
    assert host.partition.basis.endswith("the whole file as one step")
    graph = build_step_graph(trace)
    assert graph.total_ns == host.partition.total_ns
    assert break_down(trace) is not None


def test_it_is_reported(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(trace_without_steps().json())
    judged = diagnose(open_run(str(path)))
    assert judged.verdict.startswith("input-bound")
    assert judged.ranks[0].partition is not None


def test_a_trace_in_which_no_thread_did_anything_has_no_partition():
    t = GpuTrace(device_name=None)
    t.overhead("Activity Buffer Request", ms(1))
    assert partition_host(t.load()) is None
