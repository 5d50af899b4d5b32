"""What in a history cannot be, and why that may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.memory.replay.pairing import (
    BEGINS_TWICE,
    END_WITHOUT_BEGIN,
    GONE_AT_SNAPSHOT,
    NONE,
    OTHER_SIZE,
    OTHER_STATE,
    THERE_AT_SNAPSHOT,
)
from stepscope.memory.replay.tables import CONTRADICTIONS

_WORDS = {
    "block": {
        BEGINS_TWICE: ("alloc_without_free", "a block is requested at an address that is in use"),
        END_WITHOUT_BEGIN: ("free_without_alloc", "a block is freed that was freed before"),
        GONE_AT_SNAPSHOT: (
            "missing_at_snapshot",
            "a block is in use by the history, but not in the snapshot",
        ),
        THERE_AT_SNAPSHOT: (
            "unexpected_at_snapshot",
            "a block is in use in the snapshot, but was freed by the history",
        ),
        OTHER_SIZE: ("other_size", "a block is freed or found with another size"),
        OTHER_STATE: ("other_state", "a block's state in the snapshot is not that of the history"),
    },
    "segment": {
        BEGINS_TWICE: ("segment_without_free", "a segment is allocated where one is"),
        END_WITHOUT_BEGIN: ("segment_free_without_alloc", "a segment is freed that was freed"),
        GONE_AT_SNAPSHOT: (
            "segment_missing_at_snapshot",
            "a segment is there by the history, but not in the snapshot",
        ),
        THERE_AT_SNAPSHOT: (
            "segment_unexpected_at_snapshot",
            "a segment is in the snapshot, but was freed by the history",
        ),
        OTHER_SIZE: ("segment_other_size", "a segment is freed or found with another size"),
    },
}
"""Of each kind of thing and of contradiction, a short stable word and what it means."""


@dataclass(frozen=True)
class Sources:
    """What is known of how the history was recorded."""

    is_overflowed: bool
    has_allocs: bool
    has_frees: bool

    def reason(self) -> str:
        """Why events may be missing."""
        if not self.has_allocs:
            return "the recorder was told to leave out allocations (skip_actions)"
        if not self.has_frees:
            return "the recorder was told to leave out frees (skip_actions)"
        if self.is_overflowed:
            return (
                "the recorder's ring dropped old events, which by itself contradicts nothing; "
                "recording was also off for a while, or another thread allocated while the "
                "snapshot was taken"
            )
        return (
            "events are missing: recording was off for a while, actions were left out "
            "(skip_actions), or another thread allocated while the snapshot was taken"
        )


Found = tuple[
    str,
    npt.NDArray[np.uint8],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
]
"""Kind of thing, then for each contradiction its kind, event, device and address."""


def table_of(found: Sequence[Found], sources: Sources) -> pl.DataFrame:
    """Contradictions by kind and device, with the columns of `tables.CONTRADICTIONS`."""
    rows = []
    for thing, kinds, events, devices, addresses in found:
        for kind, (word, meaning) in _WORDS[thing].items():
            for device in np.unique(devices[kinds == kind]).tolist():
                mine = np.flatnonzero((kinds == kind) & (devices == device))
                timed = mine[events[mine] != NONE]
                first = timed[np.argmin(events[timed])] if len(timed) else mine[0]
                event = int(events[first])
                rows.append(
                    (
                        word,
                        len(mine),
                        int(device),
                        None if event == NONE else event,
                        int(addresses[first]),
                        f"{meaning}; {sources.reason()}",
                    )
                )
    return pl.DataFrame(rows, schema=CONTRADICTIONS, orient="row")
