"""Search over the whole trace: names are few, so they are searched first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit
from stepscope.viewer.events import brief
from stepscope.viewer.index import TraceIndex
from stepscope.viewer.slice_rows import UInt32Array

MOST_NAMES = 100
MOST_HITS = 500
MOST_MARKED = 20_000
DENSITY_BUCKETS = 512


@dataclass(frozen=True, eq=False)
class NameIndex:
    """Names as they are searched.

    Attributes:
        folded: Each name in lower case.
        count: Number of drawn events of each name.
        lasting_ns: Sum of their durations.
        example: Position of one of them in `TraceIndex.events`; 0 where there is none.
    """

    folded: pl.Series
    count: npt.NDArray[np.int64]
    lasting_ns: npt.NDArray[np.int64]
    example: npt.NDArray[np.int64]

    @classmethod
    def of(cls, index: TraceIndex) -> NameIndex:
        """The names of a trace's events.

        Raises:
            ValueError: A slice has a name that there is not.
        """
        rows = index.events
        if len(rows.name) and int(rows.name.max()) >= len(index.names):
            raise ValueError("a slice has a name that there is not")
        count = np.bincount(rows.name, minlength=len(index.names))
        lasting_ns, example = np.zeros((2, len(index.names)), np.int64)
        np.add.at(lasting_ns, rows.name, rows.end_ns - rows.start_ns)
        example[rows.name] = np.arange(len(rows.name))
        return cls(index.names.str.to_lowercase(), count, lasting_ns, example)


def search(
    index: TraceIndex,
    names: NameIndex,
    text: str,
    after_ns: int = 0,
    skip: int = 0,
) -> dict[str, Any]:
    """Events whose name has a text in it, whatever its case.

    Args:
        text: The text; not a pattern.
        after_ns: The hits that are listed are the first ones that start at this moment or later.
        skip: How many of those that start at this very moment are left out, because an earlier
            list has them.

    Returns:
        `total` events and `names` in all; `by_name`: the most frequent names with count, total
        time, colour, and whether they are on a GPU (a collective has the same name on both sides,
        and its times must not be taken for one another); `name_ids`: the first `MOST_MARKED` of all
        names that fit; `hits`: the first events after `after_ns`, in order of time (at the same
        moment, in order of rows), and `before`: how many there are before them; `next`: `after_ns`
        and `skip` of the list that follows, None where this is the last; `density`: hits that start
        in each of `DENSITY_BUCKETS` equal parts of the trace.
    """
    matches = names.folded.str.contains(text.lower(), literal=True).to_numpy()
    chosen = np.flatnonzero(matches & (names.count > 0))
    if not text or not len(chosen):
        nothing: dict[str, Any] = {key: [] for key in ("by_name", "hits", "density", "name_ids")}
        return {"total": 0, "names": 0, "before": 0, "next": None, **nothing}
    is_chosen = np.zeros(len(names.count), np.bool_)
    is_chosen[chosen] = True
    rows = index.events
    width = max(1, -(-(index.end_ns + 1) // DENSITY_BUCKETS))
    density = np.zeros(DENSITY_BUCKETS, np.int64)
    listed = np.empty((len(rows), MOST_HITS), np.int64)
    found = np.zeros(len(rows), np.int64)
    earlier = jit(scan_by_loop)(
        rows.offsets,
        rows.start_ns,
        rows.name,
        is_chosen,
        after_ns,
        skip,
        width,
        MOST_HITS,
        density,
        listed.reshape(-1),
        found,
    )
    # The first of every row, and of these the first of all.
    positions = listed[np.arange(MOST_HITS) < found[:, None]]
    positions = positions[np.argsort(rows.start_ns[positions], kind="stable")][:MOST_HITS]
    starts = rows.start_ns[positions]
    total = int(density.sum())
    following: list[int] | None = None
    if len(starts) and earlier + len(starts) < total:
        last_ns = int(starts[-1])
        alike = int((starts == last_ns).sum())
        following = [last_ns, alike + (skip if last_ns == after_ns else 0)]
    by_count = chosen[np.argsort(-names.count[chosen], kind="stable")]
    return {
        "total": total,
        "names": len(chosen),
        "before": int(earlier),
        "next": following,
        "name_ids": by_count[:MOST_MARKED].tolist(),
        "by_name": [_named(index, names, int(one)) for one in by_count[:MOST_NAMES]],
        "hits": [brief(index, int(event)) for event in rows.event[positions]],
        "density": density.tolist(),
    }


def _named(index: TraceIndex, names: NameIndex, name: int) -> dict[str, Any]:
    position = int(names.example[name])
    lane = index.lane_of_row(index.row_at(position))
    return {
        "name": index.names[name],
        "count": int(names.count[name]),
        "total_ns": int(names.lasting_ns[name]),
        "colour": int(index.events.colour[position]),
        "is_gpu": lane is not None and lane.kind == "stream",
    }


def scan_by_loop(
    offsets: Int64Array,
    start: Int64Array,
    name: UInt32Array,
    is_chosen: BoolArray,
    after: int,
    skip: int,
    width: int,
    most: int,
    density: Written[np.int64],
    listed: Written[np.int64],
    found: Written[np.int64],
) -> int:
    """Go once through all slices, those from `offsets[row]` up to `offsets[row + 1]` of each row.

    Every name is less than `len(is_chosen)`, and `bucket` grows while it is not the last.

    Args:
        start: Start of every slice, not negative; sorted in each row.
        name: Name of every slice.
        is_chosen: For each name whether it is searched for.
        after: From when on hits are listed.
        skip: How many of the hits that start at `after` are not listed, in order of rows.
        width: Of a bucket of the density.
        most: How many hits of each row are listed.
        density: Hits in each bucket; zeros, to be filled in.
        listed: Positions of the first hits, `most` for each row; to be filled in.
        found: How many they are for each row; to be filled in.

    Returns:
        How many hits start before `after`, and those that were skipped.
    """
    earlier = 0
    skipped = 0
    for row in range(len(offsets) - 1):
        number = 0
        # A division for each hit would take longer than all the rest. The last bucket has whatever
        # a damaged file places after it.
        bucket, limit = 0, width
        for at in range(offsets[row], offsets[row + 1]):
            if not is_chosen[name[at]]:
                continue
            first = start[at]
            while first >= limit and bucket < len(density) - 1:
                bucket += 1
                limit += width
            density[bucket] += 1
            if first < after:
                earlier += 1
            elif first == after and skipped < skip:
                skipped += 1
            elif number < most:
                listed[row * most + number] = at
                number += 1
        found[row] = number
    return earlier + skipped
