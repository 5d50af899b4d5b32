"""Which rank made the others wait, why, and what the job would gain without it.

Definitions
    Caused wait of a rank and cause: the waits of other ranks that are passed back to it
    (`delays.py`), summed over all of them: ten ranks that wait a second are ten seconds.
    Slow link: what a transfer takes beyond the usual is lost by each member, and passed on like
    any delay. It is charged to the member whose groups have the most of it in all: the one that
    all slow groups have in common. Where several have the same most, none can be distinguished from
    the others, and each is named.
    Gain: how much shorter the recording would be, replayed without the excess (`replay.py`),
    divided by the number of steps; or what a step is shorter by in the steady state
    (`gains.RepeatedSteps`), where that is known to be less by a fifth or more. A late start counts
    once in the recording, not in each step, and is nothing in the steady state.
    Stragglers: a rank and cause whose gain in the recording is at least a fiftieth of the mean
    step, and half of that in the steady state as well, and whose excess is more than chance gives
    (`beyond_chance.py`). Of computation in a few steps it is a twentieth: what slows a rank down
    for some steps, such as its clock, makes them alike, which that test takes for a habit.
    On healthy ranks somebody is always last, but not for long, and without that rank the next one
    is. A link is accused only if at least a fifth of the transfers in its slow groups take half as
    long again as usual, and five median deviations longer, and that happens more often than in the
    other groups of the dimension: single slow transfers happen on healthy links too, many on a
    machine that is busy with something else.
    A late start is accused only if the rank comes late by a step or more.
    Late together: of several ranks that stand out, fixing one alone brings little, because the next
    one is still late. If all of them together gain more than twice what the best does alone, these
    are the ranks without which the gain would be notably less.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.blame.beyond_chance import is_beyond_chance, is_more_often
from stepscope.analysis.blame.delays import Delays, pass_back
from stepscope.analysis.blame.gains import Gain, Gains
from stepscope.analysis.blame.matched import OF_THE_GPU, Matched, Numbers
from stepscope.analysis.blame.replay import Less, Replay
from stepscope.analysis.blame.usual import Usual, find_usual
from stepscope.skew.rank_causes import LATE_START, OTHER, SLOW_LINK

_NOTABLE_GAIN, _SURE_GAIN = 0.02, 0.01
"""Of a step: what must be gained in the recording, and in the steady state as well."""
_MANY_STEPS, _FEW_GAIN = 10, 0.05
"""What must be gained of computation in fewer steps: a rank's pace outlasts a step or two."""
_MOST_REPLAYED = 32
_MOST_TOGETHER = 16
_MORE_TOGETHER = 2
"""How many times what the best of them brings alone several ranks must bring more than."""
_SLOW = 0.5
"""A transfer is slow that exceeds the usual by this share of it."""
_BEYOND_NOISE = 5
"""And by more than this many median deviations of its like."""
_PERSISTENT = 0.2
"""A link is slow if this share of its transfers is."""

CAUSES: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "cause": pl.String,
    "caused_wait_ns": pl.Int64,  # of other ranks, summed over them
    "gain_ns": pl.Int64,  # per step; null where it was not worked out
    "peers": pl.List(pl.Int64),  # other ranks of which it might be as well, for slow links
}
"""One row per rank and cause with any caused wait, the greatest first."""

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "last_arrivals": pl.Int64,
    "collectives": pl.Int64,
    "waited_ns": pl.Int64,  # for others
    "caused_wait_ns": pl.Int64,  # of others
    "cause": pl.String,  # the one with most of it; null: none
}
"""One row per rank, the greatest caused wait first."""

GROUPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "group": pl.Int64,
    "name": pl.String,
    "dimension": pl.String,
    "collectives": pl.Int64,
    "waits_ns": pl.Int64,  # of all members
    "unexplained_ns": pl.Int64,  # part of these that nothing unusual caused
    "slow_transfer_ns": pl.Int64,  # beyond the usual, of one member
}
"""One row per process group, the longest waits first."""


