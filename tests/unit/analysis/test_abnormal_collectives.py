"""Abnormal collectives: planted ones are found with their cause, normal ones are left alone."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.analysis.abnormal_collectives import (
    ALLOCATION,
    BASELINE,
    LARGER_SIZE,
    MEMORY_FULL,
    MEMORY_FULL_AND_ALLOCATION,
    NO_MEMORY_RECORDS,
    NOT_KNOWN,
    SAME_SIZE,
    find_abnormal_collectives,
)

SIZE = 32 << 20
MEMORY = 80 << 30


def training(*, slow=(), slow_ns=500_000_000, fill=0.0, malloc=False, size=SIZE):
    """Steps with one all_reduce each; in the slow ones it takes 500 times as long."""
    t = GpuTrace(world_size=16, memory_bytes=MEMORY)
    if fill:
        t.memory(int(fill * MEMORY))
    for step in range(6):
        with t.step():
            t.op("aten::mm").launch("gemm", us(50))
            t.collective("all_reduce", size, slow_ns if step in slow else ms(1))
            if malloc and step in slow:
                t.malloc(1 << 30, us(300))
            t.sync()
    return t


def test_nothing_is_found_where_all_is_normal():
    report = find_abnormal_collectives(training(fill=0.99).load())
    assert report.table.is_empty()
    assert (report.judged, report.excess_ns) == (6, 0)


@pytest.mark.parametrize(
    ("fill", "malloc", "cause"),
    [
        (0.97, False, MEMORY_FULL),
        (0.97, True, MEMORY_FULL_AND_ALLOCATION),
        (0.3, True, ALLOCATION),
        (0.3, False, NOT_KNOWN),
        (0.0, False, NO_MEMORY_RECORDS),
    ],
)
def test_a_slow_one_is_found_with_what_memory_did(fill, malloc, cause):
    report = find_abnormal_collectives(training(slow=(3,), fill=fill, malloc=malloc).load())
    (row,) = report.table.to_dicts()
    assert row["step"] == 3
    assert row["times"] == pytest.approx(500)
    assert row["excess_ns"] == report.excess_ns == ms(499)
    assert row["expected_from"] == SAME_SIZE
    assert row["cause"] == cause
    assert row["allocation_calls"] == int(malloc)
    assert row["allocation_ns"] == (us(300) if malloc else 0)
    if fill:
        assert row["reserved_share"] == pytest.approx(fill, abs=0.001)
    assert row["memory_bytes"] == MEMORY


def test_all_slow_alike_shows_only_against_a_baseline():
    slow = training(slow=range(6), fill=0.97).load()
    assert find_abnormal_collectives(slow).table.is_empty()
    report = find_abnormal_collectives(slow, baseline=training(fill=0.4).load())
    assert len(report.table) == 6
    assert set(report.table["expected_from"]) == {BASELINE}
    assert set(report.table["cause"]) == {MEMORY_FULL}
    assert report.table["times"].to_list() == pytest.approx([500.0] * 6)


def test_the_baseline_may_lack_the_size_but_have_a_larger_one():
    slow = training(slow=range(6), size=SIZE // 2).load()
    report = find_abnormal_collectives(slow, baseline=training().load())
    assert len(report.table) == 6
    smaller = find_abnormal_collectives(slow, baseline=training(size=SIZE // 4).load())
    assert smaller.table.is_empty()
    assert smaller.scope.excluded == {}


def test_a_small_message_has_no_reason_to_take_longer_than_a_large_one():
    t = GpuTrace(world_size=4)
    for step in range(5):
        with t.step():
            t.collective("all_reduce", 64 << 20, ms(2))
            if step == 4:
                t.collective("all_reduce", 1024, ms(40))
            t.sync()
    (row,) = find_abnormal_collectives(t.load()).table.to_dicts()
    assert (row["message_bytes"], row["expected_from"]) == (1024, LARGER_SIZE)
    assert row["expected_ns"] == ms(2)


def test_thresholds_and_what_cannot_be_judged():
    t = GpuTrace(world_size=4)
    with t.step():
        t.collective("broadcast", 1024, ms(1))
        t.collective("all_reduce", 1024, ms(1), metadata=False)
    report = find_abnormal_collectives(t.load())
    assert report.judged == 0
    assert report.scope.excluded == {
        "collectives of unknown size": 1,
        "collectives without any to compare with": 1,
    }
    slow = training(slow=(2,), slow_ns=ms(4)).load()
    assert find_abnormal_collectives(slow).table.is_empty()
    assert len(find_abnormal_collectives(slow, factor=3.0).table) == 1
    # 0.9 ms more than the expected 1 ms are too few, however low the factor.
    little = training(slow=(2,), slow_ns=us(1900)).load()
    assert find_abnormal_collectives(little, factor=1.5).table.is_empty()
