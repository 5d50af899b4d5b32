"""Idle causes: each planted alone with its exact length, and all against a simple oracle."""

from __future__ import annotations

import random
from itertools import pairwise

import polars as pl
import pytest
from tests.support.gpu_trace import BACKWARD_THREAD, GpuTrace, us
from tests.support.tables import TableBuilder

from stepscope.analysis.host.idle_gaps import IDLE_CAUSES
from stepscope.analysis.idle import idle_causes, idle_times
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import timeline
from stepscope.trace.model import Trace

CALL, LATENCY, WAKE = 4_000, 5_000, 2_000
BEFORE = 2_000
"""From an operator's start to its launching call."""


def _causes(t: GpuTrace) -> dict[str, int]:
    """Idle time by cause in the second step: the first one only starts things up."""
    trace = t.load()
    answer = idle_causes(trace, Scope(steps=(1,)))
    assert answer.idle_ns == timeline(trace, Scope(steps=(1,))).idle_ns
    assert answer.causes["idle_ns"].sum() == answer.idle_ns
    return dict(answer.causes.select("cause", "idle_ns").iter_rows())


def _first_step(t: GpuTrace) -> None:
    with t.step():
        t.op("aten::mm").launch("sgemm", us(100))
        t.sync()


def test_waiting_for_input() -> None:
    t = GpuTrace()
    _first_step(t)
    with t.step():
        t.data_wait(us(5000))
        t.op("aten::mm").launch("sgemm", us(100))
    assert _causes(t) == {
        "input": us(5000),
        "synchronisation": WAKE + BEFORE + CALL,  # its end, and the refilling
        "device_wait": LATENCY,
    }


def test_input_without_a_synchronisation_leaves_dispatch_as_dispatch() -> None:
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("sgemm", us(100))
    with t.step():
        t.data_wait(us(5000))
        t.op("aten::mm").launch("sgemm", us(100))
    # The queue runs dry while the loader still works, so 5 ms less what the device had left.
    first, _ = t.work
    wait_end = t.work[1].launch_start_ns - BEFORE
    assert _causes(t) == {
        "input": wait_end - first.end_ns,
        "op_dispatch": BEFORE + CALL,
        "device_wait": LATENCY,
    }


def test_synchronising_between_operators() -> None:
    t = GpuTrace()
    _first_step(t)
    with t.step():
        for _ in range(3):
            t.op("aten::mm").launch("sgemm", us(100))
            t.item()
        t.op("aten::mm").launch("sgemm", us(100))
    causes = _causes(t)
    assert set(causes) == {"synchronisation", "device_wait"}
    assert causes["synchronisation"] > 3 * (WAKE + BEFORE + CALL)


def test_long_python_after_a_synchronisation_is_no_refilling() -> None:
    t = GpuTrace()
    _first_step(t)
    with t.step():
        t.python(us(3000))
        t.op("aten::mm").launch("sgemm", us(100))
    assert _causes(t) == {
        "not_recorded": us(3000),
        "synchronisation": WAKE + BEFORE + CALL,
        "device_wait": LATENCY,
    }


def test_launch_bound_and_python_between_operators() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("sgemm", us(1))
    with t.step():
        for _ in range(10):
            t.python(us(7))
            t.op("aten::add", before=us(20)).launch("add", us(1))
    causes = _causes(t)
    assert set(causes) == {"not_recorded", "op_dispatch", "device_wait"}
    assert causes["op_dispatch"] == 10 * (us(20) + CALL)
    # Launch latency and kernel (6 µs) hide the operator's end and 5 of the 7 µs of Python; of
    # the first 7 µs the work of the step before hides 6.
    assert causes["not_recorded"] == us(1) + 9 * us(2)
    assert causes["device_wait"] == 10 * LATENCY


def test_allocation_pageable_copy_checkpoint_and_collector() -> None:
    t = GpuTrace()
    _first_step(t)
    with t.step():
        with t.op("aten::empty"):
            t.malloc(1 << 20, us(700))
        t.op("aten::mm").launch("sgemm", us(10))
        t.gc_pause(us(900))
        with t.op("aten::copy_"):
            t.copy("HtoD", 1 << 20, us(50), pinned=False)
        with t.annotate("save_checkpoint"):
            t.python(us(2000))
        with t.annotate("bookkeeping"):
            t.python(us(400))
        t.op("aten::mm").launch("sgemm", us(10))
    causes = _causes(t)
    assert causes["allocation"] == us(700)
    assert causes["annotated_phase"] == us(2400)
    assert us(880) < causes["garbage_collection"] <= us(900)
    assert causes["pageable_copy"] >= WAKE + CALL
    trace = t.load()
    details = idle_causes(trace).details
    assert {"Python GC", "save_checkpoint", "bookkeeping"} <= set(details["activity"])


