"""What the GPUs of every rank did in one step, on one clock: the lanes of all ranks in one picture.

Definitions
    A rank's lane shows at each moment the first of these that runs: computing (where ranks send
    to each other one by one, as forward and backward), collectives, sends and receives, copies.
    What is left blank is idle. Of collectives, sends and receives, the part in which the rank waits
    for another (`analysis.blame.compared`) is shown as waiting. Pieces that are closer to each
    other than a two-thousandth of the step are drawn as one.
    Without GPUs a lane shows the rank's collectives alone.
    The step is that in which the ranks wait most, of the last ones that all of them recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.blame.compared import Compared
from stepscope.analysis.calls.collectives import POINT_TO_POINT, read_collectives
from stepscope.analysis.ranks.rank_arrivals import RankArrivals
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.names import names_that
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Intervals
from stepscope.trace.arrays.packed_columns import PackedColumns
from stepscope.trace.derive.ancestors import nearest_of
from stepscope.trace.derive.main_thread import ENGINE
from stepscope.trace.model import Trace

FORWARD, BACKWARD, COMPUTE = "forward", "backward", "compute"
COLLECTIVE, EXCHANGE, COPY = "communication", "sends and receives", "copy"
WAITING = "idle: waiting for communication"
_ORDER = (FORWARD, BACKWARD, COMPUTE, COLLECTIVE, EXCHANGE, COPY)
MOST_STEPS = 8
MOST_LANES = 64
_JOINED = 2000
_COLUMNS = ("step", "start_ns", "end_ns", "what")


@dataclass(frozen=True)
class Lane:
    """A rank's lane: pieces as start, end and what, from the first moment of any rank on."""

    rank: int
    pieces: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True)
class JobLanes:
    """The lanes of a job's ranks in a step.

    Attributes:
        dur_ns: From the first moment of any rank to the last.
        is_schedule: Whether ranks send to each other one by one: they are stages of a pipeline.
    """

    step: int | None
    dur_ns: int
    is_schedule: bool
    lanes: tuple[Lane, ...]
    left_out: int


def read_pieces(trace: Trace, scope: Scope | None = None) -> PackedColumns | None:
    """Reads what a rank's GPUs did in its last steps; None where they did nothing in steps.

    One row per piece: step, start_ns and end_ns on the rank's clock, place of what it is in
    `_ORDER`.
    """
    work = gpu_work(trace, scope)
    columns = ("event", "kind", "step", "start_ns", "end_ns", "launch")
    rows = work.members_with(*columns).filter(pl.col("step").is_not_null())
    if rows.is_empty():
        return None
    rows = rows.filter(
        pl.col("step").is_in(rows["step"].unique().sort().tail(MOST_STEPS).implode())
    )
    kinds = read_collectives(trace, work.table)
    exchanges = kinds.filter(pl.col("kind") == POINT_TO_POINT)["event"]
    what = (
        pl.when(pl.col("event").is_in(exchanges.implode()))
        .then(pl.lit(EXCHANGE))
        .when(pl.col("kind") == "communication")
        .then(pl.lit(COLLECTIVE))
        .when(pl.col("kind") != "compute")
        .then(pl.lit(COPY))
    )
    computing: pl.Expr | pl.Series = pl.lit(COMPUTE)
    if len(exchanges):
        computing = _direction(trace, rows["launch"])
    rows = rows.with_columns(what=what.otherwise(computing))
    found = [_pieces_of(part) for part in rows.partition_by("step", maintain_order=True)]
    return PackedColumns.of(_COLUMNS, np.concatenate(found, axis=1))


def _direction(trace: Trace, launches: pl.Series) -> pl.Series:
    derived = trace.derived.select("parent", "forward").collect()
    names = trace.columns("name_id")["name_id"].to_numpy()
    is_engine = names_that(trace, pl.col("name").str.starts_with(ENGINE))[names]
    is_backward = derived["forward"].is_not_null().to_numpy() | is_engine
    if not is_backward.any():
        return pl.repeat(COMPUTE, len(launches), eager=True)
    parent = derived["parent"].fill_null(-1).to_numpy()
    found = nearest_of(parent, launches.fill_null(-1).to_numpy().astype(np.int64), is_backward)
    return pl.Series(np.where(found >= 0, BACKWARD, FORWARD))