@dataclass(frozen=True)
class Stragglers:
    """Ranks that make the others wait.

    Attributes:
        ranks: The rank; of a slow link all that it may be as well.
        cause: Why, by name; of several causes the main one.
        wait_ns: What another rank waits for them in a step, on average.
        gain_ns: What a step is shorter by without that.
    """

    ranks: tuple[int, ...]
    cause: str
    wait_ns: int
    gain_ns: int


@dataclass(frozen=True)
class LateTogether:
    """Ranks that have to be fixed together, or one of which several causes have to be.

    Attributes:
        cause: What they have in common, else `OTHER`; of one, what it has most of.
        caused_wait_ns: Of other ranks, summed over them.
        gain_ns: What a step is shorter by without what all of them have beyond the usual.
    """

    ranks: tuple[int, ...]
    cause: str
    caused_wait_ns: int
    gain_ns: int


@dataclass(frozen=True)
class Blame:
    """Who made whom wait.

    Attributes:
        by_step: Columns `rank`, `step`, `caused_wait_ns`, for a map; only where there is any.
        stragglers: Rows of `causes` that are worth acting on, the greatest gain first.
        unexplained_ns: What of them nothing unusual caused.
        step_ns: Mean step time, as replayed.
        together: Ranks that are late together; None where one of them explains the waits.
        whole: By accused rank with several causes that stand out: all of them together.
        excess_ns: By rank and cause, what its work takes in a step beyond the usual, on average.
    """

    causes: pl.DataFrame
    ranks: pl.DataFrame
    groups: pl.DataFrame
    by_step: pl.DataFrame
    stragglers: pl.DataFrame
    waits_ns: int
    unexplained_ns: int
    steps: int
    step_ns: float
    left_out: dict[str, int]
    together: LateTogether | None
    whole: Mapping[int, LateTogether]
    excess_ns: Mapping[int, Mapping[str, float]]
    usual: Usual
    gains: Gains


def find_blame(matched: Matched, clock_offset_ns: Numbers | None = None) -> Blame:
    """Finds who made whom wait, and why.

    Args:
        clock_offset_ns: Of each row, what its clock reads too much; only first arrivals need it,
            and only for gains.
    """
    usual = find_usual(matched)
    delays = pass_back(matched, usual)
    # By how much ranks came late to their first collective, without what other causes explain.
    late_ns = np.maximum(delays.late_start_ns - usual.excess_ns.sum(axis=1), 0)
    links = _Links(matched, usual, delays)
    table = pl.concat([_work_causes(matched, delays), links.table()]).sort(
        "caused_wait_ns", "rank", "cause", descending=[True, False, False]
    )
    gains = Gains(matched, Replay(matched, clock_offset_ns))
    steps, step_ns = gains.steps, gains.whole_ns / gains.steps
    found = [
        _gain(matched, usual, late_ns, links, gains, rank, cause)
        for rank, cause in table.head(_MOST_REPLAYED).select("rank", "cause").iter_rows()
    ]
    unknown = [None] * (len(table) - len(found))
    table = table.with_columns(
        gain_ns=pl.Series([round(one.sure_ns) for one in found] + unknown, dtype=pl.Int64),
        is_much=pl.Series([_is_much(one, step_ns) for one in found] + unknown, dtype=pl.Boolean),
    )
    gaining = table.filter("is_much").select(*CAUSES)
    table = table.select(pl.col(column).cast(dtype) for column, dtype in CAUSES.items())
    stands_out = [
        links.is_persistent(rank)
        if cause == SLOW_LINK
        else _stands_out(matched, usual, late_ns, step_ns, rank, cause)
        and (cause not in OF_THE_GPU or steps >= _MANY_STEPS or gain_ns >= _FEW_GAIN * step_ns)
        for rank, cause, gain_ns in gaining.select("rank", "cause", "gain_ns").iter_rows()
    ]
    stragglers = gaining.filter(pl.Series(stands_out, dtype=pl.Boolean)).sort(
        "gain_ns", "caused_wait_ns", "rank", descending=[True, True, False]
    )
    unusual = _Unusual(matched, usual, late_ns, gains, table)
    return Blame(
        table,
        _ranks(matched, table),
        _groups(matched, usual, delays),
        _by_step(matched, delays),
        stragglers,
        int(matched.wait_ns.sum()),
        int(delays.unexplained_ns.sum()),
        steps,
        step_ns,
        matched.left_out,
        unusual.late_together(max(stragglers["gain_ns"].to_list(), default=0)),
        unusual.whole_of(
            stragglers.filter(pl.col("cause").is_in(matched.causes))["rank"].to_list()
        ),
        unusual.excess_ns,
        usual,
        gains,
    )


