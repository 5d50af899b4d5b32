"""Who makes whom wait, from traces: planted causes, inherited delays, what cannot be compared."""

from __future__ import annotations

import pickle
from dataclasses import replace

import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.ranks_that_wait import meet, steady_step_ns
from tests.support.stragglers import find_stragglers

from stepscope.analysis.ranks.clocks import Clock
from stepscope.errors import UsageError
from stepscope.fleet.job import put_together, read_part
from stepscope.fleet.stragglers import CAUSES, RANKS, stragglers_of_job

EXTRA = ms(12)
PLANTED = {
    "input": lambda t: t.data_wait(EXTRA),
    "compute": lambda t: t.op("aten::mm").launch("ampere_sgemm_128x64_nn", EXTRA),
    "garbage collection": lambda t: t.gc_pause(EXTRA),
    "host": lambda t: t.python(EXTRA),
}


def job(late_rank=None, cause="input", *, ranks=4, steps=4, start_ns=None, step_ms=100):
    """Ranks that meet once a step; one of them is late for a known reason.

    After the meeting each reads what it gave, so that the hosts wait too, and does equally much.
    """
    made = []
    for rank in range(ranks):
        start = 1_000_000_000 + (start_ns[rank] if start_ns else 0)
        t = GpuTrace(rank=rank, world_size=ranks, device=rank, start_ns=start)
        for _ in range(steps):
            with t.step(dur_ns=ms(step_ms)):
                t.data_wait(ms(2))
                t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(5))
                t.sync()
                if rank == late_rank:
                    PLANTED[cause](t)
                    t.sync()
                # What is launched after a synchronisation starts when it is launched.
                waits = ms(1) if rank == late_rank or late_rank is None else ms(1) + EXTRA
                t.collective("all_reduce", 1 << 20, waits)
                t.sync()
        made.append((rank, t.load()))
    return made


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cause", PLANTED)
@pytest.mark.parametrize("late_rank", [0, 3])
def test_the_right_rank_and_the_right_cause_come_first(late_rank, cause):
    report = find_stragglers(job(late_rank, cause))
    assert report.ranks.columns == list(RANKS)
    assert report.causes.columns == list(CAUSES)
    assert report.straggler == late_rank
    first = report.ranks.row(0, named=True)
    assert (first["rank"], first["cause"]) == (late_rank, cause)
    assert (first["last_arrivals"], first["collectives"]) == (4, 4)
    # Three others wait for it in each of four steps.
    assert first["caused_wait_ns"] == pytest.approx(3 * 4 * EXTRA, rel=0.02)
    worst = report.causes.row(0, named=True)
    assert (worst["rank"], worst["cause"], worst["is_notable"]) == (late_rank, cause, True)
    assert worst["gain_ns"] == pytest.approx(EXTRA, rel=0.02)
    assert f"rank {late_rank}" in report.verdict
    assert report.ranks["caused_wait_ns"].sum() <= report.waits_ns


BUCKETS = 5


def overlapped_job(bucket_ms=lambda rank, bucket: 3, *, transfer_ms=1, input_ms=(0, 0, 0, 0)):
    """Data-parallel ranks whose all-reduces run beside the rest of the backward pass."""

    def build(rank, length):
        t = GpuTrace(rank=rank, world_size=4, device=rank)
        for _ in range(OVERLAPPED_STEPS):
            with t.step():
                t.data_wait(ms(input_ms[rank]))
                t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(8))
                for bucket in range(BUCKETS):
                    t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(bucket_ms(rank, bucket)))
                    reduced = t.collective("all_reduce", 50 << 20, length)
                t.wait_collective(reduced)
                t.op("aten::_fused_adamw_").launch("multi_tensor_apply_kernel", ms(1))
                t.item()
        return t

    return meet(build, 4, ms(transfer_ms))


OVERLAPPED_STEPS = 8
SLOW_BUCKETS = {
    "all": lambda rank, bucket: 4 if rank == 2 else 3,
    "first": lambda rank, bucket: 8 if (rank, bucket) == (2, 0) else 3,
    "last": lambda rank, bucket: 8 if (rank, bucket) == (2, BUCKETS - 1) else 3,
    "uneven": lambda rank, bucket: 3 + (7 * rank + 3 * bucket) % 4 / 10 + (rank == 2),
}


