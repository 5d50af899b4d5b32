"""Pairs beginnings and ends that a writer puts in blocks, as torch does.

Elsewhere an end closes the slice of its track that began last. torch writes many beginnings, then
their ends in the same order. Where one slice ends at the nanosecond at which the next begins, or
two overlap, closing the last one gives both a wrong duration; the order of the blocks does not.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.formats.perfetto.packets import BEGIN, END


def with_durations(events: pl.DataFrame) -> pl.DataFrame:
    """The events with `dur_ns`: known for beginnings in blocks, whose ends are left out.

    A block is a run of beginnings and a run of as many ends, on the same tracks in the same order,
    none before its beginning, somewhere in which time goes back: it never does where each event was
    written as it happened.

    Args:
        events: type, track and time_ns, in the order of the file.
    """
    kind, track, time = (events[name].to_numpy() for name in ("type", "track", "time_ns"))
    begins, size = _blocks(kind, track, time)
    dur = np.full(len(events), -1, np.int64)
    dur[begins] = time[begins + size] - time[begins]
    is_paired_end = np.zeros(len(events), np.bool_)
    is_paired_end[begins + size] = True
    column = pl.Series("dur_ns", dur)
    return events.with_columns(dur_ns=column.set(column < 0, None)).filter(~is_paired_end)


def _blocks(kind: Int64Array, track: Int64Array, time: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Rows of beginnings in blocks, and for each how many rows further its end is."""
    none = np.zeros(0, np.int64)
    if len(kind) < 2:
        return none, none
    starts = np.concatenate(([0], np.flatnonzero(np.diff(kind)) + 1))
    lengths = np.diff(np.append(starts, len(kind)))
    chosen = np.flatnonzero(
        (kind[starts[:-1]] == BEGIN) & (kind[starts[1:]] == END) & (lengths[:-1] == lengths[1:])
    )
    if not len(chosen):
        return none, none
    starts, lengths = starts[chosen], lengths[chosen]
    first = np.cumsum(lengths) - lengths
    size = np.repeat(lengths, lengths)
    row = np.repeat(starts - first, lengths) + np.arange(len(size))
    fits = (track[row] == track[row + size]) & (time[row] <= time[row + size])
    back = np.concatenate(([0], np.cumsum(np.diff(time) < 0)))
    goes_back = back[starts + 2 * lengths - 1] > back[starts]
    is_block: BoolArray = np.logical_and.reduceat(fits, first) & goes_back
    inside = np.repeat(is_block, lengths)
    return row[inside], size[inside]