class _Unusual:
    """What ranks have beyond the usual and beyond chance, to be taken away together."""

    def __init__(
        self, matched: Matched, usual: Usual, late_ns: Numbers, gains: Gains, causes: pl.DataFrame
    ) -> None:
        self._matched, self._usual, self._gains, self._causes = matched, usual, gains, causes
        self._step_ns = gains.whole_ns / gains.steps
        of_ranks = np.stack([matched.by_step(one).sum(axis=0) for one in usual.excess_ns.T], axis=1)
        self.excess_ns = {
            rank: {
                cause: ns / gains.steps
                for cause, ns in zip(matched.causes, of_rank, strict=True)
                if ns > 0
            }
            for rank, of_rank in zip(matched.ranks.tolist(), of_ranks.tolist(), strict=True)
        }
        # One that comes last but one each time makes nobody wait as long as the last one does.
        most = sorted(
            (
                (ns, rank, cause)
                for rank, of_rank in self.excess_ns.items()
                for cause, ns in of_rank.items()
                if ns >= _NOTABLE_GAIN * self._step_ns
            ),
            reverse=True,
        )
        self._late: dict[int, dict[str, float]] = {}
        for ns, rank, cause in most[:_MOST_REPLAYED]:
            if len(self._late) == _MOST_TOGETHER and rank not in self._late:
                continue
            if _stands_out(matched, usual, late_ns, self._step_ns, rank, cause):
                self._late.setdefault(rank, {})[cause] = ns

    def late_together(self, alone_ns: int) -> LateTogether | None:
        """Ranks that are late together; None where the best gains nearly as much alone."""
        late = self._late
        # Of most ranks, what they do is the usual.
        if len(late) < 2 or len(late) > len(self._matched.ranks) / 2:
            return None
        gain = self._gain_of(late)
        if not _is_much(gain, self._step_ns) or gain.sure_ns <= _MORE_TOGETHER * alone_ns:
            return None
        notable_ns = _NOTABLE_GAIN * self._step_ns
        without = {rank: self._gain_of(late.keys() - {rank}) for rank in late}
        needed = sorted(rank for rank in late if gain.sure_ns - without[rank].sure_ns >= notable_ns)
        return self._together(needed) if len(needed) > 1 else None

    def whole_of(self, stragglers: Collection[int]) -> dict[int, LateTogether]:
        """By accused rank with several causes: all of them together."""
        several = {rank for rank in stragglers if len(self._late.get(rank, ())) > 1}
        return {rank: self._together([rank]) for rank in sorted(several)}

    def _together(self, ranks: Sequence[int]) -> LateTogether:
        late = self._late
        main = {max(late[rank], key=late[rank].__getitem__) for rank in ranks}
        is_own = pl.col("rank").is_in(ranks) & pl.col("cause").is_in(self._matched.causes)
        return LateTogether(
            tuple(ranks),
            main.pop() if len(main) == 1 else OTHER,
            int(self._causes.filter(is_own)["caused_wait_ns"].sum()),
            round(self._gain_of(ranks).sure_ns),
        )

    def _gain_of(self, ranks: Collection[int]) -> Gain:
        matched = self._matched
        which = np.zeros(matched.local_ns.shape, np.bool_)
        for rank in ranks:
            late = [cause in self._late[rank] for cause in matched.causes]
            which |= matched.rows_of([rank])[:, None] & late
        return self._gains.of(self._usual.less(matched, which))


