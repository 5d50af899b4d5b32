"""Launch delays, queues, launch-bound stretches, blocking calls and copies, with known answers."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.tables import TableBuilder

from stepscope.analysis.launches import launches
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.model import Trace


def _random_programme(seed: int, vendor: str = "nvidia") -> GpuTrace:
    chance = random.Random(seed)
    t = GpuTrace(vendor=vendor)
    for _ in range(3):
        with t.step():
            for _ in range(chance.randint(2, 30)):
                t.python(us(chance.choice([0, 1, 50])))
                t.launch("k", us(chance.randint(1, 40)), stream=chance.choice([7, 9]))
            if chance.random() < 0.5:
                t.sync()
    return t


def _length_at(works, moment: int) -> int:
    return sum(w.launch_start_ns <= moment for w in works) - sum(
        w.start_ns <= moment for w in works
    )


@pytest.mark.sampled(9)
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize("seed", range(12))
def test_delays_and_queues_against_plain_python(seed: int, vendor: str) -> None:
    t = _random_programme(seed, vendor)
    answer = launches(t.load())
    delays = sorted(w.start_ns - w.launch_end_ns for w in t.work)
    assert answer.launched == len(t.work)
    assert answer.median_delay_ns == round(statistics.median(delays))
    row = answer.delays.row(0, named=True)
    assert row["call"] == ("hipLaunchKernel" if vendor == "amd" else "cudaLaunchKernel")
    assert row["max_delay_ns"] == delays[-1]
    assert row["mean_delay_ns"] == pytest.approx(statistics.mean(delays), abs=1)
    assert answer.median_latency_ns is None or answer.median_latency_ns >= t.latency_ns
    for queue in answer.queues.rows(named=True):
        works = [w for w in t.work if w.stream == queue["stream"]]
        moments = sorted({w.launch_start_ns for w in works} | {w.start_ns for w in works})
        lengths = [_length_at(works, moment) for moment in moments]
        lasting = np.diff(moments)
        assert queue["launches"] == len(works)
        assert queue["max_length"] == max(lengths)
        assert queue["span_ns"] == moments[-1] - moments[0]
        mean = (np.array(lengths[:-1]) * lasting).sum() / lasting.sum()
        assert queue["mean_length"] == pytest.approx(mean)
        empty = lasting[np.array(lengths[:-1]) == 0].sum() / lasting.sum()
        assert queue["empty_share"] == pytest.approx(empty)


def test_a_launch_bound_stretch_is_found_with_its_length() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("big", us(500))
        t.launch("big", us(500))
    with t.step():
        t.python(us(3000))
        for _ in range(20):
            t.op("aten::add", before=us(20)).launch("add", us(2))
    answer = launches(t.load())
    row = answer.stretches.row(0, named=True)
    assert answer.stretches.height == 1
    assert row["work"] == 20
    assert row["step"] == 1
    assert row["start_ns"] == t.work[1].end_ns
    assert row["dur_ns"] == t.work[-1].end_ns - t.work[1].end_ns == answer.launch_bound_ns
    assert row["idle_ns"] == row["dur_ns"] - 20 * us(2)
    assert (row["operator"], row["median_work_ns"]) == ("aten::add", us(2))


def test_work_that_queues_is_not_launch_bound() -> None:
    t = GpuTrace()
    with t.step():
        for _ in range(50):
            t.launch("k", us(30))
    answer = launches(t.load())
    assert answer.stretches.is_empty()
    assert answer.launch_bound_ns == 0
    assert answer.queues["max_length"][0] > 10


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_blocking_calls_have_their_operator_and_line(vendor: str) -> None:
    t = GpuTrace(vendor=vendor)
    with t.step(), t.frame("train.py(10): main"):
        t.op("aten::mm").launch("sgemm", us(500))
        with (
            t.frame("train.py(31): log_loss"),
            t.frame("torch/_tensor.py(9): item"),
            t.frame("<built-in method item of Tensor object at 0x7f>"),
            t.op("aten::item"),
            t.op("aten::_local_scalar_dense"),
        ):
            t.copy("DtoH", 4, us(2), pinned=True, blocking=True)
        t.sync()
    answer = launches(t.load())
    prefix = "hip" if vendor == "amd" else "cuda"
    rows = {row["call"]: row for row in answer.blocking.rows(named=True)}
    # AMD's runtime waits within the copy, NVIDIA's in a call of its own.
    name = "hipMemcpyWithStream" if vendor == "amd" else "cudaStreamSynchronize"
    item = rows[name]
    assert (item["operator"], item["frame"]) == ("aten::item", "train.py(31): log_loss")
    call = next(c for c in t.calls if c.name == name)
    assert item["total_ns"] == call.end_ns - call.start_ns
    assert item["waited_ns"] == t.work[1].end_ns - call.start_ns
    assert rows[f"{prefix}DeviceSynchronize"]["frame"] == "train.py(10): main"
    assert answer.blocking_calls == 2


def test_without_stacks_the_operator_remains() -> None:
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("sgemm", us(50))
        t.item()
    rows = launches(t.load()).blocking.rows(named=True)
    assert {row["operator"] for row in rows} == {"aten::item"}
    assert {row["frame"] for row in rows} == {None}
    assert {row["call"] for row in rows} == {"cudaMemcpyAsync", "cudaStreamSynchronize"}


def test_pageable_copies_are_told_from_pinned_ones() -> None:
    t = GpuTrace()
    with t.step(), t.frame("train.py(5): load"):
        with t.op("aten::to"):
            t.copy("HtoD", 3 << 20, us(300), pinned=False)
        with t.op("aten::to"):
            t.copy("HtoD", 5 << 20, us(200), pinned=True)
    answer = launches(t.load())
    assert answer.pageable_bytes == 3 << 20
    row = answer.pageable.row(0, named=True)
    assert (row["operator"], row["frame"], row["count"]) == ("aten::to", "train.py(5): load", 1)
    by_name = {row["name"]: row for row in answer.copies.rows(named=True)}
    pinned = by_name["Memcpy HtoD (Pinned -> Device)"]
    assert pinned["bandwidth_gb_per_s"] == pytest.approx((5 << 20) / us(200))


def test_steps_limit_what_is_counted() -> None:
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            t.op("aten::mm").launch("sgemm", us(50))
            t.item()
    trace = t.load()
    one = launches(trace, Scope(steps=(1,)))
    assert one.launched == 2
    assert one.blocking_calls == 2
    assert launches(trace).blocking_calls == 6


def test_work_without_a_launch_is_said_to_be_left_out() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("k", us(3), linked=False)
        t.launch("k", us(3))
    answer = launches(t.load())
    assert answer.launched == 1
    assert any("1 pieces of GPU work have no recorded launch" in note for note in answer.notes)


def test_nothing_to_launch() -> None:
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").python(us(3))
    answer = launches(t.load())
    assert answer.launched == 0
    assert answer.median_delay_ns is None
    assert answer.queues.is_empty()
    assert answer.blocking.is_empty()


def test_a_stretch_may_begin_after_work_that_took_no_time() -> None:
    build = TableBuilder()
    for number in range(11):
        build.launch(100 * number, 10, 100 * number + 20, 30 if number else 0)
    stretches = launches(Trace.from_tables(build.build(), "t")).stretches
    assert stretches.select("start_ns", "dur_ns", "work").rows() == [(20, 1030, 10)]
