"""Operators against brute force over single events, and small programmes with known answers."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, us

from stepscope.analysis.calls.operator_forest import operator_forest
from stepscope.analysis.operators import analyse_operators
from stepscope.analysis.selection.scope import EventChoice, Scope
from stepscope.errors import UsageError


def rows(report):
    return {row["name"]: row for row in report.table.to_dicts()}


def test_self_and_total_times_of_nested_operators():
    t = GpuTrace()
    with t.step(), t.op("aten::linear", before=us(3), after=us(2)):
        t.op("aten::addmm").launch("gemm", us(100))
        t.launch("bias", us(7))
    found = rows(analyse_operators(t.load()))
    linear, addmm = found["aten::linear"], found["aten::addmm"]
    assert addmm["host_total_ns"] == addmm["host_self_ns"] == us(3) + t.call_ns
    assert linear["host_total_ns"] == us(5) + addmm["host_total_ns"] + t.call_ns
    assert linear["host_self_ns"] == us(5) + t.call_ns
    assert (linear["device_total_ns"], linear["device_self_ns"]) == (us(107), us(7))
    assert (addmm["device_total_ns"], addmm["device_self_ns"]) == (us(100), us(100))
    assert (linear["count"], linear["launching"], linear["kernels"]) == (1, 1, 1)


def test_an_operator_in_one_of_its_own_name_is_counted_once_in_totals():
    t = GpuTrace()
    with t.step(), t.op("aten::to"), t.op("aten::to"):
        t.launch("copy", us(50))
    row = rows(analyse_operators(t.load()))["aten::to"]
    assert row["count"] == 2
    assert row["device_total_ns"] == row["device_self_ns"] == us(50)
    assert row["host_total_ns"] == us(6) + t.call_ns


def test_a_graph_belongs_to_the_operator_that_launched_it():
    t = GpuTrace()
    with t.step(), t.op("graph_replay"):
        t.graph_launch([("a", us(10)), ("b", us(20)), ("c", us(30))])
    row = rows(analyse_operators(t.load()))["graph_replay"]
    assert (row["kernels"], row["device_self_ns"]) == (3, us(60))


def test_busy_time_counts_what_runs_at_once_only_once():
    t = GpuTrace()
    with t.step(), t.op("both"):
        t.launch("a", us(100), stream=7)
        t.launch("b", us(100), stream=8)
    row = rows(analyse_operators(t.load()))["both"]
    assert row["device_self_ns"] == us(200)
    first, second = t.work
    assert row["device_self_busy_ns"] == second.end_ns - first.start_ns < us(200)


def test_scope_keeps_what_belongs_to_its_steps_and_counts_the_rest():
    t = GpuTrace()
    for length in (10, 20, 30):
        with t.step():
            t.op("aten::mm").launch("gemm", us(length))
            t.launch("orphan", us(5), linked=False)
    trace = t.load()
    one = analyse_operators(trace, Scope(steps=(1,)))
    assert rows(one)["aten::mm"]["device_self_ns"] == us(20)
    assert rows(one)["aten::mm"]["count"] == 1
    assert one.scope.steps == (1,)
    assert one.scope.excluded["GPU events of other steps or of none"] == 4
    linked = analyse_operators(trace, Scope(events=EventChoice.LINKED))
    assert linked.device_ns == us(60)
    assert linked.scope.excluded == {"GPU events without a known launch": 3}
    everything = analyse_operators(trace)
    assert everything.unattributed_ns == us(15)
    assert everything.device_ns == us(75)


def test_a_step_or_device_that_is_not_there_is_refused():
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("gemm", us(10))
    with pytest.raises(UsageError, match="no step 9: it has step 0"):
        analyse_operators(t.load(), Scope(steps=(9,)))
    with pytest.raises(UsageError, match="on device 3: it has 0"):
        analyse_operators(t.load(), Scope(devices=(3,)))


def test_backward_costs_go_to_the_forward_operator_that_recorded_the_node():
    t = GpuTrace()
    with t.step():
        number = t.next_sequence()
        with t.op("aten::linear"), t.op("aten::addmm", sequence=number):
            t.launch("forward_gemm", us(10))
        with (
            t.thread(),
            t.op(
                "autograd::engine::evaluate_function: AddmmBackward0",
                sequence=number,
                forward_thread=1,
            ),
            t.op("AddmmBackward0", sequence=number, forward_thread=1),
        ):
            t.op("aten::mm").launch("backward_gemm", us(40))
    found = rows(analyse_operators(t.load()))
    assert found["aten::addmm"]["backward_device_ns"] == us(40)
    assert found["aten::linear"]["backward_device_ns"] == us(40)
    outer = found["autograd::engine::evaluate_function: AddmmBackward0"]
    assert found["aten::addmm"]["backward_host_ns"] == outer["host_total_ns"]
    assert outer["backward_device_ns"] == 0


@pytest.mark.parametrize("frames", [True, False])
def test_recomputation_is_kept_apart_from_the_backward_that_it_runs_in(frames):
    t = GpuTrace()
    with t.step():
        number = t.next_sequence()
        t.op("aten::addmm", sequence=number).launch("forward", us(10))
        with (
            t.thread(),
            t.op(
                "autograd::engine::evaluate_function: AddmmBackward0",
                sequence=number,
                forward_thread=1,
            ),
            t.op("AddmmBackward0", sequence=number, forward_thread=1),
        ):
            again = t.op("aten::addmm", sequence=t.next_sequence())
            if frames:
                with t.frame("torch/utils/checkpoint.py(1657): recompute_fn"):
                    again.launch("again", us(11))
            else:
                again.launch("again", us(11))
            t.op("aten::mm").launch("backward", us(40))
    report = analyse_operators(t.load())
    addmm = rows(report)["aten::addmm"]
    assert (addmm["count"], addmm["recomputed"]) == (2, 1)
    assert addmm["recomputed_device_ns"] == report.recomputed_device_ns == us(11)
    assert addmm["backward_device_ns"] == us(40)
    assert rows(report)["aten::mm"]["recomputed"] == 0
    assert report.recomputed_basis.startswith("Python frames" if frames else "operators")


def test_by_shape_divides_a_name():
    t = GpuTrace()
    with t.step():
        for size in (8, 8, 16):
            t.op("aten::mm", shapes=[[size, size]] * 2).launch("gemm", us(size))
    table = analyse_operators(t.load(), by_shape=True).table
    found = {row["dims"]: (row["count"], row["device_self_ns"]) for row in table.to_dicts()}
    assert found == {"[[8,8],[8,8]]": (2, us(16)), "[[16,16],[16,16]]": (1, us(16))}
    assert set(table["types"]) == {'["float","float"]'}


def _random_programme(seed: int) -> GpuTrace:
    chance = random.Random(seed)
    t = GpuTrace()

    def body(depth: int) -> None:
        for _ in range(chance.randrange(1, 4)):
            pick = chance.random()
            if pick < 0.45 and depth < 5:
                with t.op(chance.choice("abc"), before=chance.randrange(3), after=1):
                    body(depth + 1)
            elif pick < 0.55 and depth < 5:
                with t.frame("model.py(1): forward"):
                    body(depth + 1)
            elif pick < 0.6:
                t.python(chance.randrange(50))
            else:
                t.launch(
                    "k",
                    chance.randrange(1, 9000),
                    stream=chance.choice([7, 8]),
                    linked=chance.random() < 0.9,
                )

    for _ in range(3):
        with t.step():
            body(0)
    return t


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(12))
def test_against_brute_force(seed):
    trace = _random_programme(seed).load()
    events = trace.events.collect().to_dicts()
    derived = trace.derived.collect().to_dicts()
    names = trace.names.collect()["name"].to_list()
    ops = [
        e for e in events if e["category"] == "cpu_op" and "ProfilerStep" not in names[e["name_id"]]
    ]

    def end(event):
        return event["start_ns"] + event["dur_ns"]

    def inside(inner, outer):
        return (
            inner is not outer
            and inner["lane_id"] == outer["lane_id"]
            and outer["start_ns"] <= inner["start_ns"]
            and end(inner) <= end(outer)
            and (outer["dur_ns"] > inner["dur_ns"] or outer["event"] < inner["event"])
        )

    work = [(e, d) for e, d in zip(events, derived, strict=True) if d["kind"] != "none"]
    expected: dict[str, list[int]] = {}
    for op in ops:
        row = expected.setdefault(names[op["name_id"]], [0, 0, 0, 0, 0])
        moments = np.zeros(op["dur_ns"], bool)
        for child in (o for o in ops if inside(o, op)):
            moments[child["start_ns"] - op["start_ns"] : end(child) - op["start_ns"]] = True
        outermost = not any(inside(op, o) and o["name_id"] == op["name_id"] for o in ops)
        own = [e for e, d in work if d["op"] == op["event"]]
        below = {o["event"] for o in ops if inside(o, op)} | {op["event"]}
        row[0] += 1
        row[1] += op["dur_ns"] if outermost else 0
        row[2] += int((~moments).sum())
        row[3] += sum(e["dur_ns"] for e, d in work if d["op"] in below) if outermost else 0
        row[4] += sum(e["dur_ns"] for e in own)
    report = analyse_operators(trace)
    found = {
        row["name"]: [
            row["count"],
            row["host_total_ns"],
            row["host_self_ns"],
            row["device_total_ns"],
            row["device_self_ns"],
        ]
        for row in report.table.to_dicts()
    }
    assert found == expected
    assert report.device_ns == sum(e["dur_ns"] for e, _ in work)


def test_the_self_times_of_a_forest_add_up_to_its_roots():
    forest = operator_forest(_random_programme(99).load())
    assert forest.self_ns.sum() == forest.dur_ns[forest.parent < 0].sum()


def test_a_forest_finds_the_rows_of_events_in_any_order():
    trace = _random_programme(99).load()
    forest = operator_forest(trace)
    row_of = {event: row for row, event in enumerate(forest.rows["event"])}
    asked = [*reversed(range(trace.event_count)), None, *range(0, trace.event_count, 2)]
    assert 0 < len(forest) < trace.event_count
    found = forest.rows_of(pl.Series(asked, dtype=pl.Int64))
    assert found.tolist() == [row_of.get(event, -1) for event in asked]