def late_starts(matched: Matched) -> dict[int, int]:
    """By rank: how long another rank waited for what it did before its first collective.

    The longest first.
    """
    delays = pass_back(matched, find_usual(matched))
    others = max(1, len(matched.ranks) - 1)
    first = matched.previous < 0
    caused = delays.work_ns[first].sum(axis=1)
    waits = np.bincount(matched.rank[first], caused, len(matched.ranks)) / others
    order = np.argsort(-waits, kind="stable").tolist()
    return {int(matched.ranks[at]): round(waits[at]) for at in order if waits[at] > 0}


def _work_causes(matched: Matched, delays: Delays) -> pl.DataFrame:
    names = (*matched.causes, LATE_START)
    count = len(matched.ranks)
    parts = []
    for place, name in enumerate(names):
        wait = np.bincount(matched.rank, delays.work_ns[:, place], count)
        parts.append(
            pl.DataFrame(
                {
                    "rank": matched.ranks,
                    "cause": pl.Series([name] * count, dtype=pl.String),
                    "caused_wait_ns": np.rint(wait).astype(np.int64),
                }
            )
        )
    table = pl.concat(parts).filter(pl.col("caused_wait_ns") > 0)
    return table.with_columns(peers=pl.lit(None, pl.List(pl.Int64)))


class _Links:
    """Slow transfers, charged to the ranks that they have in common."""

    def __init__(self, matched: Matched, usual: Usual, delays: Delays) -> None:
        members = np.diff(matched.first_row)
        lost = usual.transfer_excess_ns * members + delays.transfer_ns
        self._matched = matched
        of_row = np.zeros(len(matched.rank), np.int64)
        of_row[matched.rows] = np.repeat(lost, members)
        in_all = np.bincount(matched.rank, of_row, len(matched.ranks))
        # Each collective is charged to its members with the most in all.
        of_member = in_all[matched.rank][matched.rows]
        first = matched.first_row[:-1]
        most = np.repeat(np.maximum.reduceat(of_member, first), members) if len(lost) else of_member
        is_most = (of_member == most) & (np.repeat(lost, members) > 0)
        self._rows = matched.rows[is_most]
        self._lost = lost
        self._excess = usual.transfer_excess_ns
        self._spread = usual.transfer_spread_ns

    def table(self) -> pl.DataFrame:
        matched = self._matched
        found = (
            pl.DataFrame(
                {
                    "rank": matched.ranks[matched.rank[self._rows]],
                    "collective": matched.collective[self._rows],
                    "caused_wait_ns": self._lost[matched.collective[self._rows]],
                }
            )
            .group_by("rank")
            .agg(pl.col("caused_wait_ns").sum(), pl.col("collective").sort())
        )
        # Ranks that are charged with the same collectives cannot be told apart.
        alike = found.group_by("collective").agg(
            pl.col("rank").sort().alias("peers"), pl.col("caused_wait_ns").first()
        )
        return alike.select(
            pl.col("peers").list.first().alias("rank"),
            pl.lit(SLOW_LINK).alias("cause"),
            "caused_wait_ns",
            pl.col("peers").list.slice(1),
        ).filter(pl.col("caused_wait_ns") > 0)

    def is_persistent(self, rank: int) -> bool:
        charged = self.collectives_of(rank)
        if not len(charged):
            return False
        matched = self._matched
        usual = _SLOW * (matched.transfer_ns - self._excess)
        is_slow = self._excess > np.maximum(usual, _BEYOND_NOISE * self._spread)
        in_groups = np.isin(matched.group, matched.group[charged])
        # Groups that are slow once by chance do not excuse those that always are.
        lost = self._lost[in_groups].astype(np.float64)
        groups = matched.group[in_groups]
        slow, all_of = np.bincount(groups, is_slow[in_groups]), np.bincount(groups)
        shares = slow / np.maximum(all_of, 1)
        if np.average(shares[groups], weights=lost + 1e-9) < _PERSISTENT:
            return False
        # A group of all ranks cannot tell one of them from the others: prefer smaller groups.
        is_small = np.diff(matched.first_row)[in_groups] < len(matched.ranks)
        telling = is_small if is_small.any() else ~is_small
        worst = int(np.argmax(np.bincount(groups[telling], lost[telling])))
        dimension = matched.dimension.cast(pl.String)
        alike = ~in_groups & (dimension == matched.groups["dimension"][worst]).to_numpy()
        return is_more_often(
            int(slow[worst]), int(all_of[worst]), int(is_slow[alike].sum()), int(alike.sum())
        )

    def collectives_of(self, rank: int) -> Numbers:
        matched = self._matched
        own = matched.ranks[matched.rank[self._rows]] == rank
        found: Numbers = matched.collective[self._rows[own]]
        return found


