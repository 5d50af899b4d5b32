"""Who made whom wait: planted problems, exact accounts, and chains followed another way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fleet_jobs import (
    LATE_START,
    PROBLEMS,
    SLOW_LINK,
    Grid,
    Problem,
    grid_of,
    random_problem,
    simulate,
)

from stepscope.analysis.blame.delays import Delays, pass_back
from stepscope.analysis.blame.matched import (
    CIRCULAR,
    NOT_SYNCHRONISING,
    Matched,
    match,
)
from stepscope.analysis.blame.report import Blame, find_blame
from stepscope.analysis.blame.usual import Usual, find_usual

SQUARE = Grid(1, 2, 1, 1, 2, steps=5, micro_batches=2)
"""Ranks 0 1 / 2 3: rows meet over tensor, columns over data."""


def blame_of(grid: Grid, seed: int, problem: Problem | None) -> Blame:
    job = simulate(grid, seed, problem)
    return find_blame(match(job.arrivals, job.groups))


@pytest.mark.sampled(13)
@pytest.mark.parametrize("seed", range(36))
def test_the_planted_rank_and_cause_come_first(seed: int) -> None:
    grid = grid_of(64)
    problem = random_problem(grid, seed)
    blame = blame_of(grid, seed, problem)
    first = blame.causes.row(0, named=True)
    assert (first["rank"], first["cause"]) == (problem.rank, problem.kind)
    assert blame.stragglers.row(0, named=True) == first
    assert blame.ranks["rank"][0] == problem.rank
    assert blame.ranks["cause"][0] == problem.kind


def test_what_follows_follows_though_rounding_lets_it_seem_to_begin_before() -> None:
    """Traces have whole microseconds, or thousandths of them: one may begin before its previous."""
    job = simulate(SQUARE, 3, None)
    ends = pl.col("start_ns").shift(-1).over("rank", order_by="start_ns") + 1
    tight = job.arrivals.with_columns(end_ns=ends.fill_null(pl.col("end_ns")))
    previous = match(tight, job.groups).previous
    assert (previous[previous >= 0] == np.flatnonzero(previous >= 0) - 1).all()
    assert np.count_nonzero(previous < 0) == SQUARE.ranks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_the_planted_rank_among_a_thousand(seed: int) -> None:
    grid = grid_of(1024)
    problem = random_problem(grid, seed)
    first = blame_of(grid, seed, problem).causes.row(0, named=True)
    assert (first["rank"], first["cause"]) == (problem.rank, problem.kind)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # half a minute of a processor, which may be busy
@pytest.mark.parametrize("kind", PROBLEMS)
def test_in_200_jobs_of_each_kind_at_least_95_of_100_are_right(kind: str) -> None:
    grid = grid_of(64)
    wrong = []
    for seed in range(200):
        problem = random_problem(grid, seed, [kind])
        first = blame_of(grid, seed, problem).causes.row(0, named=True)
        if (first["rank"], first["cause"]) != (problem.rank, kind):
            wrong.append((seed, problem, first))
    assert len(wrong) <= 0.05 * 200, wrong


@pytest.mark.parametrize("ranks", [4, 8, 16, 64])
def test_healthy_jobs_accuse_nobody(ranks: int) -> None:
    for seed in range(10):
        blame = blame_of(grid_of(ranks), seed, None)
        assert blame.stragglers.is_empty()
        assert blame.waits_ns > 0


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_gain_is_what_the_job_is_faster_by_without_the_problem(kind: str) -> None:
    # What comes before the first collective is not seen: of twelve steps, that matters little.
    grid = grid_of(64, steps=12)
    share = {LATE_START: 2.0, SLOW_LINK: 6.0}.get(kind, 0.25)
    problem = Problem(kind, 37, share)
    slow, healthy = simulate(grid, 11, problem), simulate(grid, 11)
    matched = match(slow.arrivals, slow.groups)
    # First arrivals are compared between ranks, so their clocks enter.
    offset = slow.offset_ns + slow.drift * (slow.true_end_ns.min() - slow.true_end_ns.mean())
    blame = find_blame(matched, np.rint(offset).astype(np.int64)[matched.rank])
    first = blame.stragglers.row(0, named=True)
    assert (first["rank"], first["cause"]) == (37, kind)
    assert first["gain_ns"] == pytest.approx(slow.step_ns - healthy.step_ns, rel=0.1)


@pytest.mark.parametrize("kind", sorted(set(PROBLEMS) - {LATE_START, SLOW_LINK}))
def test_what_another_cause_explains_is_not_gained_again_as_a_late_start(kind: str) -> None:
    job = simulate(grid_of(16), 1, Problem(kind, 5, 0.5))
    causes = find_blame(match(job.arrivals, job.groups)).causes
    late = causes.filter(pl.col("cause") == LATE_START, pl.col("rank") == 5)
    planted = causes.row(0, named=True)
    assert (planted["rank"], planted["cause"]) == (5, kind)
    assert len(late) == 1
    assert (late["gain_ns"] < 0.01 * planted["gain_ns"]).all(), late


@settings(max_examples=40)
@given(
    slower=st.floats(1.15, 2.0),
    transfer_ms=st.floats(0.1, 3.0),
    buckets=st.lists(st.floats(0.5, 6.0), min_size=1, max_size=6),
    forward_ms=st.floats(0.5, 20.0),
)
def test_no_gain_exceeds_what_the_others_compute_beside_their_waits(
    slower: float, transfer_ms: float, buckets: list[float], forward_ms: float
) -> None:
    """Gradients are reduced bucket by bucket on a stream of their own, while backward goes on."""
    work_ns = [round(one * 1e6) for one in (forward_ms, *buckets)]
    arrivals, groups, slow_ns = overlapped(work_ns, round(transfer_ms * 1e6), slower)
    *_, usual_ns = overlapped(work_ns, round(transfer_ms * 1e6), 1.0)
    blame = find_blame(match(arrivals, groups))
    first = blame.causes.row(0, named=True)
    assert (first["rank"], first["cause"]) == (2, "compute")
    true_ns = slow_ns - usual_ns
    # The first step's forward pass lies before the first collective, and is not replayed.
    assert first["gain_ns"] <= true_ns + 1_000
    # A rank may get done beside one collective what only the one after next needs.
    assert first["gain_ns"] >= 0.8 * true_ns * (STEPS - 1) / STEPS - 1e6 * transfer_ms * len(
        buckets
    )


STEPS = 20


def overlapped(
    work_ns: list[int], transfer_ns: int, slower: float
) -> tuple[pl.DataFrame, pl.DataFrame, float]:
    """Four ranks, of which rank 2 computes more slowly; arrivals, groups and the mean step."""
    ranks = range(4)
    pace = [slower if rank == 2 else 1.0 for rank in ranks]
    done = [0.0] * 4  # when each rank's compute stream is done
    free = 0.0  # when the last collective ended
    rows: list[dict[str, object]] = []
    busy: list[list[tuple[float, float]]] = [[] for _ in ranks]
    last = [0.0] * 4

    def compute(rank: int, amount_ns: float) -> None:
        busy[rank].append((done[rank], done[rank] + amount_ns * pace[rank]))
        done[rank] = busy[rank][-1][1]

    def within(rank: int, start: float, end: float) -> int:
        # What a rank computes stands in order: all other parts of it would add nothing.
        first = bisect_right(busy[rank], start, key=itemgetter(1))
        after = bisect_left(busy[rank], end, key=itemgetter(0))
        parts = busy[rank][first:after]
        return round(sum(max(0.0, min(end, b) - max(start, a)) for a, b in parts))

    meetings = []
    for step in range(STEPS):
        for rank in ranks:
            done[rank] = max(done[rank], free)  # the optimizer needed all gradients
            compute(rank, work_ns[0])
        for bucket in work_ns[1:]:
            for rank in ranks:
                compute(rank, bucket)
            starts = [max(done[rank], free) for rank in ranks]
            free = max(starts) + transfer_ns
            meetings.append((step, starts, free))
    for number, (step, starts, end) in enumerate(meetings):
        for rank in ranks:
            rows.append(
                {
                    "rank": rank, "group": 0, "number": number, "kind": "all_reduce",
                    "step": step, "message_bytes": 1 << 20,
                    "start_ns": round(starts[rank]), "end_ns": round(end),
                    "local_compute_ns": within(rank, last[rank], starts[rank]),
                    "beside_ns": within(rank, starts[rank], end),
                }
            )  # fmt: skip
            last[rank] = end
    groups = pl.DataFrame(
        {"group": [0], "name": ["0"], "dimension": ["data"], "ranks": [list(ranks)]}
    )
    return pl.DataFrame(rows), groups, free / STEPS


def test_the_latest_is_not_accused_of_what_it_inherited() -> None:
    problem = Problem("host", 0, 0.3)
    job = simulate(SQUARE, 3, problem)
    matched = match(job.arrivals, job.groups)
    # Rank 1 waits for rank 0 over tensor, and is then the last over data, where rank 3 waits.
    data = {
        int(matched.group[meeting])
        for meeting in np.flatnonzero((matched.dimension == "data").to_numpy())
        if 1 in matched.ranks[matched.rank[matched.rows[_members(matched, meeting)]]]
    }
    last_over_data = matched.rank[matched.last_row[np.isin(matched.group, list(data))]]
    assert set(last_over_data.tolist()) == {1}
    blame = find_blame(matched)
    assert blame.ranks.filter(pl.col("rank") == 1)["last_arrivals"][0] > 0
    assert blame.stragglers.select("rank", "cause").rows() == [(0, "host")]
    by_rank = dict(blame.ranks.select("rank", "caused_wait_ns").iter_rows())
    assert by_rank[1] < 0.1 * by_rank[0]


def test_clocks_do_not_enter() -> None:
    problem = Problem("compute", 5, 0.2)
    apart = simulate(grid_of(16), 9, problem, offset_ms=5_000)
    together = simulate(grid_of(16), 9, problem, offset_ms=0, drift_ppm=0)
    found, expected = (
        find_blame(match(job.arrivals, job.groups)).ranks for job in (apart, together)
    )
    assert found["rank"].to_list() == expected["rank"].to_list()
    # What differs is drift within single collectives, and rounding.
    assert found["caused_wait_ns"].to_numpy() == pytest.approx(
        expected["caused_wait_ns"].to_numpy(), rel=0.02, abs=50_000
    )


@settings(max_examples=15, deadline=None)
@given(
    shape=st.sampled_from([(1, 4, 1, 1, 1), (2, 2, 1, 1, 2), (3, 1, 1, 2, 2), (1, 2, 2, 1, 1)]),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(PROBLEMS),
)
def test_all_waits_are_accounted_for_exactly(shape: tuple[int, ...], seed: int, kind: str) -> None:
    job = simulate(Grid(*shape, steps=3), seed, Problem(kind, 0, 0.3))
    matched = match(job.arrivals, job.groups)
    usual = find_usual(matched)
    delays = pass_back(matched, usual)
    waits = matched.wait_ns
    parts = delays.work_ns.sum() + delays.transfer_ns.sum() + delays.unexplained_ns.sum()
    assert parts == pytest.approx(waits[waits >= 1_000].sum(), abs=len(waits) * 8)
    assert (delays.work_ns >= 0).all()
    assert (delays.unexplained_ns >= 0).all()


@settings(max_examples=15, deadline=None)
@given(
    shape=st.sampled_from([(1, 4, 1, 1, 1), (2, 2, 1, 1, 2), (3, 1, 1, 2, 2), (1, 2, 2, 1, 1)]),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(PROBLEMS),
)
def test_chains_followed_another_way_give_the_same(
    shape: tuple[int, ...], seed: int, kind: str
) -> None:
    job = simulate(Grid(*shape, steps=3), seed, Problem(kind, 0, 0.3))
    matched = match(job.arrivals, job.groups)
    usual = find_usual(matched)
    ours, theirs = pass_back(matched, usual), passed_back_slowly(matched, usual)
    assert np.abs(ours.work_ns - theirs.work_ns).max() <= 1
    assert np.abs(ours.transfer_ns - theirs.transfer_ns).max() <= 1
    assert np.abs(ours.unexplained_ns - theirs.unexplained_ns).max() <= 1


def _members(matched: Matched, meeting: int) -> slice:
    return slice(int(matched.first_row[meeting]), int(matched.first_row[meeting + 1]))


def passed_back_slowly(matched: Matched, usual: Usual) -> Delays:
    """The same definition with whole chains as lists, and sets for what both have in common."""
    late_start = pass_back(matched, usual).late_start_ns
    work = np.zeros((len(matched.rank), len(matched.causes) + 1))
    transfers = np.zeros(len(matched.transfer_ns))
    unexplained = np.zeros(len(matched.transfer_ns))

    def chain(row: int) -> list[int]:
        found = [row]
        while matched.previous[found[-1]] >= 0:
            found.append(int(matched.last_row[matched.collective[matched.previous[found[-1]]]]))
        return found

    for meeting, last in enumerate(matched.last_row):
        late = chain(int(last))
        for row in matched.rows[_members(matched, meeting)]:
            wait = int(matched.wait_ns[row])
            if row == last or wait < 1_000:
                continue
            # The collectives that the waiting member's chain passes through, this one aside.
            passed = {int(matched.collective[link]) for link in chain(int(row))[1:]}
            own = [late[0]]
            for link in late[1:]:
                if int(matched.collective[link]) in passed:
                    break
                own.append(link)
            excess = [usual.excess_ns[link].sum() for link in own]
            moves = [usual.transfer_excess_ns[matched.collective[link]] for link in own[1:]]
            total = sum(excess) + sum(moves)
            part = min(1.0, wait / total) if total else 0.0
            for link in own:
                work[link, :-1] += part * usual.excess_ns[link]
            for link, move in zip(own[1:], moves, strict=True):
                transfers[matched.collective[link]] += part * move
            rest = max(wait - total, 0)
            work[own[-1], -1] += min(rest, late_start[own[-1]])
            unexplained[meeting] += max(rest - late_start[own[-1]], 0)
    return Delays(
        np.rint(work).astype(np.int64),
        np.rint(transfers).astype(np.int64),
        np.rint(unexplained).astype(np.int64),
        late_start,
    )


def test_the_map_by_step_shows_a_pause_where_it_was() -> None:
    problem = Problem("garbage_collection", 3, 0.4)
    job = simulate(grid_of(8), 4, problem)
    paused = (
        job.arrivals.filter(pl.col("rank") == 3)
        .group_by("step")
        .agg(pl.col("local_garbage_collection_ns").sum())
        .filter(pl.col("local_garbage_collection_ns") > 0)["step"]
        .sort()
    )
    blame = find_blame(match(job.arrivals, job.groups))
    own = blame.by_step.filter((pl.col("rank") == 3) & (pl.col("caused_wait_ns") > 10_000_000))
    assert own["step"].to_list() == paused.to_list()


def test_a_slow_link_that_one_group_has_names_all_its_members() -> None:
    grid = Grid(1, 4, 1, 1, 1, steps=40)
    job = simulate(grid, 1)
    # In some steps the only group's reductions take ten times as long: whose link is not told.
    slow = (pl.col("kind") == "reduce_scatter") & (pl.col("step") % 4 == 0)
    rows = job.arrivals.with_columns(
        end_ns=pl.when(slow).then(pl.col("end_ns") + 60_000_000).otherwise("end_ns")
    )
    later = (pl.col("step") * 15_000_000).cast(pl.Int64)  # what follows shifts with it
    rows = rows.with_columns(pl.col("start_ns") + later * 4, pl.col("end_ns") + later * 4)
    blame = find_blame(match(rows, job.groups))
    first = blame.stragglers.row(0, named=True)
    assert first["cause"] == SLOW_LINK
    assert sorted([first["rank"], *first["peers"]]) == [0, 1, 2, 3]


def test_what_cannot_be_matched_is_left_out_and_counted() -> None:
    job = simulate(grid_of(4), 0)
    rows = job.arrivals
    broadcast = rows.head(3).with_columns(kind=pl.lit("broadcast"))
    matched = match(pl.concat([rows, broadcast]), job.groups)
    assert matched.left_out == {NOT_SYNCHRONISING: 3}
    assert len(matched.rank) == len(rows)


def test_ranks_that_disagree_on_the_order_are_left_out() -> None:
    rows = pl.DataFrame(
        {
            "rank": [0, 0, 0, 1, 1, 1],
            "group": 0,
            "number": [0, 1, 2, 0, 2, 1],
            "kind": "all_reduce",
            "step": 0,
            "message_bytes": 8,
            "start_ns": [0, 100, 200, 0, 100, 200],
            "end_ns": [10, 110, 210, 10, 110, 210],
        }
    )
    groups = pl.DataFrame({"group": [0], "name": ["0"], "dimension": ["data"], "ranks": [[0, 1]]})
    matched = match(rows, groups)
    assert matched.left_out == {CIRCULAR: 4}
    assert len(matched.rank) == 2


def test_nothing_recorded_blames_nobody() -> None:
    job = simulate(grid_of(4), 0)
    blame = find_blame(match(job.arrivals.clear(), job.groups))
    assert blame.causes.is_empty()
    assert blame.stragglers.is_empty()
    assert blame.waits_ns == 0


def test_a_single_stall_accuses_nobody() -> None:
    """One pause of a rank in one of many steps is no straggler, though it is charged."""
    job = simulate(grid_of(8, steps=8), 5)
    stall_ns = 150_000_000
    place = (pl.col("rank") == 3) & (pl.col("step") == 4)
    hit = job.arrivals.filter(place).sort("start_ns").row(0, named=True)
    is_hit = place & (pl.col("start_ns") == hit["start_ns"])
    meeting = (pl.col("group") == hit["group"]) & (pl.col("number") == hit["number"])
    from_then = pl.col("start_ns") > hit["start_ns"]
    rows = job.arrivals.with_columns(
        # All that follows anywhere is later by the stall, and whoever met the rank waited for it.
        local_host_ns=pl.col("local_host_ns") + pl.when(is_hit).then(stall_ns).otherwise(0),
        end_ns=pl.col("end_ns") + pl.when(from_then | is_hit | meeting).then(stall_ns).otherwise(0),
        start_ns=pl.col("start_ns")
        + pl.when((from_then & ~meeting) | is_hit).then(stall_ns).otherwise(0),
    )
    blame = find_blame(match(rows, job.groups))
    assert (3, "host") in blame.causes.filter(pl.col("caused_wait_ns") > 0).select(
        "rank", "cause"
    ).rows()
    assert (3, "host") not in blame.stragglers.select("rank", "cause").rows()
