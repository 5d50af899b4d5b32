"""What a rank did between its collectives: planted causes, and sums that fit."""

from __future__ import annotations

import pickle
from itertools import pairwise

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.analysis.ranks.arrivals import read_arrivals
from stepscope.analysis.ranks.local_time import BESIDE
from stepscope.analysis.ranks.rank_arrivals import OWN_HOST, QUEUED, arrivals_of
from stepscope.analysis.selection.scope import Scope

DO = {
    "input": lambda t, ns: t.data_wait(ns),
    "compute": lambda t, ns: t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ns),
    "garbage_collection": lambda t, ns: t.gc_pause(ns),
    "host": lambda t, ns: t.python(ns),
    "allocation": lambda t, ns: t.malloc(1 << 20, ns),
}
doing = st.lists(st.tuples(st.sampled_from(sorted(DO)), st.integers(1, 20)), max_size=6)


@settings(max_examples=30)
@given(steps=st.lists(doing, min_size=1, max_size=4))
def test_causes_are_what_the_rank_did(steps):
    t = GpuTrace(rank=0, world_size=2)
    for done in steps:
        with t.step():
            for cause, length in done:
                DO[cause](t, ms(length))
                t.sync()
            t.collective("all_reduce", 1 << 20, ms(3))
            t.sync()
    read = pickle.loads(pickle.dumps(read_arrivals(0, t.load(), with_causes=True)))
    table = arrivals_of([read])
    for row, done in zip(table.iter_rows(named=True), steps, strict=True):
        for cause in DO:
            planted = sum(ms(length) for name, length in done if name == cause)
            found = row.get(f"local_{cause}_ns", 0)
            if cause == "allocation" and not found:
                continue  # it may be growth that comes once, which is no local time of each step
            # Calls and latencies take time of their own, which no cause was planted for.
            assert abs(found - planted) < ms(1), cause
    assert table[BESIDE].to_list() == [0] * len(table)
    causes = [name for name in read.local if name.startswith("local_")]
    local = table.select(pl.sum_horizontal(pl.lit(0, pl.Int64), *causes))
    end = (table["start_ns"] + table["dur_ns"]).to_list()
    for total, start, before in zip(
        local.to_series()[1:], table["start_ns"][1:], end[:-1], strict=True
    ):
        assert total <= start - before


def test_what_the_gpu_does_beside_a_collective_is_known():
    t = GpuTrace(rank=0, world_size=2)
    with t.step():
        t.collective("all_reduce", 1 << 20, ms(30))
        t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(4))
        t.copy("DtoD", 1 << 20, ms(2))
        t.sync()
        t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(5))
        t.sync()
        t.collective("all_reduce", 1 << 20, ms(3))
        t.sync()
    table = arrivals_of([read_arrivals(0, t.load(), with_causes=True)])
    assert table[BESIDE].to_list() == [ms(6), 0]
    assert table["local_compute_ns"][1] == ms(5)


def test_the_hosts_own_time_stands_still_while_it_waits_for_the_gpu():
    t = GpuTrace(rank=0, world_size=2)
    with t.step():
        t.collective("all_reduce", 1 << 20, ms(30))
        t.python(ms(4))
        t.collective("all_reduce", 1 << 20, ms(10))
        t.sync()
        t.python(ms(7))
        t.collective("all_reduce", 1 << 20, ms(3))
        t.sync()
    table = arrivals_of([read_arrivals(0, t.load(), with_causes=True)])
    first, second, third = table[OWN_HOST].to_list()
    assert first == 0
    assert abs(second - ms(4)) < ms(0.1)
    assert abs(third - ms(11)) < ms(0.1)
    # The second is launched while the first still runs, and waits for it.
    assert abs(table[QUEUED][1] - ms(26)) < ms(0.1)
    assert table[QUEUED][2] < ms(0.1)


def test_a_choice_of_steps_cuts_nothing_off():
    t = GpuTrace(rank=0, world_size=2)
    for _ in range(3):
        with t.step():
            t.data_wait(ms(5))
            t.collective("all_reduce", 1 << 20, ms(3))
            t.sync()
            t.python(ms(7))
    trace = t.load()
    whole = arrivals_of([read_arrivals(0, trace, with_causes=True)])
    one = arrivals_of([read_arrivals(0, trace, Scope(steps=(1,)), with_causes=True)])
    assert one.equals(whole.filter(pl.col("step") == 1))
    assert one["local_input_ns"][0] == ms(5)


def test_a_step_with_causes_takes_few_bytes():
    sizes = []
    for steps in (5, 15):
        t = GpuTrace(rank=0, world_size=2)
        for step in range(steps):
            with t.step():
                t.data_wait(ms(1) + step * 977)
                for number in range(100):
                    t.op("aten::mm").launch("ampere_sgemm_128x64_nn", 31_000 + 7 * number * step)
                    t.collective("all_reduce", 1 << 20, 50_000 + 13 * number)
        sizes.append(len(pickle.dumps(read_arrivals(0, t.load(), with_causes=True))))
    assert (sizes[1] - sizes[0]) / 10 < 3 << 10


def test_waiting_for_room_in_the_queue_is_no_work_of_the_host():
    """Each launch waits as long as a kernel runs, far below what a slow call takes."""
    t = GpuTrace(rank=0, world_size=2, queue_depth=1_022)
    for _ in range(4):
        with t.step():
            for _ in range(700):
                t.op("aten::mm", before=us(3), after=us(2)).launch("gemm", us(90))
            t.collective("all_reduce", 1 << 20, us(200))
    own_ns = arrivals_of([read_arrivals(0, t.load(), with_causes=True)])[OWN_HOST].to_list()
    for last, before in pairwise(reversed(own_ns)):
        assert last - before < us(12) * 700
