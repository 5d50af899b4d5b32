"""Waits for a batch that others prepare: they end when the batch arrives.

A DataLoader with workers, or a thread of the program's own, prepares batches beside the training.
Where the training waits for them, batches come at their pace: a host that comes earlier waits
longer. A wait of a loader without workers is the loading itself, and takes as long whenever it
begins.

A wait counts as one for a batch's arrival if it is noted by a loader with workers, or is one for
another thread, and takes longer than fetching a batch that is ready. Where few batches are waited
for, nothing shows the pace of the workers, which may be ahead: such waits keep their length. So do
those for the first batch of an epoch, for which workers start or begin anew. Batches right after it
that are waited for as well come as long after it as they did. Where batches were in
store at first, and late ones are those of one round, they show that the workers do not keep up, but
not at what pace they work.

Few batches of unequal times show a pace that is right only to some error: by how much the times of
late batches a round apart differ, else by how far the mean of all batches is from that of whole
rounds. Up to two such errors longer, batches may limit the steps, and steps are longer than shown
only beyond two of them. Steps that end within a round seem longer than they are: those that had
batches in store are judged by the whole rounds in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import HostEvents
from stepscope.analysis.host.waits import epoch_starts
from stepscope.analysis.selection.outlier_steps import round_starts
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.model import Trace

_WITH_WORKERS = "_MultiProcessingDataLoaderIter"
_FETCHING_NS = 1_000_000
_TIMES_READY = 4  # what the quickest batch takes
_FETCHING_SHARE = 0.03  # of a step
_WAITING_SHARE = 0.15  # of a step: fetching never takes so much
_MOST_WORKERS = 64
_PAIRS = 2
_PAIRS_OF_ONE_ROUND = 3  # where there are less than two rounds of batches
_ALIKE = 0.05  # of a worker's time for a batch
_OFTEN = 0.25  # of all batches
_ERRORS = 2
"""Standard errors by which batches may come later, or sooner, than those of the steps did."""


@dataclass(frozen=True)
class BatchesOfEpochs:
    """Waits for batches that come late only because their epoch has just begun, in order.

    Attributes:
        start_ns: When the main thread began to wait.
        end_ns: When the batch arrived.
        first_ns: When the first batch of its epoch arrived.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    first_ns: Int64Array

    def __len__(self) -> int:
        return len(self.end_ns)


