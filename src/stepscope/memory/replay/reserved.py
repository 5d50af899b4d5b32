"""What the allocator had reserved of the device, and when.

Segments come and go as a whole (cudaMalloc, cudaFree). Expandable segments grow and shrink by
pages, and the range that is unmapped need not be one that was mapped: these are cut at every place
where any such range begins or ends, and each piece has its own history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.memory.replay.arrays import (
    CODES,
    NOT_GIVEN,
    BoolArray,
    History,
    Int64Array,
    last_before,
    nullable,
    whole,
)
from stepscope.memory.replay.pairing import AT_SNAPSHOT, BEGIN, END, NONE, Paired, pair
from stepscope.memory.schema import Action, Snapshot, Types

RESERVED: Types = {
    "stretch": pl.Int64,  # row number, from 0
    "device": pl.Int32,
    "address": pl.Int64,
    "size_bytes": pl.Int64,
    "stream": pl.Int64,
    "pool": pl.Int32,  # -> pools; null: not known
    "is_large": pl.Boolean,  # its size class; null: not known
    "is_expandable": pl.Boolean,
    "stack": pl.UInt32,  # -> stacks: who asked for it
    "start_event": pl.Int64,  # null: it was there before the recording
    "end_event": pl.Int64,  # null: it was there at the snapshot
}
"""One row per stretch of memory that the allocator held of the device for a time: a segment, or a
part of an expandable one that was mapped and unmapped as one."""

_MOST_PIECES = 50_000_000
"""Of expandable segments; a history that needs more is not a recorder's."""


Contradictions = list[tuple[npt.NDArray[np.uint8], Int64Array, Int64Array, Int64Array]]
"""Of segments: kind (of `pairing`), event (`NONE` at the snapshot), device and address."""


@dataclass(frozen=True)
class _Ranges:
    """What happened to ranges of memory: the events, then what exists at the snapshot."""

    device: npt.NDArray[np.int32]
    address: Int64Array
    size: Int64Array
    what: npt.NDArray[np.uint8]
    number: Int64Array  # of the event, or of the segment

    @property
    def is_final(self) -> BoolArray:
        return np.asarray(self.what == AT_SNAPSHOT)

    def paired(self) -> Paired:
        going = np.zeros(len(self.device), np.bool_)
        return pair(self.device, self.address, self.what, self.size, self.number, going)