def gain_of(slow, mended):
    steps = [max(steady_step_ns(t, 1, OVERLAPPED_STEPS - 1) for t in job) for job in (slow, mended)]
    return steps[0] - steps[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("transfer_ms", [0.5, 2.5, 4])
@pytest.mark.parametrize("which", SLOW_BUCKETS)
def test_the_gain_with_overlapped_buckets_is_what_the_job_gains(which, transfer_ms):
    """The other ranks do several buckets beside one wait, and the network may be what takes most.

    Where transfers take longer than computing, the late rank hides most of its delay behind them.
    """
    bucket_ms = SLOW_BUCKETS[which]
    usual_ms = {"uneven": lambda rank, bucket: bucket_ms(rank, bucket) - (rank == 2)}
    slow = overlapped_job(bucket_ms, transfer_ms=transfer_ms)
    mended = overlapped_job(usual_ms.get(which, lambda *_: 3), transfer_ms=transfer_ms)
    report = find_stragglers([(rank, t.load()) for rank, t in enumerate(slow)])
    first = report.causes.row(0, named=True)
    assert (first["rank"], first["cause"]) == (2, "compute")
    assert first["gain_ns"] == pytest.approx(gain_of(slow, mended), rel=0.1, abs=us(20))


def test_what_others_compute_beside_their_waits_is_no_cause():
    """Rank 2 waits for its input, and has buckets left to do that others do while they wait."""
    slow, mended = overlapped_job(input_ms=(0, 0, 8, 0)), overlapped_job()
    report = find_stragglers([(rank, t.load()) for rank, t in enumerate(slow)])
    stragglers = report.causes.filter("is_notable")
    assert stragglers.select("rank", "cause").rows() == [(2, "input")]
    assert stragglers["gain_ns"][0] == pytest.approx(gain_of(slow, mended), rel=0.05)
    of_compute = report.causes.filter(pl.col("cause") == "compute")["caused_wait_ns"].sum()
    assert of_compute < 0.02 * stragglers["caused_wait_ns"][0]


def grouped_job(pairs, slow_ms):
    """Ranks that reduce in pairs, and all together at the end; the last pair's link may be slow."""
    steps, layers = 6, 4
    made = []
    for rank in range(2 * pairs):
        t = GpuTrace(rank=rank, world_size=2 * pairs, device=rank)
        own = [rank - rank % 2, rank - rank % 2 + 1]
        is_slow = own[0] == 2 * pairs - 2
        for step in range(steps):
            with t.step():
                for layer in range(layers):
                    t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(4))
                    length = ms(slow_ms if is_slow else 1) + us((step + layer) % 3)
                    reduced = t.collective(
                        "all_reduce", 50 << 20, length, group_name=str(own[0]), group_ranks=own
                    )
                    t.wait_collective(reduced)
                waiting = 0 if is_slow else layers * ms(slow_ms - 1)
                reduced = t.collective("all_reduce", 1 << 20, ms(1) + waiting, group_name="all")
                t.wait_collective(reduced).sync()
        made.append((rank, t.load()))
    return made, layers


@pytest.mark.parametrize("pairs", [2, 3])
def test_a_slow_link_is_named_even_where_half_of_the_groups_have_one(pairs):
    made, layers = grouped_job(pairs, 6)
    report = find_stragglers(made)
    (slow,) = report.causes.filter("is_notable").to_dicts()
    assert (slow["rank"], slow["cause"]) == (2 * pairs - 2, "slow link")
    assert slow["indistinguishable_from"] == [2 * pairs - 1]
    assert slow["gain_ns"] == pytest.approx(layers * ms(5), rel=0.02)
    assert report.verdict.startswith(
        f"ranks {2 * pairs - 2}, {2 * pairs - 1} make the others wait: their transfers are"
    )
    assert report.straggler is None
    healthy, _ = grouped_job(pairs, 1)
    assert not find_stragglers(healthy).causes["is_notable"].any()


def test_slow_transfers_of_all_ranks_accuse_none():
    """Every second transfer of the only group is slow: that says nothing about its members."""
    steps = 8
    made = []
    for rank in range(4):
        t = GpuTrace(rank=rank, world_size=4, device=rank)
        for step in range(steps):
            with t.step():
                t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(8))
                t.wait_collective(
                    t.collective("all_reduce", 1 << 20, ms(1 + 5 * (step % 2)))
                ).sync()
        made.append((rank, t.load()))
    report = find_stragglers(made)
    (slow,) = report.causes.filter("is_notable").to_dicts()
    assert (slow["cause"], slow["indistinguishable_from"]) == ("slow link", [1, 2, 3])
    # Usual is 1 ms, so that half of the steps would take 5 ms less.
    assert slow["gain_ns"] == pytest.approx(ms(5) / 2, rel=0.02)
    assert report.verdict.startswith(
        "transfers are slow at times, and no rank stands out as the cause. "
        "Without that a step would take 2.50 ms less"
    )