def test_an_annotation_around_launches_explains_nothing() -> None:
    t = GpuTrace()
    _first_step(t)
    with t.step(), t.annotate("whole_step"):
        t.python(us(2000))
        t.op("aten::mm").launch("sgemm", us(10))
    causes = _causes(t)
    assert "annotated_phase" not in causes
    assert causes["not_recorded"] == us(2000)


def test_waiting_on_the_device_for_another_stream() -> None:
    t = GpuTrace()
    _first_step(t)
    with t.step():
        # The communication stream starts late for reasons of its own; nothing else runs.
        t.launch("sgemm", us(10))
        moment = t.record_event()
        t._free[(0, 20)] = t.now + us(1000)
        t.launch("slow_start", us(10), stream=20)
        t.wait_event(type(moment)(t.stream_free_ns(20)))
        t.launch("sgemm", us(10))
    causes = _causes(t)
    assert causes["device_wait"] > us(900)


def test_the_main_thread_waits_for_autograd_which_dispatches() -> None:
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("sgemm", us(10))
        with t.thread(BACKWARD_THREAD):
            t.op("MmBackward0").launch("sgemm", us(10))
    with t.step():
        t.op("aten::mm").launch("sgemm", us(10))
        with t.thread(BACKWARD_THREAD):
            t.op("aten::empty").python(us(450))
        t.op("aten::add_").launch("add", us(10))
    causes = _causes(t)
    assert causes["op_dispatch"] > us(430)
    assert causes.get("python", 0) == 0


def test_work_without_a_launch_is_unknown() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("a", us(10))
    with t.step():
        t.python(us(100))
        t.launch("b", us(10), linked=False)
        t.launch("c", us(10))
    answer = idle_causes(t.load())
    assert answer.of("unknown") == t.work[1].start_ns - t.work[0].end_ns


def test_the_longest_gap_has_its_place_and_its_python_frame() -> None:
    t = GpuTrace()
    _first_step(t)
    with t.step(), t.frame("train.py(10): main"):
        with t.frame("train.py(42): prepare"):
            t.python(us(8000))
        t.op("aten::mm").launch("sgemm", us(100))
    trace = t.load()
    row = idle_causes(trace).longest.row(0, named=True)
    assert row["cause"] == "python"
    assert row["cause_ns"] == us(8000)
    assert row["frame"] == "train.py(42): prepare"
    assert row["ended_by_name"] == "sgemm"
    assert row["op_name"] == "aten::mm"
    assert row["start_ns"] == t.work[0].end_ns
    ended = trace.events.filter(pl.col("event") == row["ended_by"]).collect()
    assert ended["start_ns"][0] == t.work[1].start_ns


def _random_programme(seed: int) -> GpuTrace:
    chance = random.Random(seed)
    t = GpuTrace()
    actions = [
        lambda: t.op("aten::mm").launch("sgemm", us(chance.randint(1, 60))),
        lambda: t.op("aten::add").launch("add", us(chance.randint(1, 9)), stream=9),
        lambda: t.op("aten::view").python(us(chance.randint(1, 20))),
        lambda: t.python(us(chance.choice([3, 30, 300]))),
        lambda: t.data_wait(us(chance.randint(1, 400))),
        t.sync,
        t.item,
        lambda: t.malloc(1 << 20, us(40)),
        lambda: t.copy("HtoD", 1 << 20, us(20), pinned=False),
        lambda: t.gc_pause(us(50)),
        lambda: t.graph_launch([("g", us(2)), ("g", us(3))], gap_ns=us(1)),
    ]
    for _ in range(3):
        with t.step():
            for _ in range(chance.randint(3, 25)):
                chance.choice(actions)()
            t.launch("last", us(1))
    return t


def _oracle(t: GpuTrace) -> dict[str, int]:
    """The causes again, told by the definitions, one gap and one stretch at a time."""
    events = t.events
    totals = dict.fromkeys(IDLE_CAUSES, 0)
    reach = min(w.start_ns for w in t.work)
    for work in sorted(t.work, key=lambda w: (w.start_ns, w.launch_start_ns)):
        if work.start_ns > reach:
            for cause, ns in _oracle_gap(events, reach, work).items():
                totals[cause] += ns
        reach = max(reach, work.end_ns)
    return {cause: ns for cause, ns in totals.items() if ns}


