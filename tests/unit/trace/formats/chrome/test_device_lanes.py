"""Traces of other recorders: their devices are found, counted and summed as they wrote them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run
from stepscope.trace.load import load
from stepscope.trace.model import Trace

Event = dict[str, Any]


def _process(pid: int | str, name: str, threads: dict[int | str, str]) -> list[Event]:
    """Names a process and its threads."""
    entries = [("process_name", 0, name), *(("thread_name", *pair) for pair in threads.items())]
    return [
        {"ph": "M", "name": word, "pid": pid, "tid": tid, "ts": 0, "args": {"name": value}}
        for word, tid, value in entries
    ]


def _event(name: str, lane: tuple[int, int], start: float, dur: float, **args: object) -> Event:
    pid, tid = lane
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur, "args": args}


def _arrow(name: str, number: int, start: tuple[int, int, float], end: tuple[int, int, float]):
    return [
        {"ph": phase, "id": number, "name": name, "cat": name, "pid": pid, "tid": tid, "ts": at}
        | ({"bp": "e"} if phase == "f" else {})
        for phase, (pid, tid, at) in (("s", start), ("f", end))
    ]


def _read(events: list[Event], *, store: bool = False) -> Trace:
    return load(io.BytesIO(json.dumps(events).encode()), store=store)


def _work(trace: Trace) -> pl.DataFrame:
    """The GPU work: name, kind, group, start, duration, stream, and its operator's name."""
    names = trace.name_rows
    events = pl.concat(
        [trace.events.collect(), trace.derived.drop("event").collect()], how="horizontal"
    )
    named = events.with_columns(name=names["name"].gather(events["name_id"]))
    operator = named["name"].gather(named["op"])
    return named.with_columns(operator=operator).filter(pl.col("kind").cast(pl.String) != "none")


PYTHON, CANN, HARDWARE, COMMUNICATION, OVERLAP = 1, 2, 3, 4, 5


def ascend(steps: int = 3) -> list[Event]:
    """Each step: a matrix product, a wait and a collective that copies on a stream."""
    events = [
        *_process(PYTHON, "Python", {11: "Thread 11"}),
        *_process(CANN, "CANN", {11: "Thread 11"}),
        *_process(HARDWARE, "Ascend Hardware", {2: "Stream 2", 7: "Stream 7"}),
        *_process(COMMUNICATION, "Communication", {0: "Group 0 Communication", 1: "Plane 0"}),
        *_process(OVERLAP, "Overlap Analysis", {0: "Computing", 1: "Communication", 2: "Free"}),
    ]
    for step in range(steps):
        at = 1000.0 + 2000 * step
        # Ascend writes times as text.
        events += [
            _event(f"ProfilerStep#{step}", (PYTHON, 11), at, 1990),
            _event("aten::linear", (PYTHON, 11), at + 10, 40),
            _event("Node@launch", (CANN, 11), at + 20, 8),
            _event("MatMulV2", (HARDWARE, 2), at + 100, 900, **{"Task Type": "AI_CORE"}),
            _event("Add", (HARDWARE, 2), at + 1000, 50, **{"Task Type": "AI_VECTOR_CORE"}),
            _event("NOTIFY_WAIT", (HARDWARE, 2), at + 1050, 150, **{"Task Type": "NOTIFY_WAIT"}),
            _event("SDMA", (HARDWARE, 7), at + 1210, 300, **{"Task Type": "SDMA"}),
            _event("hcom_allReduce__512_0", (COMMUNICATION, 0), at + 1200, 400),
            _event("Memcpy", (COMMUNICATION, 1), at + 1210, 300),
            _event("Computing", (OVERLAP, 0), at + 100, 950),
            _event("Communication", (OVERLAP, 1), at + 1200, 400),
            _event("Free", (OVERLAP, 2), at + 1600, 400),
            *_arrow("async_npu", 3 * step + 2, (PYTHON, 11, at + 10), (HARDWARE, 2, at + 100)),
            *_arrow("HostToDevice", 3 * step, (CANN, 11, at + 20), (HARDWARE, 2, at + 100)),
            *_arrow("async_npu", 3 * step + 1, (PYTHON, 11, at + 10), (HARDWARE, 2, at + 1000)),
        ]
    return [
        event | {"ts": f"{event['ts']:.3f}"} if event["ph"] != "M" else event for event in events
    ]


