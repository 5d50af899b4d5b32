"""A scanned block of events, in the layout that is shared by compiled code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.arrow_columns import strings_of
from stepscope.trace.formats.chrome.rows import LanePair, NamePair, Rows, Vocabulary
from stepscope.trace.problems import Problems

if TYPE_CHECKING:
    from stepscope.trace.formats.chrome.scanner.repaired import RepairedBlock

# Description of a block for compiled code: addresses and numbers, as an int64 array.
(
    DATA,  # address of the text, which ends in padding
    END,  # length of the text
    POSITION,  # position up to which it was scanned
    BETWEEN,  # state at that position: `event_text.Between`
    ROWS,  # number of events found
    ROOM,  # capacity in rows, and the stride from one column to the next
    COLUMNS,  # the int64 columns, contiguous
    VIEWS,  # arguments as string views, two words each
    PHASES,  # one byte each
    FLAGS,  # one byte each: which columns have a value (`rows.HAS_*`)
    NAME,  # one int32 each: number of the pair of name and category
    LANE,  # one int32 each: number of the pair of pid and tid
) = range(12)

# The int64 columns.
TIME, DURATION, FLOW, CORRELATION, EXTERNAL, DEVICE, STREAM, BYTES, OFFSET = range(9)
INT64_COLUMNS = 9

INLINE_BYTES = 12
"""Strings of up to this length are stored in the string view itself."""


@dataclass(frozen=True)
class Scanned:
    """Consecutive events, as read by the scanner.

    Attributes:
        block: Description of the block for compiled code.
        offset: Byte offset of the text in the uncompressed file.
        columns: The int64 columns. `OFFSET` is relative to the start of the text.
        views: Arguments, as string views.
        flags: Which columns have a value.
        name: Index of each event's pair in `names`.
        lane: Index of each event's pair in `lanes`.
        repaired: Where events had to be repaired; `data` is the repaired text then.
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
    repaired: RepairedBlock | None = None
    problems: Problems = field(default_factory=Problems)

    def __len__(self) -> int:
        return int(self.block[ROWS])

    def rows(self) -> Rows:
        """Returns the same events as columns that do not depend on the scanner."""
        count = len(self)
        columns, views = self.columns[:, :count], self.views[:count].view(np.uint32)
        starts = (
            columns[OFFSET] if self.repaired is None else self.repaired.originals(columns[OFFSET])
        )
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
            offset=starts + self.offset,
            args=strings_of(
                "args", self.data, views, np.packbits(views[:, 0] > 0, bitorder="little")
            ),
            names=self.names,
            lanes=self.lanes,
            problems=self.problems,
        )
