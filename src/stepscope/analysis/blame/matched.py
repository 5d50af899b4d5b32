"""Collectives of many ranks, matched: the common input of clocks and blame.

Each rank contributes one row per collective that it takes part in (`ARRIVALS`), small enough to
come from a summary of its trace. Times are on the rank's own clock; nothing here compares the
clocks of two ranks.

Definitions
    A collective is known by its process group and its number in it.
    Arrival: when the rank's kernel (or, on a CPU, its call) starts. Duration: until it ends.
    Synchronising: no rank can leave before all have arrived. Only such kinds are matched; a send
    and its receive count as one, since the kernel of either waits for the other.
    Transfer time of a collective: the shortest duration of its members. The one with it arrived
    last, and waited for nobody.
    Wait of a member: its duration less the transfer time. No clock of another rank enters.
    Previous collective of a row: the rank's last one to end before this one starts. The time from
    there to the arrival is the rank's own; the row says what it was spent on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.collectives import POINT_TO_POINT
from stepscope.analysis.ranks import matching
from stepscope.analysis.ranks.rank_arrivals import (
    DEVICE_WORK,
    HOST_WAITS,
    LAUNCHED_WORK,
    OWN_DEVICE,
    OWN_HOST,
    QUEUED,
    READY,
    UNLAUNCHED,
)
from stepscope.skew.rank_causes import OTHER
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit

Numbers = npt.NDArray[np.int64]

ARRIVALS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "group": pl.Int64,  # row number in GROUPS
    "number": pl.Int64,  # of the collective in its group
    "kind": pl.String,
    "step": pl.Int64,
    "message_bytes": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
"""One row per rank and collective. Further columns `local_…_ns`, `beside_ns` and those of
`rank_arrivals.OF_LAUNCHES` are as `ranks.local_time` defines them, null where they are not known.
What local times leave of the time since the row's previous collective is `other`. Without
`beside_ns` a rank gets nothing done beside its collectives."""

GROUPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "group": pl.Int64,
    "name": pl.String,
    "dimension": pl.String,  # data, tensor, pipeline, expert, context, world, …
    "ranks": pl.List(pl.Int64),
}
"""One row per process group."""


SYNCHRONISING = (*matching.SYNCHRONISING, POINT_TO_POINT)
"""Kinds that no rank can leave before all members have arrived."""

LOCAL = "local_"
BESIDE = "beside_ns"
OF_THE_GPU = ("compute", "copies")
"""Causes in which the rank's GPU works, and its host may be doing anything."""

_ROUNDED_NS = 1_000
"""By how much a collective may seem to begin before the one ends that it follows."""

UNKNOWN = -(2**62)
"""Stands for what is not known."""

NOT_SYNCHRONISING = "collectives of a kind that ranks can leave before all have arrived"
CIRCULAR = "collectives whose order differs between ranks"