def test_a_healthy_job_accuses_nobody():
    report = find_stragglers(job())
    assert not report.causes["is_notable"].any()
    assert report.verdict == "no rank makes the others wait for an unusual reason"
    # A rank is named only where one is accused, however the waits happen to be distributed.
    assert report.straggler is None


def test_clocks_that_differ_are_brought_together():
    off = [0, ms(40), -ms(300), ms(7)]
    report = find_stragglers(job(2, "compute", start_ns=off))
    assert report.clock is Clock.ALIGNED
    assert report.straggler == 2
    rows = {row["rank"]: row for row in report.ranks.iter_rows(named=True)}
    # One collective takes a millisecond: no difference of exits is longer.
    assert all(abs(rows[rank]["offset_ns"] - off[rank]) < ms(1) for rank in range(4))
    assert all(rows[rank]["clock_error_ns"] >= 0 for rank in range(4))
    assert rows[2]["last_arrivals"] == 4


@pytest.mark.parametrize("off", [[0, 0, 0, 0], [0, ms(40), 0, 0], [0, 0, -ms(300), ms(7)]])
def test_groups_that_nothing_connects_are_taken_to_begin_together(off):
    made = []
    for rank in range(4):
        t = GpuTrace(rank=rank, world_size=4, device=rank, start_ns=1_000_000_000 + off[rank])
        for _ in range(4):
            with t.step(dur_ns=ms(30)):
                t.op("aten::mm").launch("gemm", ms(5) + (EXTRA if rank == 3 else 0))
                t.sync()
                pair = [0, 1] if rank < 2 else [2, 3]
                waits = ms(1) + (EXTRA if rank == 2 else 0)
                t.collective("all_reduce", 1 << 20, waits, group_ranks=pair)
                t.sync()
        made.append((rank, t.load()))
    report = find_stragglers(made)
    assert report.straggler == 3
    assert report.causes["rank"][0] == 3
    # From the first arrival to the last end: four steps less what comes before and after.
    assert ms(22) < report.step_ns < ms(30)


def inherited():
    """Rank 0 is slow. Rank 1 waits for it in a group of two, and is then late for rank 2 and 3.

    The last to arrive in the group of all is rank 1 as often as rank 0.
    """
    made = []
    pairs = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    for rank in range(4):
        t = GpuTrace(rank=rank, world_size=4, device=rank)
        for _ in range(4):
            with t.step(dur_ns=ms(100)):
                t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(5))
                t.sync()
                if rank == 0:
                    t.python(EXTRA)
                pair = ms(1) + (EXTRA if rank == 1 else 0)
                t.collective(
                    "all_reduce",
                    1 << 10,
                    pair,
                    group_name=str(pairs[rank][0]),
                    group_ranks=pairs[rank],
                )
                t.sync()
                # Rank 1 is always a little later than rank 0.
                t.python(us(200 if rank == 1 else 100))
                everyone = ms(1) + (EXTRA + us(100) if rank > 1 else us(100) if rank == 0 else 0)
                t.collective("all_reduce", 1 << 20, everyone, group_name="9")
                t.sync()
        made.append((rank, t.load()))
    return made


def test_an_inherited_delay_is_passed_back():
    report = find_stragglers(inherited())
    by_all = report.sets.filter(pl.col("ranks") == 4)
    assert by_all["last_rank"].to_list() == [1] * 4
    assert report.straggler == 0
    worst = report.causes.row(0, named=True)
    assert (worst["rank"], worst["cause"]) == (0, "host")
    # Rank 1 waits for it in the pair, the other two in the group of all.
    blamed = dict(report.ranks.select("rank", "caused_wait_ns").iter_rows())
    assert blamed[0] == pytest.approx(3 * 4 * EXTRA, rel=0.05)
    assert blamed[1] < blamed[0] / 20
    names = report.groups.select("dimension", "collectives").sort("dimension").rows()
    assert names == [("2 ranks, 1 apart", 4), ("2 ranks, 1 apart", 4), ("world", 4)]