@dataclass(frozen=True)
class BatchArrivals:
    """Waits for batches that arrive while the main thread waits, in order.

    Attributes:
        source: The arrival after which each one comes, by its place: the one before. If only the
            mean pace is known, the first that was waited for in its epoch, or itself in the same
            steps before: a host that comes late once finds the next batches in store.
        after_ns: How long after it.
        is_carried: Whether that one is of the same steps before, if they come again.
        of_epochs: What comes late besides, because epochs begin.
        has_pace: Whether they show the pace of the workers, if batches came late.
        cycle_ns: The time in which batches come for all of the steps.
        rounds_ns: The same at the pace of whole rounds, where the steps end within one.
        error_ns: What these are right to, beyond chance; infinite where too few came late to tell.
        longest_ns: The longest that it may be, beyond chance.
        rare: Waits for batches that came late too seldom to show a pace.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    source: Int64Array
    after_ns: Int64Array
    is_carried: BoolArray
    of_epochs: BatchesOfEpochs
    has_pace: bool = True
    cycle_ns: int = 0
    rounds_ns: int = 0
    error_ns: float = 0.0
    longest_ns: float = 0.0
    rare: Intervals = field(default_factory=intervals.empty)

    def __len__(self) -> int:
        return len(self.end_ns)


def find_arrivals(
    trace: Trace,
    host: HostEvents,
    main_lane: int,
    window: tuple[int, int],
    steps: int,
    batch_ns: int = 0,
) -> BatchArrivals:
    """Find the waits of the main thread that end with a batch's arrival.

    Args:
        window: Start and end of the steps on the host.
        batch_ns: The pace at which batches come, by a step record; 0: as these steps show it.
    """
    none = np.zeros(0, np.int64)
    nothing = BatchArrivals(
        none, none, none, none, np.zeros(0, np.bool_), BatchesOfEpochs(none, none, none)
    )
    waits = host.table.filter(
        (pl.col("cause") == int(HostCause.INPUT)) & (pl.col("lane_id") == main_lane)
    ).filter(pl.col("end_ns") <= window[1])
    if waits.is_empty() or not steps:
        return nothing
    names = trace.name_rows["name"]
    events = waits["event"].to_numpy()
    name_id = trace.columns("name_id")["name_id"][np.maximum(events, 0)]
    is_batch = names[name_id].str.contains(_WITH_WORKERS, literal=True).to_numpy() | (events < 0)
    batches = waits.filter(pl.Series(is_batch)).sort("start_ns")
    epochs = epoch_starts(trace)
    batches = batches.filter(~pl.col("end_ns").is_in(pl.Series(epochs.ended_ns).implode()))
    is_first = np.isin(batches["start_ns"].to_numpy(), epochs.began_ns)
    start, end = batches["start_ns"].to_numpy(), batches["end_ns"].to_numpy()
    length_ns = window[1] - window[0]
    step_ns = length_ns / steps
    ready_ns = min(
        _FETCHING_NS,
        _WAITING_SHARE * step_ns,
        _TIMES_READY * int((end - start).min(initial=_FETCHING_NS)),
    )
    is_late = end - start > max(ready_ns, _FETCHING_SHARE * step_ns)
    is_steady = ~_begins_epoch(is_first, is_late)
    epoch: Int64Array = np.cumsum(is_first & (start >= window[0]), dtype=np.int64)
    is_late_again = _late_in_all(epoch, is_first, is_late)
    nothing = replace(nothing, of_epochs=_of_epochs(start, end, epoch, is_first, is_late_again))
    is_after_first = is_late & ~is_steady & ~is_first
    of_epochs = _of_epochs(start, end, epoch, is_first, is_after_first)
    epoch = epoch[is_steady]
    start, end, is_late = start[is_steady], end[is_steady], is_late[is_steady]
    is_inside = start >= window[0]
    if batch_ns:
        # Workers that begin one after another in each epoch set no pace in it.
        is_of_epochs = is_late_again[is_steady] | ~is_late
        if is_late_again.any() and is_of_epochs[is_inside].all():
            return nothing
        inside = start[is_inside], end[is_inside]
        return _at_mean_pace(*inside, epoch[is_inside], batch_ns, of_epochs)
    late = np.flatnonzero(is_late & is_inside)
    if not len(late):
        return nothing
    share = max(is_late.mean(), len(late) / is_inside.sum())  # earlier steps may have had a store
    is_often = (is_late.sum() >= _PAIRS and share >= _OFTEN) or is_late.all()
    if not is_often:
        return replace(nothing, rare=Intervals(start[late], end[late]))
    batch_count, rounds = int(is_inside.sum()), _rounds_of(is_late, is_inside)
    from_round_to_round_ns = _pace_over(end, rounds)
    all_ends, all_late = end, is_late
    start, end = start[is_inside], end[is_inside]
    late -= len(is_inside) - batch_count
    # Steps that had batches in store, as while the recorder starts, are shorter than the pace.
    own_rounds = round_starts(end - start)
    pace_ns, workers = _pace_of_workers(all_ends, all_late, batch_count)
    # Where one wait is far longer than all others, a round begins with each late batch.
    length = workers or int(np.diff(own_rounds[:2]).sum()) or int(np.diff(rounds[:2]).sum())
    pace_ns = pace_ns or _pace_of_rounds(end, late, own_rounds, length) or from_round_to_round_ns
    rounds_ns = round(pace_ns * batch_count)
    cycle_ns = max(length_ns, rounds_ns)
    apart_ns = _round_apart(all_ends, np.flatnonzero(all_late), length)
    # Batches in store make the steps shorter than their rounds, and these no longer.
    error_ns: float = abs(rounds_ns - length_ns) if pace_ns else math.inf
    later_ns: float = max(0, length_ns - rounds_ns) if pace_ns else 0
    if len(apart_ns) >= _PAIRS:
        error_ns = later_ns = float(apart_ns.std(ddof=1)) * math.sqrt(batch_count) / length
    ends_within_round = pace_ns > 0 and batch_count % length > 0 and len(late) < batch_count
    has_pace = pace_ns > 0 or late[0] == 0
    start, end = start[late], end[late]
    before = np.arange(len(late)) - 1
    after_ns = np.diff(end, prepend=end[-1] - cycle_ns)
    return BatchArrivals(
        start,
        end,
        before,
        after_ns,
        before < 0,
        of_epochs,
        has_pace,
        cycle_ns,
        rounds_ns if ends_within_round else cycle_ns,
        _ERRORS * error_ns,
        cycle_ns + _ERRORS * later_ns,
    )


def _of_epochs(
    start_ns: Int64Array,
    end_ns: Int64Array,
    epoch: Int64Array,
    is_first: BoolArray,
    is_one: BoolArray,
) -> BatchesOfEpochs:
    """Some of the batches of epochs that begin within the window, which are numbered from 1."""
    rows = np.flatnonzero(is_one & (epoch > 0))
    firsts = _firsts(epoch, is_first)
    return BatchesOfEpochs(start_ns[rows], end_ns[rows], end_ns[firsts[epoch[rows] - 1]])


def _firsts(epoch: Int64Array, is_first: BoolArray) -> Int64Array:
    firsts: Int64Array = np.flatnonzero(is_first & (np.diff(epoch, prepend=0) > 0))
    return firsts


def _late_in_all(epoch: Int64Array, is_first: BoolArray, is_late: BoolArray) -> BoolArray:
    """Late batches whose place in their epoch is late in each, as workers start one by one."""
    found = np.zeros(len(epoch), np.bool_)
    inside = np.flatnonzero(epoch > 0)
    place = inside - _firsts(epoch, is_first)[epoch[inside] - 1]
    times, late = np.bincount(place), np.bincount(place, is_late[inside])
    recurs = (late == times) & (times >= _PAIRS)
    # Right after the first one, it is late because that was.
    recurs[1:2] |= late[1:2] == times[1:2]
    found[inside] = recurs[place] & is_late[inside] & (place > 0)
    return found


def _at_mean_pace(
    start_ns: Int64Array,
    end_ns: Int64Array,
    epoch: Int64Array,
    batch_ns: int,
    of_epochs: BatchesOfEpochs,
) -> BatchArrivals:
    """Arrivals of batches that are made one after another, anew from the start of each epoch.

    The second batch of an epoch comes as long after its first as it did: the others count from it.
    """
    count, place = len(end_ns), np.arange(len(end_ns))
    is_second = np.diff(epoch, prepend=0) > 0
    source = np.maximum.accumulate(np.where(is_second, place, -1))
    is_carried = source < 0
    source[is_carried] = np.flatnonzero(is_second)[-1] if is_second.any() else place[is_carried]
    after_ns = (place - source + np.where(is_carried, count, 0)) * batch_ns
    start_ns = np.where(is_second, end_ns, start_ns)
    source[is_second] -= 1
    return BatchArrivals(start_ns, end_ns, source, after_ns, is_carried | (source < 0), of_epochs)


def _pace_of_workers(end_ns: Int64Array, is_late: BoolArray, inside: int) -> tuple[float, int]:
    """Time per batch if each worker needs the same time for each of its batches, and how many do.

    Both are 0 where that is not so.

    Workers take turns: with a number of them, each batch comes one such time after the batch that
    is as many places before. A batch that was ready came no later than that; and after a late one
    no sooner, also before the steps.

    Args:
        inside: How many batches are of the steps: the last ones.
    """
    before = len(end_ns) - inside
    for workers in range(1, min(inside - _PAIRS, _MOST_WORKERS) + 1):
        after_ns = end_ns[workers:] - end_ns[:-workers]
        from_late, to_late = is_late[:-workers], is_late[workers:]
        is_inside = np.arange(len(after_ns)) >= before
        both = after_ns[from_late & to_late & is_inside]
        if len(both) < (_PAIRS if 2 * workers <= inside else _PAIRS_OF_ONE_ROUND):
            continue
        usual_ns = float(np.median(both))
        tolerance_ns = _ALIKE * usual_ns
        is_alike = np.abs(both - usual_ns).max() <= tolerance_ns
        # One that was ready was taken when the host came for it, later than it arrived.
        came_in_time = (after_ns[~from_late & to_late & is_inside] <= usual_ns + tolerance_ns).all()
        is_ready_in_time = (after_ns[from_late & ~to_late] >= usual_ns - tolerance_ns).all()
        if is_alike and came_in_time and is_ready_in_time:
            return float(both.mean()) / workers, workers
    return 0.0, 0


def _rounds_of(is_late: BoolArray, is_inside: BoolArray) -> Int64Array:
    """The places of late batches after one that is not; of those before the steps, only the last.

    That one counts if all batches from it to the first one of the steps are late.
    """
    rounds = np.flatnonzero(is_late & ~np.insert(is_late[:-1], 0, False))
    first = int(np.argmax(is_inside))
    if is_late[first]:
        return rounds[np.append(rounds[1:], len(is_late)) > first]
    return rounds[rounds > first]


def _pace_over(end_ns: Int64Array, rounds: Int64Array) -> float:
    """Time per batch from the first to the last round of batches.

    0 if there is one round, or one batch from it to the next: that may be any time.
    """
    if len(rounds) < 2 or rounds[-1] - rounds[0] < _PAIRS:
        return 0.0
    return float((end_ns[rounds[-1]] - end_ns[rounds[0]]) / (rounds[-1] - rounds[0]))


def _round_apart(end_ns: Int64Array, late: Int64Array, length: int) -> Int64Array:
    """The time from late batches to those a round later that are late as well.

    Args:
        length: Batches of a round; 0: unknown.
    """
    apart = np.intersect1d(late, late + length) if length else np.zeros(0, np.int64)
    after_ns: Int64Array = end_ns[apart] - end_ns[apart - length]
    return after_ns


def _pace_of_rounds(end_ns: Int64Array, late: Int64Array, rounds: Int64Array, length: int) -> float:
    """Time per batch by late batches a round apart; of too few, from the first round to the last.

    0 where there is one round, or one batch from it to the next.
    """
    apart_ns = _round_apart(end_ns, late, length)
    over_ns = _pace_over(end_ns, rounds)
    return float(apart_ns.mean()) / length if over_ns and len(apart_ns) >= _PAIRS else over_ns


def _begins_epoch(is_first: BoolArray, is_late: BoolArray) -> BoolArray:
    """Whether each batch is the first of an epoch, or one right after it that is late as well.

    All workers begin together. Where no batch of any epoch is on time, they do not keep up: there
    only the first one tells nothing.
    """
    places = np.arange(len(is_first))
    epoch = np.cumsum(is_first)
    began = np.maximum.accumulate(np.where(is_first, places, -1))
    on_time = np.maximum.accumulate(np.where(is_late, -1, places))
    keeps_up = bool((~is_late & (epoch > 0)).any())
    return is_first | ((began > on_time) & (epoch > 0) & keeps_up)