@dataclass(frozen=True)
class Matched:
    """Matched collectives, as arrays.

    Rows are arrivals, ordered by rank and start; `collective` numbers lie in an order in which
    each comes after all that any member had before it, and after those that a member came to
    before, unless ranks came to them in different orders.

    Attributes:
        causes: What time between collectives is divided into; the last is `OTHER`.
        ranks: The recorded ranks, ascending.
        rank: Of each row, its place in `ranks`.
        collective: Of each row, the number of its collective.
        step: Of each row.
        start_ns: Of each row, on its rank's clock.
        end_ns: Likewise.
        previous: Of each row, the row of the rank's previous collective; -1 for none.
        local_ns: Of each row and cause, what the rank did since then. Where there is no previous,
            since its recording began, as far as the row says; `OTHER` is 0 there.
        beside_ns: Of each row, for how long the rank got work done while in the collective.
        launched_before: Of each row, the rank's last row before it whose launch is known; -1: none.
        own_host_ns: Of each row, what the rank's host did by itself since it launched that one; 0
            where there is none.
        host_waits_ns: Of each row, for how long the host had to wait since then, at the least, for
            work that it launched itself in between; 0 where that is not known.
        queued_ns: Of each row, how long before its start it was launched; -1 where unknown.
        worked_before: Of each row, the rank's last row before it of which is known how far its
            device was; -1: none.
        own_device_ns: Of each row, what the rank's device did by itself since that one; 0 where
            there is none.
        device_work_ns: Of each row, for how long of that the device worked; 0 likewise.
        unlaunched_ns: Of each row, for how long of that the device had nothing to do, as it was not
            launched yet; 0 likewise.
        ready_ns: Of each row, how long before its start the device had done what was launched
            before it, negative where it does not need that; `UNKNOWN` where that is not known.
        launched_work_ns: Of each row, how long after its launch the device can have done what was
            launched before it, as that was launched no sooner; `UNKNOWN` where that is not known.
        group: Of each collective, its row in `groups`.
        kind: Of each collective, a place in `SYNCHRONISING`.
        message_bytes: Of each collective, the largest that a member says; -1 where unknown.
        first_row: Of each collective, where its rows begin in `rows`; one more at the end.
        rows: Rows by collective.
        transfer_ns: Of each collective.
        last_row: Of each collective, the row of the member that arrived last.
    """

    causes: tuple[str, ...]
    ranks: Numbers
    groups: pl.DataFrame
    rank: Numbers
    collective: Numbers
    step: Numbers
    start_ns: Numbers
    end_ns: Numbers
    previous: Numbers
    local_ns: Numbers
    beside_ns: Numbers
    launched_before: Numbers
    own_host_ns: Numbers
    host_waits_ns: Numbers
    queued_ns: Numbers
    worked_before: Numbers
    own_device_ns: Numbers
    device_work_ns: Numbers
    unlaunched_ns: Numbers
    ready_ns: Numbers
    launched_work_ns: Numbers
    group: Numbers
    kind: Numbers
    message_bytes: Numbers
    first_row: Numbers
    rows: Numbers
    transfer_ns: Numbers
    last_row: Numbers
    left_out: dict[str, int]

    @property
    def wait_ns(self) -> Numbers:
        """Of each row, how long the rank waited in its collective."""
        waits: Numbers = self.end_ns - self.start_ns - self.transfer_ns[self.collective]
        return waits

    def rows_of(self, ranks: Collection[int]) -> npt.NDArray[np.bool_]:
        """Of each row, whether it is of one of some ranks."""
        found: npt.NDArray[np.bool_] = np.isin(self.ranks, list(ranks))[self.rank]
        return found

    def by_step(self, values: Numbers) -> npt.NDArray[np.float64]:
        """Sums of what is of each row, by step (rows) and rank (columns)."""
        steps, step = np.unique(self.step, return_inverse=True)
        cells = step.reshape(-1) * len(self.ranks) + self.rank
        sums = np.bincount(cells, values, len(steps) * len(self.ranks))
        return sums.reshape(len(steps), len(self.ranks)).astype(np.float64)

    @property
    def dimension(self) -> pl.Series:
        """Of each collective, the dimension of its group."""
        return self.groups["dimension"].gather(self.group)


