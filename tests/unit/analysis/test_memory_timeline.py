"""Memory over time against a plain replay of the same events."""

from __future__ import annotations

import random

import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, us

from stepscope.analysis.memory_timeline import (
    BEFORE_WINDOW,
    MOST_POINTS,
    NO_OPERATOR,
    memory_timeline,
)
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UsageError

MIB = 1 << 20


def _random_programme(seed: int) -> tuple[GpuTrace, list]:
    """A trace, and its events as (time, operator or None, address, change)."""
    chance = random.Random(seed)
    t = GpuTrace()
    t._allocated = t._reserved = 100 * MIB
    told, live = [], {}
    for _ in range(3):
        with t.step():
            for _ in range(chance.randint(1, 40)):
                t.python(us(1))
                operator = chance.choice([None, "aten::a", "aten::b"])
                if live and chance.random() < 0.4:
                    address = chance.choice(list(live))
                    change = -live.pop(address)
                else:
                    # Addresses are used again, as allocators do.
                    address = chance.choice([n for n in range(1, 60) if n not in live])
                    change = live[address] = chance.randint(1, 9) * 512
                if operator:
                    with t.op(operator):
                        told.append((t.now, operator, address, change))
                        t.memory(change, address=address)
                else:
                    told.append((t.now, NO_OPERATOR, address, change))
                    t.memory(change, address=address)
            t.launch("k", 10)
    return t, told


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(25))
def test_peak_and_holders_against_a_replay(seed: int) -> None:
    t, told = _random_programme(seed)
    answer = memory_timeline(t.load())
    total = peak = 100 * MIB
    live: dict = {}
    at_peak: dict = {}
    totals = []
    for _, operator, address, change in told:
        total += change
        if change > 0:
            live[address] = (operator, change)
        else:
            live.pop(address)
        totals.append(total)
        if total > peak:
            peak, at_peak = total, dict(live)
    assert answer.peak_allocated_bytes == peak
    held: dict = {BEFORE_WINDOW: 100 * MIB}
    for operator, size in at_peak.values():
        held[operator] = held.get(operator, 0) + size
    found = dict(answer.at_peak.group_by("operator").agg(pl.col("live_bytes").sum()).iter_rows())
    assert found == held
    assert answer.at_peak["live_bytes"].sum() == peak
    device = answer.devices.row(0, named=True)
    assert device["allocations"] == sum(change > 0 for *_, change in told)
    assert device["frees"] == sum(change < 0 for *_, change in told)
    assert device["last_bytes"] == totals[-1]
    assert answer.steps["allocations"].sum() == device["allocations"]
    assert answer.steps["peak_allocated_bytes"].max() == peak
    assert answer.timeline["allocated_bytes"].max() == max(totals)


def test_the_curve_is_short_and_keeps_the_peak() -> None:
    t = GpuTrace()
    with t.step():
        for number in range(5000):
            t.memory(512 if number != 2500 else 64 * MIB)
            t.python(100)
            if number == 2500:
                t.memory(-64 * MIB)
    answer = memory_timeline(t.load())
    assert len(answer.timeline) <= MOST_POINTS
    assert answer.timeline["allocated_bytes"].max() == answer.peak_allocated_bytes
    assert answer.timeline["time_ns"].is_sorted()


def test_the_reserve_grows_and_shrinks() -> None:
    t = GpuTrace(memory_bytes=100 * MIB)
    with t.step():
        t.memory(10 * MIB)
        t.malloc(20 * MIB)
        t.memory(512)
        t.free(20 * MIB)
        t.memory(512)
    row = memory_timeline(t.load()).devices.row(0, named=True)
    assert (row["reserve_grew"], row["reserve_shrank"]) == (1, 1)
    assert row["peak_reserved_bytes"] == 30 * MIB
    assert row["capacity_bytes"] == 100 * MIB
    assert row["peak_share"] == pytest.approx(0.3)


def test_what_is_reserved_as_a_step_begins_counts_in_its_peak() -> None:
    t = GpuTrace()
    with t.step(dur_ns=us(900)):
        t.memory(10 * MIB)
        t.malloc(20 * MIB)
        t.memory(-512)
    with t.step(dur_ns=us(900)):
        t.free(20 * MIB)  # the step's first event shows it
        t.memory(-512)
    with t.step(dur_ns=us(900)):
        t.memory(-512)
    loaded = t.load()
    steps = memory_timeline(loaded).steps
    assert steps["peak_reserved_bytes"].to_list() == [30 * MIB, 30 * MIB, 10 * MIB]
    assert steps["reserve_shrank"].to_list() == [0, 1, 0]
    # The same where only that step is asked for.
    second = memory_timeline(loaded, Scope(steps=(1,)))
    assert second.peak_reserved_bytes == 30 * MIB
    assert memory_timeline(loaded, Scope(steps=(2,))).peak_reserved_bytes == 10 * MIB


def test_files_without_totals_are_summed_up_from_zero() -> None:
    t = GpuTrace()
    with t.step():
        t.memory(1024)
        t.memory(2048)
        t.memory(-1024)
    for event in t.events:
        event["args"].pop("Total Allocated", None)
        event["args"].pop("Total Reserved", None)
    answer = memory_timeline(t.load())
    assert answer.peak_allocated_bytes == 3072
    assert any("relative to the start" in note for note in answer.notes)


def test_a_window_that_only_frees_has_its_peak_at_the_start() -> None:
    t = GpuTrace()
    t._allocated = 10 * MIB
    with t.step():
        t.memory(-MIB)
        t.memory(-MIB)
    answer = memory_timeline(t.load())
    assert answer.peak_allocated_bytes == 10 * MIB
    assert answer.at_peak.select("operator", "live_bytes").rows() == [(BEFORE_WINDOW, 10 * MIB)]


def test_scope_and_absence() -> None:
    t, _ = _random_programme(1)
    trace = t.load()
    one = memory_timeline(trace, Scope(steps=(1,)))
    assert one.steps["step"].to_list() == [1]
    assert "memory events of other steps or of none" in one.scope.excluded
    with pytest.raises(UsageError, match="no memory events on device 5"):
        memory_timeline(trace, Scope(devices=(5,)))
    t = GpuTrace()
    with t.step():
        t.launch("k", us(1))
    answer = memory_timeline(t.load())
    assert answer.peak_allocated_bytes is None
    assert any("profile_memory=True" in note for note in answer.notes)


def test_what_was_freed_between_the_steps_asked_for_is_not_held() -> None:
    t = GpuTrace()
    for change, address in ((MIB, 1), (-MIB, 1), (2 * MIB, 2)):
        with t.step(), t.op(f"aten::{address}"):
            t.memory(change, address=address)
    found = memory_timeline(t.load(), Scope(steps=(0, 2))).at_peak
    assert found.select("operator", "live_bytes").rows() == [("aten::2", 2 * MIB)]


def test_a_device_without_memory_records_has_nothing_to_tell() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("kernel", us(10))
    answer = memory_timeline(t.load(), Scope(devices=(0,)))
    assert answer.devices.is_empty()
    assert any("profile_memory=True" in note for note in answer.notes)
