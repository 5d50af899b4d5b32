"""Search over the whole trace: names are few, so they are searched first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.viewer.events import brief
from stepscope.viewer.index import TraceIndex

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
    """

    folded: pl.Series
    count: npt.NDArray[np.int64]

    @classmethod
    def of(cls, index: TraceIndex) -> NameIndex:
        """The names of a trace's events."""
        count = np.bincount(index.events.name, minlength=len(index.names))
        return cls(index.names.str.to_lowercase(), count)


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
    positions = np.flatnonzero(is_chosen[rows.name])
    starts = rows.start_ns[positions]
    by_count = chosen[np.argsort(-names.count[chosen], kind="stable")]
    lasting = np.bincount(
        rows.name[positions],
        weights=rows.end_ns[positions] - starts,  # doubles, exact up to 104 days
        minlength=len(names.count),
    )
    later = np.flatnonzero(starts >= after_ns)
    if len(later) > most:
        later = later[np.argpartition(starts[later], most - 1)[:most]]
    later = later[np.argsort(starts[later], kind="stable")]
    width = max(1, -(-(index.end_ns + 1) // DENSITY_BUCKETS))
    return {
        "total": len(positions),
        "names": len(chosen),
        "before": int(np.count_nonzero(starts < after_ns)),
        "name_ids": by_count[:MOST_MARKED].tolist(),
        "by_name": [
            {
                "name": index.names[int(one)],
                "count": int(names.count[one]),
                "total_ns": int(lasting[one]),
            }
            for one in by_count[:MOST_NAMES]
        ],
        "hits": [brief(index, int(rows.event[positions[one]])) for one in later],
        "density": np.bincount(starts // width, minlength=DENSITY_BUCKETS).tolist(),
    }