def match(arrivals: pl.DataFrame, groups: pl.DataFrame) -> Matched:
    """Matches the collectives of several ranks.

    Args:
        arrivals: Columns `ARRIVALS`, any `local_…_ns`, and `beside_ns` where it is known.
        groups: Columns `GROUPS`.
    """
    in_order = arrivals.sort("rank", "start_ns", "end_ns", "group", "number")
    # Sums, so that nothing is lost with rows that are left out.
    spent = pl.col(f"^{LOCAL}.*_ns$").fill_null(0).cum_sum().over("rank")
    spent_by = in_order.with_columns(spent)
    rows = spent_by.filter(pl.col("kind").is_in(SYNCHRONISING))
    left_out = {NOT_SYNCHRONISING: len(spent_by) - len(rows)} if len(rows) < len(spent_by) else {}
    # A first numbering, by group and number; it is put in order once what precedes what is known.
    by_name = rows.select("group", "number").unique().sort("group", "number")
    rows = rows.join(by_name.with_row_index("named"), on=["group", "number"], how="left")
    named = rows["named"].to_numpy().astype(np.int64)
    ranks = np.unique(rows["rank"].to_numpy()).astype(np.int64)
    rank = np.searchsorted(ranks, rows["rank"].to_numpy()).astype(np.int64)
    start, end = (rows[column].to_numpy().astype(np.int64) for column in ("start_ns", "end_ns"))
    previous = np.full(len(rows), -1, np.int64)
    # Times are rounded, to a microsecond in old traces: what follows may seem to begin before.
    ended = np.maximum(end - _ROUNDED_NS, start)
    jit(find_previous)(rank, start, ended, np.lexsort((ended, rank)), previous)
    # All that a rank came to before, if it overlaps as well: ranks may disagree about that.
    before = np.arange(len(rows)) - 1
    before[np.flatnonzero(np.diff(rank, prepend=-1))] = -1
    order = _order(named, before, len(by_name))
    if (order < 0).any():
        order = _order(named, previous, len(by_name))
    if (order < 0).any():
        # Ranks that disagree on an order are of different jobs, or their numbers are wrong.
        bad = pl.Series(order < 0).gather(named)
        names = rows.filter(bad).select("group", "number").unique()
        again = match(arrivals.join(names, on=["group", "number"], how="anti"), groups)
        return replace(again, left_out={**again.left_out, CIRCULAR: int(bad.sum())})
    collective = order[named]
    causes, local = _local(rows, previous, start, end)
    by_collective = np.argsort(collective, kind="stable").astype(np.int64)
    first_row = np.searchsorted(collective[by_collective], np.arange(len(by_name) + 1))
    durations = end - start
    transfer = durations[by_collective]
    if len(transfer):
        transfer = np.minimum.reduceat(transfer, first_row[:-1])
    return Matched(
        causes,
        ranks,
        groups.select(*GROUPS),
        rank,
        collective,
        rows["step"].fill_null(-1).to_numpy().astype(np.int64),
        start,
        end,
        previous,
        local,
        _beside(rows, durations),
        *_progress(rows, rank, collective),
        _of_collectives(rows["group"], collective),
        _of_collectives(rows["kind"].replace_strict(_KINDS, return_dtype=pl.Int64), collective),
        _of_collectives(rows["message_bytes"].fill_null(-1), collective),
        first_row.astype(np.int64),
        by_collective,
        transfer,
        _last(durations, by_collective, first_row, transfer),
        left_out,
    )


_KINDS = {kind: place for place, kind in enumerate(SYNCHRONISING)}


def _local(
    rows: pl.DataFrame, previous: Numbers, start: Numbers, end: Numbers
) -> tuple[tuple[str, ...], Numbers]:
    columns = sorted(name for name in rows.columns if name.startswith(LOCAL))
    causes = tuple(name.removeprefix(LOCAL).removesuffix("_ns") for name in columns)
    local = np.zeros((len(rows), len(columns) + 1), np.int64)
    has_previous = previous >= 0
    for place, name in enumerate(columns):
        spent = rows[name].to_numpy().astype(np.int64)
        local[:, place] = spent - np.where(has_previous, spent[previous], 0)
    between = np.where(has_previous, start - end[previous], 0)
    local[:, -1] = np.maximum(between - local.sum(axis=1), 0)
    return (*causes, OTHER), local


def _beside(rows: pl.DataFrame, durations: Numbers) -> Numbers:
    if BESIDE not in rows.columns:
        return np.zeros_like(durations)
    beside: Numbers = rows[BESIDE].fill_null(0).to_numpy().astype(np.int64)
    return np.clip(beside, 0, np.maximum(durations, 0))


_Ten = tuple[
    Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers
]


def _progress(rows: pl.DataFrame, rank: Numbers, collective: Numbers) -> _Ten:
    def column(name: str, otherwise: int = 0) -> Numbers:
        if name not in rows.columns:
            return np.full(len(rows), otherwise, np.int64)
        return rows[name].fill_null(otherwise).to_numpy().astype(np.int64)

    def since(name: str, before: Numbers, is_known: npt.NDArray[np.bool_]) -> Numbers:
        clock = column(name)
        found: Numbers = np.where(is_known & (before >= 0), clock - clock[before], 0)
        return found

    (launched, has_launch), (worked, has_device) = (
        _last_known(column(name, UNKNOWN) > UNKNOWN, rank, collective)
        for name in (OWN_HOST, OWN_DEVICE)
    )
    return (
        launched,
        np.maximum(since(OWN_HOST, launched, has_launch), 0),
        np.maximum(since(HOST_WAITS, launched, has_launch), 0),
        np.where(has_launch, np.maximum(column(QUEUED), 0), -1),
        worked,
        since(OWN_DEVICE, worked, has_device),
        since(DEVICE_WORK, worked, has_device),
        since(UNLAUNCHED, worked, has_device),
        column(READY, UNKNOWN),
        column(LAUNCHED_WORK, UNKNOWN),
    )


