"""Search over the whole trace: names are few, so they are searched first."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.viewer.events import brief
from stepscope.viewer.index import TraceIndex

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """

    folded: pl.Series
    count: npt.NDArray[np.int64]
    lasting_ns: npt.NDArray[np.int64]

    @classmethod
    def of(cls, index: TraceIndex) -> NameIndex:
        """The names of a trace's events.

        Raises:
            ValueError: A slice has a name that there is not.
        """
        rows = index.events
        if int(rows.name.max(initial=0)) >= len(index.names):
            raise ValueError("a slice has a name that there is not")
        count, lasting_ns = (np.zeros(len(index.names), np.int64) for _ in range(2))
        _compiled_totals()(rows.start_ns, rows.end_ns, rows.name, count, lasting_ns)
        return cls(index.names.str.to_lowercase(), count, lasting_ns)


def search(
    index: TraceIndex, names: NameIndex, text: str, after_ns: int = 0, most: int = MOST_HITS
) -> dict[str, Any]:
    """Events whose name has a text in it, whatever its case.

    Args:
        index: The trace.
        names: Its names.
        text: The text; not a pattern.
        after_ns: The hits that are listed are the first ones that start at this moment or later.
        most: How many are listed.

    Returns:
        `total` events and `names` in all; `by_name`: the most frequent names with count and total
        time; `name_ids`: the first `MOST_MARKED` of all names that fit; `hits`: the first events
        after `after_ns`, in order of time, and `before`: how many there are before them;
        `density`: hits that start in each of `DENSITY_BUCKETS` equal parts of the trace.
    """
    matches = names.folded.str.contains(text.lower(), literal=True).to_numpy()
    chosen = np.flatnonzero(matches & (names.count > 0))
    if not text or not len(chosen):
        nothing: dict[str, Any] = {key: [] for key in ("by_name", "hits", "density", "name_ids")}
        return {"total": 0, "names": 0, "before": 0, **nothing}
    is_chosen = np.zeros(len(names.count), np.bool_)
    is_chosen[chosen] = True
    rows = index.events
    width = max(1, -(-(index.end_ns + 1) // DENSITY_BUCKETS))
    density = np.zeros(DENSITY_BUCKETS, np.int64)
    listed = np.empty((len(rows), most), np.int64)
    found = np.zeros(len(rows), np.int64)
    earlier = _compiled()(
        rows.offsets, rows.start_ns, rows.name, is_chosen, after_ns, width, (density, listed, found)
    )
    # The first of every row, and of these the first of all.
    positions = listed[np.arange(most) < found[:, None]]
    positions = positions[np.argsort(rows.start_ns[positions], kind="stable")][:most]
    by_count = chosen[np.argsort(-names.count[chosen], kind="stable")]
    return {
        "total": int(density.sum()),
        "names": len(chosen),
        "before": int(earlier),
        "name_ids": by_count[:MOST_MARKED].tolist(),
        "by_name": [
            {
                "name": index.names[int(one)],
                "count": int(names.count[one]),
                "total_ns": int(names.lasting_ns[one]),
            }
            for one in by_count[:MOST_NAMES]
        ],
        "hits": [brief(index, int(event)) for event in rows.event[positions]],
        "density": density.tolist(),
    }


def total_by_loop(start: Any, end: Any, name: Any, count: Any, lasting: Any) -> None:
    """Add up number and duration of the slices of each name; numba compiles it.

    Args:
        start: Start of every slice.
        end: End of every slice.
        name: Name of every slice.
        count: Slices of each name; zeros, to be filled in.
        lasting: Sum of their durations; zeros, to be filled in.
    """
    for at in range(len(name)):
        count[name[at]] += 1
        lasting[name[at]] += end[at] - start[at]


def scan_by_loop(
    offsets: Any, start: Any, name: Any, is_chosen: Any, after: int, width: int, out: Any
) -> int:
    """Go once through all slices; numba compiles it.

    Args:
        offsets: Of the rows.
        start: Start of every slice, not negative; sorted in each row.
        name: Name of every slice.
        is_chosen: For each name whether it is searched for.
        after: From when on hits are listed.
        width: Of a bucket of the density.
        out: Density, positions of the first hits of each row and how many they are; zeros, to be
            filled in.

    Returns:
        How many hits start before `after`.
    """
    density, listed, found = out
    most = listed.shape[1]
    earlier = 0
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
            elif number < most:
                listed[row, number] = at
                number += 1
        found[row] = number
    return earlier


@functools.cache
def _compiled_totals() -> Callable[..., None]:
    from numba import int64, uint32

    from stepscope.trace.arrays.compiled import array_of, compiled

    read, written = array_of(int64), array_of(int64, written=True)
    return compiled(total_by_loop, (read, read, array_of(uint32), written, written))


@functools.cache
def _compiled() -> Callable[..., int]:
    from numba import boolean, int64, uint32
    from numba.core.types import Array, Tuple

    from stepscope.trace.arrays.compiled import array_of, compiled

    read, written = array_of(int64), array_of(int64, written=True)
    out = Tuple((written, Array(int64, 2, "C"), written))  # type: ignore[no-untyped-call]
    names, chosen = array_of(uint32), array_of(boolean)
    return compiled(scan_by_loop, (read, read, names, chosen, int64, int64, out))