def _stands_out(
    matched: Matched, usual: Usual, late_ns: Numbers, step_ns: float, rank: int, cause: str
) -> bool:
    if cause not in matched.causes:
        # A late start: only one rank can be the last to begin.
        return int(late_ns[matched.rows_of([rank])].max()) >= step_ns
    excess = matched.by_step(usual.excess_ns[:, matched.causes.index(cause)])
    place = matched.ranks.tolist().index(rank)
    return is_beyond_chance(excess, place, _NOTABLE_GAIN * step_ns)


def _is_much(gain: Gain, step_ns: float) -> bool:
    return gain.recorded_ns >= _NOTABLE_GAIN * step_ns and gain.sure_ns >= _SURE_GAIN * step_ns


def _gain(
    matched: Matched,
    usual: Usual,
    late_ns: Numbers,
    links: _Links,
    gains: Gains,
    rank: int,
    cause: str,
) -> Gain:
    if cause == SLOW_LINK:
        less = np.zeros_like(usual.transfer_excess_ns)
        slow = links.collectives_of(rank)
        less[slow] = usual.transfer_excess_ns[slow]
        return gains.of(Less(transfer_ns=less))
    own = matched.rows_of([rank])
    if cause == LATE_START:
        return Gain(gains.of(Less(np.where(own, late_ns, 0))).recorded_ns, None)
    is_cause = np.array([one == cause for one in matched.causes])
    return gains.of(usual.less(matched, own[:, None] & is_cause))


def _ranks(matched: Matched, causes: pl.DataFrame) -> pl.DataFrame:
    count = len(matched.ranks)
    main = causes.sort("caused_wait_ns", descending=True).unique("rank", keep="first")
    return (
        pl.DataFrame(
            {
                "rank": matched.ranks,
                "last_arrivals": np.bincount(matched.rank[matched.last_row], minlength=count),
                "collectives": np.bincount(matched.rank, minlength=count),
                "waited_ns": np.bincount(matched.rank, matched.wait_ns, count).astype(np.int64),
            }
        )
        .join(causes.group_by("rank").agg(pl.col("caused_wait_ns").sum()), on="rank", how="left")
        .join(main.select("rank", "cause"), on="rank", how="left")
        .with_columns(pl.col("caused_wait_ns").fill_null(0))
        .sort("caused_wait_ns", "rank", descending=[True, False])
        .select(pl.col(column).cast(dtype) for column, dtype in RANKS.items())
    )


def _groups(matched: Matched, usual: Usual, delays: Delays) -> pl.DataFrame:
    count = len(matched.groups)
    waits = np.bincount(matched.collective, matched.wait_ns, len(matched.group))
    return (
        matched.groups.select("group", "name", "dimension")
        .with_columns(
            collectives=np.bincount(matched.group, minlength=count),
            waits_ns=np.bincount(matched.group, waits, count),
            unexplained_ns=np.bincount(matched.group, delays.unexplained_ns, count),
            slow_transfer_ns=np.bincount(matched.group, usual.transfer_excess_ns, count),
        )
        .filter(pl.col("collectives") > 0)
        .sort("waits_ns", "group", descending=[True, False])
        .select(pl.col(column).cast(dtype) for column, dtype in GROUPS.items())
    )


def _by_step(matched: Matched, delays: Delays) -> pl.DataFrame:
    return (
        pl.DataFrame(
            {
                "rank": matched.ranks[matched.rank],
                "step": matched.step,
                "caused_wait_ns": delays.work_ns.sum(axis=1),
            }
        )
        .filter(pl.col("caused_wait_ns") > 0)
        .group_by("rank", "step")
        .agg(pl.col("caused_wait_ns").sum())
        .sort("rank", "step")
    )