def _last_known(
    known: npt.NDArray[np.bool_], rank: Numbers, collective: Numbers
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Of each row the last one of its rank before it of which something is known; -1: none.

    Where its collective is numbered later, as ranks came to them in different orders, there is
    none either. Returns what is known as well.
    """
    before = np.full(len(known), -1, np.int64)
    latest = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    before[1:] = latest[:-1]
    before[(before >= 0) & ((rank[before] != rank) | (collective[before] >= collective))] = -1
    return before, known


def _of_collectives(values: pl.Series, collective: Numbers) -> Numbers:
    """The largest value of each collective's rows."""
    count = int(collective.max()) + 1 if len(collective) else 0
    found = np.full(count, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(found, collective, values.to_numpy().astype(np.int64))
    return found


def _last(durations: Numbers, rows: Numbers, first: Numbers, transfer: Numbers) -> Numbers:
    """Of each collective the first of its rows with the shortest duration."""
    is_shortest = durations[rows] == np.repeat(transfer, np.diff(first))
    places = np.flatnonzero(is_shortest)
    found: Numbers = rows[places[np.searchsorted(places, first[:-1])]]
    return found


def _order(named: Numbers, previous: Numbers, count: int) -> Numbers:
    """A number for each collective, greater than those of all that its members had before."""
    has_previous = previous >= 0
    return in_order(named[previous[has_previous]], named[has_previous], count)


def in_order(before: Numbers, after: Numbers, count: int) -> Numbers:
    """A number for each node of a graph, greater than those of all that it follows.

    -1 where there is none, because nodes follow each other in a circle.

    Args:
        before: Of each edge, the node that `after` follows.
    """
    by_before = np.argsort(before, kind="stable")
    first_edge = np.searchsorted(before[by_before], np.arange(count + 1))
    order = np.full(count, -1, np.int64)
    waiting = np.bincount(after, minlength=count).astype(np.int64)
    ready = np.empty(count, np.int64)
    jit(count_up)(first_edge, after[by_before], waiting, ready, order)
    return order


def find_previous(
    rank: Numbers, start: Numbers, end: Numbers, by_end: Numbers, previous: Written[np.int64]
) -> None:
    """Fills in of each row the one of the same rank that is the last to end before it starts.

    Rows are in order of rank. `by_end` holds the numbers of all rows, by rank and end. All arrays
    are of the same length, so indices lie inside.
    """
    candidate = 0
    latest = -1
    for row in range(len(start)):
        if row == 0 or rank[row] != rank[row - 1]:
            latest = -1
            while candidate < len(by_end) and rank[by_end[candidate]] < rank[row]:
                candidate += 1
        while (
            candidate < len(by_end)
            and rank[by_end[candidate]] == rank[row]
            and end[by_end[candidate]] <= start[row]
            and by_end[candidate] != row
        ):
            latest = by_end[candidate]
            candidate += 1
        previous[row] = latest


def count_up(
    first_edge: Numbers,
    after: Numbers,
    waiting: Written[np.int64],
    ready: Written[np.int64],
    order: Written[np.int64],
) -> None:
    """Numbers the nodes of a graph so that each follows all that it depends on.

    Args:
        first_edge: Where the edges of each node begin in `after`; one more at the end.
        after: The nodes that depend on each node.
        waiting: Of each node, on how many others it depends; it counts down.
        ready: As long as there are nodes. Each is put there once, when it waits for none.
        order: Receives a number for each node; nodes in a circle keep what they have.
    """
    count = len(waiting)
    filled = 0
    for node in range(count):
        if waiting[node] == 0:
            ready[filled] = node
            filled += 1
    place = 0
    while place < filled:
        node = ready[place]
        order[node] = place
        place += 1
        for edge in range(first_edge[node], first_edge[node + 1]):
            waiting[after[edge]] -= 1
            if waiting[after[edge]] == 0:
                ready[filled] = after[edge]
                filled += 1