def test_a_missing_rank_is_tolerated():
    made = job(3, "input")
    report = find_stragglers([made[0], made[1], made[3]])
    assert report.straggler == 3
    assert report.causes["cause"][0] == "input"


def test_what_is_of_another_job_is_refused_or_accuses_nobody():
    with pytest.raises(UsageError, match="no ranks of one run"):
        find_stragglers([job()[0], job(ranks=2)[1]])
    # The same kinds in the same order, of another run: other waits, other clocks.
    other = job(1, "host", start_ns=[0, ms(977), 0, 0], step_ms=433)
    report = find_stragglers([job(3)[0], other[1]])
    assert report.straggler is None
    assert not len(report.causes)
    assert "nobody is accused" in report.verdict


def test_arrivals_of_ranks_may_be_sent_and_compared_elsewhere():
    made = job(1, "garbage collection")
    parts = [read_part(f"rank{rank}", rank, rank, trace, None) for rank, trace in made]
    sent = pickle.loads(pickle.dumps([replace(part, steady=()) for part in parts]))
    ours, theirs = stragglers_of_job(put_together(sent, {})), find_stragglers(made)
    for name in ("ranks", "causes", "groups", "sets", "arrivals"):
        assert getattr(ours, name).equals(getattr(theirs, name)), name
    steady = [replace(part, steady=(2,)) for part in sent]
    one_step = stragglers_of_job(put_together(steady, {}))
    assert one_step.sets["step"].to_list() == [2]


def hosts(host_ms, *, beside=True, steps=8):
    """Ranks whose hosts launch one bucket after the other and wait for the GPU once a step.

    Args:
        host_ms: Of each rank, what its host takes to launch the work of a bucket.
        beside: Whether the host goes on while a bucket is reduced, or waits for each.
        steps: How many there are.
    """

    def build(rank, length):
        t = GpuTrace(rank=rank, world_size=len(host_ms), device=rank)
        for _ in range(steps):
            with t.step():
                for _ in range(4):
                    t.python(ms(host_ms[rank]))
                    t.op("aten::mm").launch("ampere_sgemm_128x64_nn", us(200))
                    t.collective("all_reduce", 25 << 20, length)
                    if not beside:
                        t.sync()
                t.sync()
                t.op("aten::_fused_adamw_").launch("multi_tensor_apply_kernel", us(200))
                t.python(ms(2))
        return t

    return meet(build, len(host_ms), us(300))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(
    ("host_ms", "without"),
    [
        ([4, 4, 4, 6], [4, 4, 4, 4]),
        ([4, 4, 5.5, 6], [4, 4, 5.5, 4]),  # the next one is nearly as slow
        ([3, 6, 3, 3, 3], [3, 3, 3, 3, 3]),
    ],
)
def test_hosts_that_go_on_beside_collectives_are_not_gained(host_ms, without, beside):
    """The job without the plant is the judge: hosts launch on while their GPUs wait."""
    slow, fast = hosts(host_ms, beside=beside), hosts(without, beside=beside)
    true_ns = max(steady_step_ns(t, 0, 7) for t in slow)
    true_ns -= max(steady_step_ns(t, 0, 7) for t in fast)
    late = host_ms.index(max(host_ms))
    report = find_stragglers([(rank, t.load()) for rank, t in enumerate(slow)])
    gain = report.causes.filter(pl.col("rank") == late, pl.col("cause") == "host")["gain_ns"][0]
    assert true_ns > ms(1.5)
    assert gain == pytest.approx(true_ns, rel=0.1)


def test_a_late_rank_gains_nothing_where_all_hosts_are_as_slow():
    """A rank stays 6 ms behind; hosts do as much on all, and never wait for the GPU."""

    def build(rank, length):
        t = GpuTrace(rank=rank, world_size=3, device=rank)
        for _ in range(12):
            with t.step():
                # The late rank takes its time before the first bucket, the others after it.
                t.python(ms(10 if rank == 2 else 4))
                t.collective("all_reduce", 25 << 20, length)
                t.python(ms(4 if rank == 2 else 10))
        return t

    traces = meet(build, 3, us(300))
    report = find_stragglers([(rank, t.load()) for rank, t in enumerate(traces)])
    late = report.causes.filter(rank=2)
    assert late["caused_wait_ns"].max() >= ms(2 * 11 * 6) * 0.9
    # What it is behind is lost once, as a late start is, and not in each of twelve steps.
    assert late["gain_ns"].max() <= ms(6) / 12 + us(50)