def reserved_history(snapshot: Snapshot, history: History) -> tuple[pl.DataFrame, Contradictions]:
    """What was reserved, and how the history of segments contradicts itself."""
    is_expandable = snapshot.segments["is_expandable"].to_numpy() | _was_mapped(snapshot, history)
    fixed = _ranges(snapshot, history, ~is_expandable, Action.SEGMENT_ALLOC, Action.SEGMENT_FREE)
    grown = _ranges(snapshot, history, is_expandable, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
    tables, contradictions = [], []
    for ranges, expandable in ((fixed, False), (_cut(grown), True)):
        if ranges is None or not len(ranges.device):
            continue
        paired = ranges.paired()
        tables.append(_stretches(snapshot, ranges, paired, expandable=expandable))
        at = np.where(ranges.is_final[paired.rows], NONE, ranges.number[paired.rows])
        places = ranges.device[paired.rows].astype(np.int64), ranges.address[paired.rows]
        contradictions.append((paired.kinds, at, *places))
    table = pl.concat(tables) if tables else pl.DataFrame(schema=RESERVED)
    table = table.with_columns(stretch=pl.int_range(pl.len(), dtype=pl.Int64)).select(
        pl.col(name).cast(kind) for name, kind in RESERVED.items()
    )
    return table, contradictions


def _was_mapped(snapshot: Snapshot, history: History) -> BoolArray:
    """Segments at whose address something was mapped: older files do not say what is expandable."""
    rows = history.rows(Action.SEGMENT_MAP)
    segments = snapshot.segments
    last = last_before(
        segments["device"],
        segments["address"],
        pl.Series(history.device[rows]),
        pl.Series(history.address[rows]),
    )
    ends = np.append(history.address[rows] + history.size[rows], NOT_GIVEN)
    return np.asarray(whole(segments["address"]) < ends[last])


def _ranges(
    snapshot: Snapshot, history: History, wanted: BoolArray, begins: Action, ends: Action
) -> _Ranges:
    rows = history.rows(begins, ends)
    segments = snapshot.segments
    address = whole(segments["address"])
    finals = np.flatnonzero(wanted & (address != NOT_GIVEN))
    what = np.where(history.action[rows] == CODES[begins], BEGIN, END)
    return _Ranges(
        np.concatenate([history.device[rows], segments["device"].to_numpy()[finals]]),
        np.concatenate([history.address[rows], address[finals]]),
        np.concatenate([history.size[rows], whole(segments["size_bytes"])[finals]]),
        np.concatenate([what, np.full(len(finals), AT_SNAPSHOT)]).astype(np.uint8),
        np.concatenate([rows, finals]),
    )


def _cut(ranges: _Ranges) -> _Ranges | None:
    """The ranges, cut at every boundary of any other; None where that would be too many pieces."""
    device, address, size, what, number = [], [], [], [], []
    pieces = 0
    for one in np.unique(ranges.device):
        mine = np.flatnonzero((ranges.device == one) & (ranges.size > 0))
        begin, end = ranges.address[mine], ranges.address[mine] + ranges.size[mine]
        cuts = np.unique(np.concatenate([begin, end]))
        first, last = np.searchsorted(cuts, begin), np.searchsorted(cuts, end)
        counts = last - first
        pieces += int(counts.sum())
        if pieces > _MOST_PIECES:
            return None
        rows = np.repeat(mine, counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(first, counts) + within
        device.append(ranges.device[rows])
        address.append(cuts[at])
        size.append(cuts[at + 1] - cuts[at] if len(at) else cuts[at])
        what.append(ranges.what[rows])
        number.append(ranges.number[rows])
    if not device:
        return ranges
    return _Ranges(*(np.concatenate(part) for part in (device, address, size, what, number)))


def _stretches(
    snapshot: Snapshot, ranges: _Ranges, paired: Paired, *, expandable: bool
) -> pl.DataFrame:
    """Rows of `RESERVED`; neighbours of an expandable segment with one history become one."""
    is_final = ranges.is_final[paired.key]
    known = np.where(is_final, ranges.number[paired.key], paired.final)  # the segment at the end
    event = np.where(is_final, NONE, ranges.number[paired.key])
    events = snapshot.events.select("stream", "pool", "stack").collect()
    segments, at_event = snapshot.segments, nullable(event, NONE)

    def either(name: str) -> pl.Series:
        """As the segment says at the snapshot, else the event."""
        of_segment = segments[name].gather(nullable(known, NONE))
        return of_segment.zip_with(pl.Series(known >= 0), events[name].gather(at_event))

    table = pl.DataFrame(
        {
            "device": ranges.device[paired.key],
            "address": ranges.address[paired.key],
            "size_bytes": ranges.size[paired.key],
            "stream": either("stream"),
            "pool": either("pool"),
            "is_large": segments["is_large"].gather(nullable(known, NONE)),
            "is_expandable": np.full(len(event), expandable),
            # A segment's own stack is that of its first part.
            "stack": events["stack"].gather(
                nullable(np.where(paired.begin == NONE, NONE, event), NONE)
            )
            if expandable
            else either("stack"),
            "start_event": nullable(paired.begin, NONE),
            "end_event": nullable(paired.end, NONE),
        }
    )
    return _joined(table) if expandable else table


def _joined(pieces: pl.DataFrame) -> pl.DataFrame:
    """Pieces that touch and began and ended together, as one."""
    same = ["device", "start_event", "end_event"]
    ordered = pieces.sort("device", "address", "start_event", nulls_last=False)
    ordered = ordered.sort(*same, "address", nulls_last=False)
    continues = pl.all_horizontal(
        pl.col(name).eq_missing(pl.col(name).shift()) for name in same
    ) & (pl.col("address") == (pl.col("address") + pl.col("size_bytes")).shift())
    numbered = ordered.with_columns(run=(~continues.fill_null(value=False)).cum_sum())
    return (
        numbered.group_by("run", maintain_order=True)
        .agg(pl.col("size_bytes").sum(), pl.exclude("size_bytes").first())
        .select(pieces.columns)
    )
