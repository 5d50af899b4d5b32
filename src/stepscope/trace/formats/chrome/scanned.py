"""A block of events as the scanner leaves it, for the compiled code that goes on with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.arrow_columns import strings_of
from stepscope.trace.formats.chrome.rows import LanePair, NamePair, Rows, Vocabulary

# What compiled code is told of a block: addresses and numbers, as a row of int64.
(
    DATA,  # where the text begins in memory, with its padding
    END,  # where it ends, from there
    POSITION,  # up to where it was scanned
    BETWEEN,  # what came last: `event_text.Between`
    ROWS,  # how many events were found
    ROOM,  # for how many rows there is room, which is also from one column to the next
    COLUMNS,  # the int64 columns, one after the other
    VIEWS,  # the arguments as string views: two words for each
    PHASES,  # a byte for each
    FLAGS,  # a byte for each: which columns have a value (`rows.HAS_*`)
    NAME,  # an int32 for each: number of the pair of name and category
    LANE,  # an int32 for each: number of the pair of pid and tid
) = range(12)

# The int64 columns.
TIME, DURATION, FLOW, CORRELATION, EXTERNAL, DEVICE, STREAM, BYTES, OFFSET = range(9)
INT64_COLUMNS = 9

INLINE_BYTES = 12
"""Up to here a string view holds the text itself."""


@dataclass(frozen=True)
class Scanned:
    """Consecutive events, as the scanner read them.

    Attributes:
        block: What compiled code is told of them.
        data: Their text.
        offset: Of the text in the uncompressed file.
        columns: The int64 columns; `OFFSET` counts from the start of the text.
        views: The arguments, as string views.
        phases: The phase of each event.
        flags: Which columns have a value.
        name: Number of each event's pair of name and category.
        lane: Number of each event's pair of pid and tid.
        names: What the numbers in `name` stand for.
        lanes: What the numbers in `lane` stand for.
    """

    block: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]
    offset: int
    columns: npt.NDArray[np.int64]
    views: npt.NDArray[np.int64]
    phases: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    name: npt.NDArray[np.int32]
    lane: npt.NDArray[np.int32]
    names: Vocabulary[NamePair]
    lanes: Vocabulary[LanePair]

    def __len__(self) -> int:
        return int(self.block[ROWS])

    @property
    def times(self) -> npt.NDArray[np.int64]:
        """When each event is or begins, where its flags say that it has a time."""
        times: npt.NDArray[np.int64] = self.columns[TIME]
        return times

    def text(self, row: int) -> str | None:
        """The arguments of one event; None where it has none."""
        view = self.views[row : row + 1].view(np.uint32)[0]
        length, start = int(view[0]), int(view[3])
        if not length:
            return None
        if length <= INLINE_BYTES:
            return bytes(view[1:])[:length].decode()
        return bytes(self.data[start : start + length]).decode()

    def rows(self) -> Rows:
        """The same as columns that do not depend on the scanner."""
        count = len(self)
        columns, views = self.columns[:, :count], self.views[:count].view(np.uint32)
        return Rows(
            phase=self.phases[:count],
            flags=self.flags[:count].astype(np.uint32),
            name=self.name[:count],
            lane=self.lane[:count],
            time_ns=columns[TIME],
            dur_ns=columns[DURATION],
            flow_id=columns[FLOW].view(np.uint64),
            correlation=columns[CORRELATION].view(np.uint64),
            external_id=columns[EXTERNAL].view(np.uint64),
            device=columns[DEVICE],
            stream=columns[STREAM],
            bytes=columns[BYTES],
            offset=columns[OFFSET] + self.offset,
            args=strings_of(
                "args", self.data, views, np.packbits(views[:, 0] > 0, bitorder="little")
            ),
            names=self.names,
            lanes=self.lanes,
        )