def _oracle_gap(events: list, gap_start: int, work) -> dict[str, int]:
    turn = min(max(work.launch_end_ns, gap_start), work.start_ns)
    # Graphs here are a kernel "g" of 2 µs and a later one of 3 µs.
    in_graph, is_later = work.name == "g", work.end_ns - work.start_ns == us(3)
    if in_graph and is_later:
        return {"graph_gap": work.start_ns - gap_start}
    waiting = "graph_gap" if in_graph and work.launch_end_ns > gap_start else "device_wait"
    found: dict[str, int] = {waiting: work.start_ns - turn}
    host = [e for e in events if e["ph"] == "X" and "device" not in e["args"]]
    cuts = {gap_start, turn}
    for e in host:
        cuts |= {x for x in (e["ts"], e["ts"] + e["dur"]) if gap_start < x < turn}
    pieces = []
    for start, end in pairwise(sorted(cuts)):
        around = [e for e in host if e["ts"] <= start and e["ts"] + e["dur"] >= end]
        pieces.append([start, end, _oracle_state(around, events)])
    merged: list = []
    for piece in pieces:
        if merged and merged[-1][2] == piece[2] == "python":
            merged[-1][1] = piece[1]
        else:
            merged.append(piece)
    blocked = None
    for start, end, state in merged:
        cause = state
        if state in ("synchronisation", "pageable_copy"):
            blocked = state
        elif blocked and (state == "op_dispatch" or (state == "python" and end - start <= 200_000)):
            cause = blocked
        cause = "garbage_collection" if cause == "gc" else cause
        found[cause] = found.get(cause, 0) + end - start
    return found


def _oracle_state(around: list, events: list) -> str:
    names = [e["name"] for e in around]
    if any("DataLoader" in n for n in names):
        return "input"
    pageable = {
        e["args"]["correlation"]
        for e in events
        if e["cat"] == "gpu_memcpy" and "Pageable -> Device" in e["name"]
    }
    down = {
        e["args"]["correlation"]
        for e in events
        if e["cat"] == "gpu_memcpy" and "Device -> Pageable" in e["name"]
    }
    calls = [e for e in around if e["cat"] == "cuda_runtime"]
    if any("Synchronize" in e["name"] or e["args"]["correlation"] in down for e in calls):
        return "synchronisation"
    if any("Malloc" in e["name"] for e in calls):
        return "allocation"
    if any(e["args"]["correlation"] in pageable for e in calls):
        return "pageable_copy"
    if "Python GC" in names:
        return "gc"
    if any(e["cat"] in ("cpu_op", "cuda_runtime") for e in around):
        return "op_dispatch"
    return "python"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(40))
def test_random_programmes_against_the_oracle(seed: int) -> None:
    t = _random_programme(seed)
    trace = t.load()
    answer = idle_causes(trace)
    assert answer.idle_ns == timeline(trace).idle_ns
    assert dict(answer.causes.select("cause", "idle_ns").iter_rows()) == _oracle(t)
    by_step = idle_causes(trace, Scope(steps=(0, 1, 2)))
    assert by_step.steps["idle_ns"].sum() == by_step.idle_ns
    sums = idle_times(trace, Scope(steps=(0, 1, 2)))
    for name in ("idle_ns", "total_ns", "causes", "steps", "scope", "notes"):
        one, other = getattr(sums, name), getattr(by_step, name)
        assert one.equals(other) if isinstance(one, pl.DataFrame) else one == other
    for cause in IDLE_CAUSES:
        assert by_step.steps[f"{cause}_ns"].sum() == by_step.of(cause)


def test_of_work_that_begins_together_what_was_launched_first_ended_the_gap() -> None:
    """A file has its events thread by thread, so that its order tells nothing of their time."""
    build = TableBuilder()
    build.launch(0, 10, 20, 30, thread=2, stream=9)
    build.launch(80, 15, 100, 5, thread=2, stream=9)
    early, kernel = build.launch(40, 5, 100, 30)
    gaps = idle_causes(Trace.from_tables(build.build(), "t")).gaps
    assert gaps.select("start_ns", "end_ns", "ended_by", "launch").rows() == [
        (50, 100, kernel, early)
    ]
