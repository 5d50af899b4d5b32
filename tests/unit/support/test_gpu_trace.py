"""The builder of synthetic GPU traces does what it says."""

from __future__ import annotations

import polars as pl
from tests.support.gpu_trace import COMM_STREAM, GpuTrace, us


def test_kernels_start_when_launch_stream_and_events_allow() -> None:
    t = GpuTrace()
    with t.step():
        t.op("aten::mm", shapes=[[8, 8], [8, 8]]).launch("ampere_sgemm", us(300))
        t.op("aten::mm").launch("ampere_sgemm", us(100))
        done = t.collective("all_reduce", 1 << 20, us(50))
        t.wait_collective(done)
        t.op("aten::add").launch("add", us(10))
        t.sync()
    first, second, comm, last = t.work
    assert first.start_ns == first.launch_end_ns + t.latency_ns
    assert second.start_ns == first.end_ns
    assert comm.start_ns == second.end_ns
    assert comm.stream == COMM_STREAM
    assert last.start_ns == comm.end_ns
    assert t.now == last.end_ns + t.wake_ns


def test_the_file_reads_back_as_what_was_told() -> None:
    t = GpuTrace(world_size=2)
    for _ in range(2):
        with t.step():
            t.data_wait(us(20.5))
            with t.frame("train.py(3): step"), t.op("aten::mm"):
                t.launch("ampere_sgemm", us(30))
            t.collective("all_reduce", 1 << 20, us(50))
            t.copy("HtoD", 4096, us(3), pinned=False)
            t.graph_launch([("a", 10), ("b", 20)])
            t.memory(1 << 20)
    trace = t.load()
    work = trace.events.filter(pl.col("device").is_not_null()).collect().sort("start_ns", "event")
    told = sorted((w.start_ns, w.end_ns, w.stream) for w in t.work)
    read = sorted(
        zip(work["start_ns"], work["start_ns"] + work["dur_ns"], work["stream"], strict=True)
    )
    assert read == told
    derived = trace.derived.collect().join(work.select("event"), on="event")
    assert derived["launch"].null_count() == 0
    assert sorted(derived["kind"].to_list()) == sorted(w.kind for w in t.work)
    assert trace.problems.is_empty()
    assert len(trace.instants.collect()) == 2


def test_amd_and_unlinked_work() -> None:
    t = GpuTrace(vendor="amd", device_name="AMD Instinct MI300X")
    with t.step():
        t.launch("Cijk_gemm", us(30), linked=False)
        t.sync()
    trace = t.load()
    names = set(trace.names.collect()["name"])
    assert "hipDeviceSynchronize" in names
    assert "hipLaunchKernel" not in names
    assert trace.derived.collect()["launch"].null_count() == len(trace.derived.collect())