@pytest.mark.parametrize("store", [False, True])
def test_ascend_device_work_is_what_its_own_overlap_analysis_says(store, cache):
    events = ascend()
    trace = _read(events, store=store)
    assert (trace.store is not None) == store
    work = _work(trace).cast({"kind": pl.String})
    found = dict(work.group_by("kind").agg(pl.col("dur_ns").sum()).rows())
    told = {
        word.lower(): sum(int(e["dur"] * 1000) for e in events if e["name"] == word and "dur" in e)
        for word in ("Computing", "Communication")
    }
    assert found == {"compute": told["computing"], "communication": told["communication"]}
    assert trace.steps["step"].to_list() == [0, 1, 2]


def test_ascend_work_is_linked_by_flows():
    work = _work(_read(ascend(1)))
    assert work.select("name", "group", "operator").rows() == [
        ("MatMulV2", "gemm", "aten::linear"),
        ("Add", "gemm", "aten::linear"),  # its name says nothing: its operator does
        ("hcom_allReduce__512_0", "all_reduce", None),
    ]
    assert work["launch"].is_not_null().to_list() == [True, False, False]


def test_collectives_on_ascend_streams_are_not_counted_twice():
    events = ascend(1)
    task = {"Task Type": "COMMUNICATION"}
    events.append(_event("hcom_allReduce__512_0", (HARDWARE, 7), 2200, 400, **task))
    work = _work(_read(events)).filter(pl.col("kind").cast(pl.String) == "communication")
    assert work["dur_ns"].to_list() == [400_000]


def tpu(steps: int = 3) -> list[Event]:
    """XLA repeats the time of its operations at other levels."""
    device, host = 3, 701
    levels = {1: "Steps", 2: "XLA Modules", 3: "XLA Ops", 4: "Framework Name Scope"}
    events = [
        *_process(device, "/device:TPU:0", levels),
        *_process(host, "/host:CPU", {9: "python"}),
    ]
    for step in range(steps):
        at = 100.0 + 1000 * step
        events += [
            _event("train", (host, 9), at, 990, step_num=str(step)),
            _event("$train.py:7 step", (host, 9), at + 1, 20),
            _event(str(step), (device, 1), at + 50, 900),
            _event("jit_step(1)", (device, 2), at + 50, 900),
            _event("convolution.3", (device, 3), at + 50, 600, hlo_category="convolution"),
            _event("all-reduce.1", (device, 3), at + 650, 200, hlo_category="all-reduce"),
            _event("copy.7", (device, 3), at + 850, 100, hlo_category="copy"),
            _event("model/layer", (device, 4), at + 50, 800),
        ]
    return events


def test_only_xla_ops_are_work_and_step_num_makes_steps():
    trace = _read(tpu())
    work = _work(trace)
    assert work["dur_ns"].sum() == 3 * 900_000
    assert set(work["group"].cast(pl.String)) == {"convolution", "all_reduce", "elementwise"}
    assert trace.steps["step"].to_list() == [0, 1, 2]
    frames = trace.name_rows.filter(pl.col("category").cast(pl.String) == "python_function")
    assert frames["name"].to_list() == ["$train.py:7 step"]


def test_streams_of_xla_gpus_are_linked_by_correlation_id():
    device, host = 1, 701
    streams = {13: "Stream #13(Compute)", 14: "Stream #14(MemcpyH2D)"}
    events = [
        *_process(device, "/device:GPU:2", streams),
        *_process(host, "/host:CPU", {9: "python"}),
        _event("cuLaunchKernel", (host, 9), 10, 5, correlation_id=77),
        _event("gemm_fusion_dot_1", (device, 13), 20, 100, correlation_id=77),
        _event("MemcpyH2D", (device, 14), 120, 30, correlation_id=78),
    ]
    work = _work(_read(events))
    assert work.select("device", "stream").rows() == [(2, 13), (2, 14)]
    assert work["kind"].cast(pl.String).to_list() == ["compute", "memcpy"]
    assert work["launch"].to_list() == [0, None]


