"""Stragglers: planted late ranks, clocks that differ, and what cannot be matched."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.rank_jobs import compare_traces, rank_of_job
from tests.support.rank_programs import Meet, Program, run_ranks

from stepscope.analysis.ranks.clocks import Clock
from stepscope.analysis.ranks.matching import BY_ORDER, BY_SEQUENCE, BY_STEP
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UsageError


def job(delays_ms, *, steps=4, offsets_ms=None, annotate=True, extra=None):
    """Ranks that compute for different times before one all_reduce per step.

    A rank's kernel starts when it arrives and ends when the last has arrived and the data is there.
    """
    ranks = len(delays_ms)
    offsets_ms = offsets_ms or [0] * ranks
    made = []
    for rank, delay in enumerate(delays_ms):
        t = GpuTrace(
            rank=rank,
            world_size=ranks,
            device=rank,
            start_ns=1_000_000_000 + ms(offsets_ms[rank]),
            annotate_steps=annotate,
        )
        for step in range(steps):
            with t.step(dur_ns=ms(100)):
                t.python(ms(delay))
                waiting = ms(max(delays_ms)) - ms(delay)
                t.collective("all_reduce", 1 << 20, ms(1) + waiting)
                if extra and extra(rank, step):
                    t.collective("all_reduce", 1 << 20, us(10))
        made.append((rank, t.load()))
    return made


def test_the_late_rank_has_the_least_total_wait():
    report = compare_traces(job([10, 30, 20]))
    assert report.straggler == 1
    assert report.matched_by == BY_STEP
    assert report.clock is Clock.RECORDED
    rows = {row["rank"]: row for row in report.ranks.to_dicts()}
    assert [rows[rank]["total_wait_ns"] for rank in range(3)] == [ms(80), 0, ms(40)]
    assert [rows[rank]["last"] for rank in range(3)] == [0, 4, 0]
    assert report.ranks["rank"].to_list() == [1, 2, 0]
    assert (report.sets["spread_ns"] == ms(20)).all()
    assert (report.sets["transfer_ns"] == ms(1)).all()
    assert report.arrivals["wait_ns"].sum() == ms(120)


def test_clocks_that_differ_are_aligned_by_common_ends():
    ranks = job([10, 30, 20], offsets_ms=[0, 0, 5000])
    wrong = compare_traces(ranks, clock=Clock.RECORDED)
    # Nobody waits five seconds in a collective that takes milliseconds.
    assert (wrong.straggler, wrong.fits) == (None, False)
    assert "no ranks of one run" in wrong.notes[0]
    report = compare_traces(ranks)
    assert (report.straggler, report.clock) == (1, Clock.ALIGNED)
    rows = {row["rank"]: row for row in report.ranks.to_dicts()}
    assert rows[2]["offset_ns"] - rows[0]["offset_ns"] == ms(5000)
    assert [rows[rank]["total_wait_ns"] for rank in range(3)] == [ms(80), 0, ms(40)]
    assert all(row["end_spread_ns"] == 0 for row in rows.values())
    assert "no common clock" in report.clock_reason


def test_without_steps_order_decides():
    report = compare_traces(job([10, 30], annotate=False))
    assert report.matched_by == BY_ORDER
    assert (report.straggler, len(report.sets)) == (1, 4)


def test_one_collective_more_on_one_rank_spoils_only_its_own():
    report = compare_traces(job([10, 30], extra=lambda rank, step: rank == 0 and step == 1))
    assert (report.straggler, len(report.sets)) == (1, 4)
    assert report.scopes[0].excluded == {"collectives without a partner on every rank": 1}
    assert report.scopes[1].excluded == {}


def test_sets_of_different_kinds_are_left_out():
    made = []
    for rank in range(2):
        t = GpuTrace(rank=rank, world_size=2)
        with t.step():
            t.collective("all_reduce" if rank else "broadcast", 1 << 20, us(50))
            t.collective("all_reduce", 1 << 20, us(50))
        made.append((rank, t.load()))
    report = compare_traces(made)
    assert len(report.sets) == 1
    assert report.scopes[0].excluded == {
        "collectives whose kind or size differs between the ranks": 1
    }


def test_clocks_of_machines_that_keep_time_well_are_aligned_too():
    """A third of a millisecond is more than healthy ranks wait."""
    ranks = job([10, 10.2, 10], offsets_ms=[0, -0.3, 0.4])
    wrong = compare_traces(ranks, clock=Clock.RECORDED)
    assert (wrong.straggler, wrong.fits) == (2, True)
    report = compare_traces(ranks)
    assert (report.straggler, report.clock) == (1, Clock.ALIGNED)
    rows = {row["rank"]: row for row in report.ranks.to_dicts()}
    assert [rows[rank]["total_wait_ns"] for rank in range(3)] == [us(800), 0, us(800)]


def test_clocks_are_aligned_over_groups_that_share_only_some_ranks():
    """Ranks 0 and 3 never meet: what their clocks are apart by follows from 1 and 2."""

    def build(t: GpuTrace, rank: int) -> Program:
        pair, line = (rank - rank % 2, rank - rank % 2 + 1), (rank % 2, rank % 2 + 2)
        for _ in range(4):
            with t.step():
                t.python(ms(4 if rank == 2 else 1))
                t.op("aten::mm").launch("sgemm", us(300))
                t.wait_collective((yield Meet("all_reduce", 1 << 20, us(100), pair, f"tp{pair}")))
                t.wait_collective((yield Meet("all_reduce", 1 << 20, us(100), line, f"dp{line}")))
                t.sync()

    truth = compare_traces([(rank, t.load()) for rank, t in enumerate(run_ranks(build, 4))])
    made = run_ranks(build, 4)
    for rank, t in enumerate(made):
        for event in t.events:
            event["ts"] += ms((0, 7, -40, 33)[rank])
    report = compare_traces([(rank, t.load()) for rank, t in enumerate(made)])
    assert (report.straggler, report.clock) == (2, Clock.ALIGNED)
    for name in ("total_wait_ns", "last"):
        assert dict(report.ranks.select("rank", name).iter_rows()) == pytest.approx(
            dict(truth.ranks.select("rank", name).iter_rows()), abs=us(1)
        )


def test_groups_of_one_name_are_told_apart_by_their_ranks():
    made = []
    for rank in range(4):
        pair = [0, 1] if rank < 2 else [2, 3]
        t = GpuTrace(rank=rank, world_size=4, device=rank)
        about = {
            "Collective name": "allreduce",
            "In msg nelems": 1000,
            "Out msg nelems": 1000,
            "Group size": 2,
            "dtype": "Float",
            "Process Group Name": "tp",
            "Process Group Ranks": str(pair),
        }
        with t.step(dur_ns=ms(100)):
            late = {0: 0, 1: 5, 2: 40, 3: 43}[rank]
            t.python(ms(late))
            t.launch("ncclKernel", ms(1 + {0: 5, 2: 3}.get(rank, 0)), stream=20, **about)
        made.append((rank, t.load()))
    report = compare_traces(made)
    assert report.sets["ranks"].to_list() == [2, 2]
    assert report.sets["last_rank"].to_list() == [1, 3]
    assert report.sets["spread_ns"].to_list() == [ms(5), ms(3)]


def test_the_recorders_sequence_numbers_go_before_order():
    made = []
    for rank in range(2):
        t = GpuTrace(rank=rank, world_size=2, device=rank)
        with t.step():
            for number in [7, 8] if rank == 0 else [8, 9]:
                about = {"Collective name": "allreduce", "Seq": number, "Process Group Name": "0"}
                t.launch("ncclKernel", us(50), stream=20, **about)
        made.append((rank, t.load()))
    report = compare_traces(made)
    assert report.matched_by == BY_SEQUENCE
    assert report.sets["number"].to_list() == [8]


def test_scope_and_refusals():
    ranks = job([10, 30])
    assert len(compare_traces(ranks, Scope(steps=(2,))).sets) == 1
    with pytest.raises(UsageError, match="two or more"):
        compare_traces(ranks[:1])
    with pytest.raises(UsageError, match="rank 0 is given twice"):
        compare_traces([ranks[0], ranks[0]])


def test_no_collectives_no_straggler():
    made = []
    for rank in range(2):
        t = GpuTrace(rank=rank)
        with t.step():
            t.op("aten::mm").launch("gemm", us(10))
        made.append((rank, t.load()))
    report = compare_traces(made)
    assert report.straggler is None
    assert report.sets.is_empty()


def test_traces_of_jobs_of_different_sizes_are_refused():
    (first, one), (_, other) = job([10, 20])[0], job([10, 20, 30])[1]
    with pytest.raises(UsageError, match="no ranks of one run: rank 0 is one of 2, rank 1 is one"):
        compare_traces([(first, one), (1, other)])


def test_ends_that_no_offset_brings_together_name_no_straggler():
    """Two runs taken for one: their steps last differently, so that no offset fits."""
    made = []
    for rank, step_ns in enumerate((ms(100), ms(130))):
        t = GpuTrace(rank=rank, world_size=2, device=rank)
        for _ in range(6):
            with t.step(dur_ns=step_ns):
                t.collective("all_reduce", 1 << 20, ms(1))
        made.append((rank, t.load()))
    report = compare_traces(made)
    assert report.clock is Clock.ALIGNED
    assert (report.straggler, report.fits) == (None, False)


@pytest.mark.parametrize(
    ("delays_ms", "last"),
    [
        pytest.param((0, 3, 3), [0, 6, 6], id="each that comes when the last does"),
        pytest.param((3, 3, 3), [0, 0, 0], id="none where all come together"),
    ],
)
def test_ranks_come_last_where_others_wait_for_them(delays_ms, last):
    ranks = [(rank, rank_of_job(rank, delays_ms, layers=2).load()) for rank in range(3)]
    table = compare_traces(ranks, clock=Clock.RECORDED).ranks.sort("rank")
    assert table["sets"].to_list() == [6, 6, 6]
    assert table["last"].to_list() == last
