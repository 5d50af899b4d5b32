"""GPU work whose recorded end is impossible, and how long it can have lasted.

Recorders write some durations wrongly, by milliseconds or by centuries. One such duration would
move the end of its step, and hide what the device did afterwards. So steps, busy time, idle time
and savings use the durations found here; the table `events` keeps what the file says.

Definitions
    A stream completes its work in the order in which it received it. Work may begin before the work
    ahead of it has ended (programmatic dependent launch), but it cannot end before that.

    overrun      Work that ends after work that began later on the same stream and that another call
                 launched. What one call launched (the kernels of a CUDA graph) may run side by
                 side. It is cut at the start of the next work, or once it has lasted as long as
                 the longest other work of its name, if that is earlier.
    without end  The last work of its stream, if it continues after everything else in the file has
                 ended, for more than a millisecond and for three times as long as the longest other
                 work: of its name, else of any. It counts as long as that one.

    Overlaps up to the end of the next work are possible, and stay as recorded. If more than a tenth
    of the work of a stream overruns, and more than three pieces, the lane is no serial stream (two
    processes may share it), and nothing is cut on it. But as many processes cannot have more work
    in progress at once than there are of them: then these ends are impossible all the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.arrays.ordering import by_group_and_time
from stepscope.trace.categories import GPU_CATEGORIES, GPU_WORK, mask_of
from stepscope.trace.schema import OVERRUNS

_TOLERANCE_NS = 1_000
"""What ends may be apart by rounding: older files have whole microseconds."""
_MOST = 3
_MOST_SHARE = 0.1
_SHARING = 2  # processes that may share a lane where the file does not show how many there are
_FACTOR = 3
_LONG_NS = 1_000_000
_LATEST = np.iinfo(np.int64).max


def find_overruns(events: pl.DataFrame, processes: int = 1) -> pl.DataFrame:
    """Returns the GPU work whose end is impossible, with the columns of `schema.OVERRUNS`.

    Args:
        processes: How many of them the file has.
    """
    rows = np.flatnonzero(mask_of(events, GPU_WORK))
    if not len(rows):
        return pl.DataFrame(schema=OVERRUNS)
    work = events["name_id", "lane_id", "start_ns", "dur_ns", "correlation"][rows]
    order = by_group_and_time(
        work["lane_id"].to_numpy(), work["start_ns"].to_numpy(), work["dur_ns"].to_numpy()
    )
    work, rows = work[order], rows[order]
    start = work["start_ns"].to_numpy()
    dur = np.minimum(work["dur_ns"].to_numpy(), _LATEST - np.maximum(start, 0))
    end = start + dur
    following = _following(work)
    has_next = following < len(work)
    next_start = np.append(start, _LATEST)[following]
    is_overrun = np.zeros(len(work), np.bool_)
    if (end - _TOLERANCE_NS > next_start).any():
        lane = work["lane_id"].to_numpy()
        is_overrun = end - _TOLERANCE_NS > _earliest_end_from(lane, end)[following]
        is_overrun &= _are_serial(lane, is_overrun) | _are_too_many(
            lane, start, end, is_overrun, max(_SHARING, processes)
        )
    name = work["name_id"].to_numpy()
    # What is last on its stream may itself have lasted less long than recorded.
    longest = _longest_of_name(name, dur, has_next & ~is_overrun)
    limit = np.where(is_overrun, np.minimum(next_start, _sum(start, longest)) - start, dur)
    is_endless = ~has_next & ~is_overrun
    if is_endless.any() and not is_endless.all():
        longest = _longest_of_name(name, limit, ~is_endless)
        longest = np.where(longest < _LATEST, longest, limit[~is_endless].max())
        too_long = np.maximum(_LONG_NS, _FACTOR * np.minimum(longest, _LATEST // _FACTOR))
        is_endless &= dur > too_long
        if is_endless.any():
            last_ns = max(
                _last_host_end(events), int(start.max()), int((start + limit)[~is_endless].max())
            )
            is_endless &= end - np.minimum(end, last_ns) > too_long
            limit = np.where(is_endless, longest, limit)
    found = np.flatnonzero((is_overrun | is_endless) & (limit < dur))
    return pl.DataFrame({"event": rows[found], "dur_ns": limit[found]}, schema=OVERRUNS).sort(
        "event"
    )


def _following(work: pl.DataFrame) -> Int64Array:
    """For each row the next one of its lane that another call launched; else the number of rows."""
    lane = work["lane_id"].to_numpy()
    correlation = filled(work["correlation"], 0)
    begins = np.ones(len(work), np.bool_)
    begins[1:] = (
        (lane[1:] != lane[:-1]) | (correlation[1:] != correlation[:-1]) | (correlation[1:] == 0)
    )
    first = np.flatnonzero(begins)
    after = np.append(first[1:], len(work))
    is_last = np.append(lane[after[:-1]] != lane[first[:-1]], True)
    after[is_last] = len(work)
    found: Int64Array = after[np.cumsum(begins) - 1]
    return found


def _earliest_end_from(lane: npt.NDArray[np.uint32], end: Int64Array) -> Int64Array:
    """The earliest end of each row and those after it on its lane; one more row without limit."""
    earliest = np.append(end, _LATEST)
    edges = np.flatnonzero(lane[1:] != lane[:-1]) + 1
    for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(end)], strict=True):
        backwards = earliest[first:last][::-1]
        np.minimum.accumulate(backwards, out=backwards)
    return earliest


def _are_serial(lane: npt.NDArray[np.uint32], is_overrun: BoolArray) -> BoolArray:
    """For each row whether so few of its lane overrun that the lane is a serial stream."""
    overruns = np.bincount(lane, weights=is_overrun)
    serial: BoolArray = overruns <= np.maximum(_MOST, _MOST_SHARE * np.bincount(lane))
    return serial[lane]


def _are_too_many(
    lane: npt.NDArray[np.uint32],
    start: Int64Array,
    end: Int64Array,
    is_overrun: BoolArray,
    most: int,
) -> BoolArray:
    """For each row whether more work of its lane that overruns is in progress at once than `most`.

    Args:
        lane: Rows are in order of lane and start.
    """
    found = np.zeros(len(lane), np.bool_)
    for one in np.unique(lane[is_overrun]):
        first, last = np.searchsorted(lane, one, "left"), np.searchsorted(lane, one, "right")
        mine = np.flatnonzero(is_overrun[first:last]) + first
        ended = np.searchsorted(np.sort(end[mine]), start[mine], "right")
        found[first:last] = int((np.arange(1, len(mine) + 1) - ended).max()) > most
    return found


def _longest_of_name(
    name: npt.NDArray[np.uint32], dur: Int64Array, counts: BoolArray
) -> Int64Array:
    """For each row the longest work of its name among those that count; without limit if none."""
    longest = np.full(int(name.max()) + 1, -1, np.int64)
    np.maximum.at(longest, name[counts], dur[counts])
    found: Int64Array = np.where(longest < 0, _LATEST, longest)[name]
    return found


def _sum(start: Int64Array, dur: Int64Array) -> Int64Array:
    """The ends, where they fit 64 bits; else the latest time."""
    found: Int64Array = start + np.minimum(dur, _LATEST - np.maximum(start, 0))
    return found


def _last_host_end(events: pl.DataFrame) -> int:
    is_host = ~mask_of(events, GPU_CATEGORIES)
    ends = events.select(
        pl.col("start_ns") + pl.col("dur_ns").clip(upper_bound=_LATEST - pl.col("start_ns").abs())
    )["start_ns"]
    last = ends.filter(pl.Series(is_host)).max()
    return int(last) if last is not None else -_LATEST  # type: ignore[arg-type]