def test_rpd_queues_are_work():
    events = [
        {},
        *_process("1", "GPU1", {"0": "Hip 0"}),
        *_process("900", "900", {"900": "900"}),
        _event("hipLaunchKernel", ("900", "900"), 10, 5),
        _event("Cijk_Ailk_Bljk_HHS", ("1", "0"), 20, 100),
        *_arrow("hip", 5, ("900", "900", 10), ("1", "0", 20)),
    ]
    trace = _read(events)
    work = _work(trace)
    assert work.select("device", "dur_ns", "group").cast({"group": pl.String}).rows() == [
        (1, 100_000, "gemm")
    ]
    assert work["launch"].to_list() == [0]


def test_gaudi_engines_are_work_and_its_dma_copies():
    events = [
        *_process(4, "HPU 0", {1: "MME", 2: "TPC", 3: "DMA"}),
        *_process(9, "python", {9: "main"}),
        _event("gemm", (4, 1), 0, 70),
        _event("add_fwd_bf16", (4, 2), 70, 20),
        _event("DmaTask", (4, 3), 90, 10),
    ]
    kinds = _work(_read(events))["kind"].cast(pl.String).to_list()
    assert kinds == ["compute", "compute", "memcpy"]


def _judged(events: list[Event], folder: Path) -> str:
    path = folder / "trace.json"
    path.write_text(json.dumps(events))
    return diagnose(open_run(path)).verdict


def test_a_busy_device_is_no_fault_of_the_host(tmp_path, cache):
    events = [
        *_process(PYTHON, "Python", {1: "main"}),
        *_process(HARDWARE, "Ascend Hardware", {2: "Stream 2"}),
        *(_event("aten::linear", (PYTHON, 1), 25.0 * i, 20) | {"cat": "cpu_op"} for i in range(80)),
        *(_event("MatMulV2", (HARDWARE, 2), 30 + 900.0 * i, 899) for i in range(80)),
    ]
    for step in range(4):
        events.append(_event(f"ProfilerStep#{step}", (PYTHON, 1), 18_000.0 * step, 17_990))
    assert _judged(events, tmp_path).startswith("GPU-bound: 99")


@pytest.mark.parametrize(
    ("process", "thread"),
    [("NPU Device 0", "core 1"), ("Accelerator 3", "lane"), ("x", "Stream 4")],
)
def test_a_device_that_is_not_understood_leaves_the_host_unjudged(process, thread, tmp_path, cache):
    events = [
        *_process(1, "python", {1: "thread 1"}),
        *_process(2, process, {1: thread}),
        *(_event("op", (2, 1), 1000.0 * i, 990) for i in range(5)),
        *(
            _event(name, (1, 1), 1000.0 * i + at, dur) | {"cat": cat}
            for i in range(5)
            for name, cat, at, dur in (
                (f"ProfilerStep#{i}", "user_annotation", 0, 995),
                ("aten::mm", "cpu_op", 10, 20),
            )
        ),
    ]
    verdict = _judged(events, tmp_path)
    assert verdict == (
        "uncertain: lanes that look like a device's were not understood "
        f"({process} / {thread}), so what limits the step is unknown"
    )
    (finding,) = diagnose(open_run(tmp_path / "trace.json")).findings
    assert finding.id == "trace-incomplete"
    assert finding.advice.startswith("Nothing was lost")


def test_lanes_of_torch_are_no_unknown_devices():
    events = [
        *_process(0, "python3", {7: "stream 7"}),
        *_process(9, "python3", {9: "thread 9 (cuda-EvtHandlr)"}),
        _event("gemm", (0, 7), 10, 5) | {"cat": "kernel", "args": {"device": 0, "stream": 7}},
        _event("aten::mm", (9, 9), 0, 5) | {"cat": "cpu_op"},
    ]
    assert _read(events).problems.is_empty()


def test_frames_of_viztracer_are_python_functions():
    events = [
        *_process(3, "MainProcess", {3: "MainThread"}),
        _event("inner (/app/train.py:12)", (3, 3), 1, 5) | {"cat": "fee"},
        _event("builtins.sum", (3, 3), 2, 1) | {"cat": "FEE"},
    ]
    names = _read(events).name_rows.cast({"category": pl.String})
    assert names.select("name", "category").rows() == [
        ("/app/train.py(12): inner", "python_function"),
        ("builtins.sum", "python_function"),
    ]
