"""Arrivals of a rank: small, and as good as its trace for comparing ranks."""

from __future__ import annotations

import pickle

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.rank_jobs import compare_traces

from stepscope.analysis.blame.compared import compare_ranks
from stepscope.analysis.calls.collectives import read_collectives
from stepscope.analysis.ranks import arrivals
from stepscope.analysis.ranks.arrivals import read_arrivals
from stepscope.analysis.ranks.clocks import Clock
from stepscope.analysis.ranks.rank_arrivals import ARRIVED, arrivals_of
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import EventChoice, Scope


def rank_of_job(rank, *, steps=4, collectives=3, metadata=True, late_ms=0, latest_ms=0):
    """A rank that comes late to the first collective of each step, for which the others wait."""
    t = GpuTrace(rank=rank, world_size=2, device=rank)
    for _ in range(steps):
        with t.step(dur_ns=ms(100)):
            t.python(ms(late_ms))
            t.op("aten::mm").launch("gemm", us(50), linked=False)
            for number in range(collectives):
                waits = 0 if number else ms(latest_ms - late_ms)
                if metadata:
                    t.collective("all_reduce", (number + 1) << 20, ms(10) + waits)
                else:
                    t.launch("ncclKernel_AllReduce", ms(1), stream=20)
    return t.load()


@settings(max_examples=20)
@given(
    steps=st.integers(1, 4),
    collectives=st.integers(0, 5),
    metadata=st.booleans(),
    choice=st.sampled_from(EventChoice),
)
def test_what_is_packed_is_what_was_read(steps, collectives, metadata, choice):
    trace = rank_of_job(3, steps=steps, collectives=collectives, metadata=metadata)
    scope = Scope(events=choice)
    sent = pickle.loads(pickle.dumps(read_arrivals(3, trace, scope)))
    table = arrivals_of([sent])
    assert dict(table.schema) == ARRIVED
    expected = read_collectives(trace, gpu_work(trace, scope).members)
    for name in ("event", "step", "kind", "group_size", "message_bytes", "start_ns", "dur_ns"):
        assert table[name].to_list() == expected[name].to_list(), name
    assert sent.answered() == gpu_work(trace, scope).answered
    for chosen in ((0,), tuple(range(steps))):
        asked = Scope(steps=chosen, events=choice)
        assert sent.answered(chosen) == gpu_work(trace, asked).answered
        assert arrivals_of([sent], chosen).equals(table.filter(pl.col("step").is_in(chosen)))


def test_ranks_compare_by_their_arrivals_as_by_their_traces():
    delays = enumerate((0, 7))
    traces = [(rank, rank_of_job(rank, late_ms=late, latest_ms=7)) for rank, late in delays]
    sent = [pickle.loads(pickle.dumps(read_arrivals(*one))) for one in traces]
    for steps in (None, (1, 2)):
        ours = compare_ranks(sent, steps)
        theirs = compare_traces(traces, Scope(steps=steps))
        assert ours.straggler == theirs.straggler == 1
        assert ours.scope == theirs.scope
        for name in ("ranks", "sets", "arrivals"):
            assert getattr(ours, name).equals(getattr(theirs, name))


@pytest.mark.parametrize("metadata", [True, False])
def test_a_step_takes_few_bytes(metadata):
    """A hundred collectives a step, which is a large sharded model's, within the goal of 3 KB."""
    few, many = (
        len(pickle.dumps(read_arrivals(0, trace)))
        for trace in (rank_of_job(0, steps=n, collectives=100, metadata=metadata) for n in (5, 15))
    )
    assert (many - few) / 10 < 3 << 10
    assert few < 16 << 10


def test_of_a_group_the_first_collectives_of_a_step_are_kept_and_the_rest_counted(monkeypatch):
    trace = rank_of_job(0, steps=2, collectives=5)
    monkeypatch.setattr(arrivals, "MOST_PER_STEP", 2)
    kept = read_arrivals(0, trace)
    assert arrivals_of([kept])["step"].to_list() == [0, 0, 1, 1]
    assert kept.answered().excluded == {
        "collectives beyond the first of a process group in a step": 6
    }


def test_nobody_waits_in_a_broadcast_longer_than_its_kernel_lasts():
    """The root sends in 20 µs and goes on; a receiver that comes 2 ms before it does wait."""

    def rank(number, *, late_ms, broadcast_ns):
        t = GpuTrace(rank=number, world_size=3, device=number)
        with t.step(dur_ns=ms(50)):
            t.python(ms(late_ms))
            t.collective("broadcast", 1 << 20, broadcast_ns)
            t.python(ms(8 - late_ms))
            t.collective("all_reduce", 1 << 20, ms(1))
        return t.load()

    jobs = [
        (0, rank(0, late_ms=2, broadcast_ns=us(20))),
        (1, rank(1, late_ms=0, broadcast_ns=ms(2) + us(20))),
        (2, rank(2, late_ms=5, broadcast_ns=us(20))),
    ]
    report = compare_traces(jobs, clock=Clock.RECORDED)
    (broadcast,) = report.sets.filter(pl.col("kind") == "broadcast")["set"]
    rows = report.arrivals.filter(pl.col("set") == broadcast)
    waits = dict(rows.select("rank", "wait_ns").rows())
    assert waits == {0: us(20), 1: ms(2) + us(20), 2: 0}
