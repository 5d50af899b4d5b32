"""Peaks of GPUs' memory, from the allocator's events."""

from __future__ import annotations

from tests.support.gpu_trace import GpuTrace, ms

from stepscope.analysis.calls.allocations import memory_peaks


def training(*changes_bytes):
    t = GpuTrace(device_name="NVIDIA H100")
    with t.step():
        t.op("aten::mm").launch("gemm", ms(1))
        for change in changes_bytes:
            t.memory(change)
    return t.load()


def test_peaks_are_the_highest_totals():
    (peak,) = memory_peaks(training(1 << 20, 4 << 20, -(5 << 20))).to_dicts()
    assert (peak["device"], peak["allocated_bytes"], peak["reserved_bytes"]) == (
        0,
        5 << 20,
        6 << 20,
    )
    assert peak["total_bytes"] is not None


def test_without_memory_events_there_are_the_same_columns():
    without = memory_peaks(training())
    assert without.is_empty()
    assert without.schema == memory_peaks(training(1 << 20)).schema