def _pieces_of(rows: pl.DataFrame) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The pieces of one step, each moment once."""
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    gap = int(end.max() - start.min()) // _JOINED
    what = rows["what"].to_numpy()
    taken = intervals.empty()
    found = []
    for number, name in enumerate(_ORDER):
        mine = what == name
        joined = intervals.merge(start[mine], end[mine] + gap)
        left = intervals.difference(Intervals(joined.starts, joined.ends - gap), taken)
        taken = intervals.union(taken, left)
        numbers = np.full(len(left), number, np.int64)
        steps = np.full(len(left), rows["step"][0], np.int64)
        found.append(np.stack((steps, left.starts, left.ends, numbers)))
    return np.concatenate(found, axis=1)


def job_lanes(
    ranks: Sequence[tuple[RankArrivals, PackedColumns | None]],
    compared: Compared,
    first: Sequence[int] = (),
) -> JobLanes | None:
    """The lanes of a job's ranks; None where fewer than two can be drawn on one clock.

    Args:
        ranks: Of each its collectives, and what `read_pieces` found.
        compared: The collectives, matched and on one clock.
        first: The ranks on top; the others follow by their number. Stages all stand by theirs.
    """
    sets = compared.sets
    pieces = {one.rank: own for one, own in ranks if own}
    step = _step(sets, list(pieces.values()))
    of_step = compared.arrivals.join(
        sets.filter(pl.col("step").eq_missing(step)).select("set"), on="set"
    )
    starts = compared.collectives.select("rank", "event", "start_ns")
    arrived = of_step.join(starts, on=["rank", "event"])
    clocks = arrived.group_by("rank").agg(
        (pl.col("start_ns") - pl.col("arrival_ns")).median().round()
    )
    offsets = {rank: int(offset) for rank, offset in clocks.iter_rows()}
    is_schedule = POINT_TO_POINT in sets["kind"]
    first = () if is_schedule else first
    order = [*first, *sorted(set(offsets) - set(first))]
    drawn = {
        rank: _drawn(pieces.get(rank), arrived.filter(rank=rank), step, offsets[rank])
        for rank in order[:MOST_LANES]
        if rank in offsets
    }
    drawn = {rank: found for rank, found in drawn.items() if found}
    if len(drawn) < 2:
        return None
    begin = min(piece[0] for found in drawn.values() for piece in found)
    end = max(piece[1] for found in drawn.values() for piece in found)
    lanes = tuple(
        Lane(rank, tuple((start - begin, end - begin, what) for start, end, what in found))
        for rank, found in drawn.items()
    )
    return JobLanes(step, end - begin, is_schedule, lanes, len(ranks) - len(lanes))


def _step(sets: pl.DataFrame, pieces: Sequence[PackedColumns]) -> int | None:
    """The step in which most is waited, of those that all ranks have pieces of."""
    waits = sets.group_by("step").agg(pl.col("total_wait_ns").sum()).drop_nulls("step")
    if pieces:
        steps = _COLUMNS.index("step")
        common = set.intersection(*(set(one.columns()[steps].tolist()) for one in pieces))
        waits = waits.filter(pl.col("step").is_in(list(common)))
    worst = waits.sort("total_wait_ns", "step", descending=[True, False])["step"]
    return int(worst[0]) if len(worst) else None


def _drawn(
    pieces: PackedColumns | None, compared: pl.DataFrame, step: int | None, offset_ns: int
) -> list[tuple[int, int, str]]:
    """A rank's pieces in order, on the common clock, with what it waits in collectives apart."""
    begun = compared["arrival_ns"].to_numpy()
    waits = intervals.merge(begun, begun + compared["wait_ns"].to_numpy())
    parts: Mapping[str, Intervals] = {
        COLLECTIVE: intervals.merge(begun, begun + compared["dur_ns"].to_numpy())
    }
    if pieces is not None:
        of_step, start, end, what = pieces.columns()
        places = {name: (of_step == step) & (what == place) for place, name in enumerate(_ORDER)}
        parts = {
            name: intervals.merge(start[mine] - offset_ns, end[mine] - offset_ns)
            for name, mine in places.items()
        }
    found = []
    for name, moments in parts.items():
        split = {name: moments}
        if name in (COLLECTIVE, EXCHANGE):
            waited = intervals.intersection(moments, waits)
            split = {name: intervals.difference(moments, waits), WAITING: waited}
        for word, one in split.items():
            found += [
                (*pair, word) for pair in zip(one.starts.tolist(), one.ends.tolist(), strict=True)
            ]
    return sorted(found)
