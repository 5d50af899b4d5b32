"""The layout of a scanned block, and how the compiled scanner writes what it read of one event."""

from __future__ import annotations

import numpy as np

from stepscope.trace.machine.helpers import as_long, jit_inline
from stepscope.trace.machine.instructions import (
    Data,
    Longs,
    byte_at,
    long_at,
    put_byte,
    put_int,
    put_long,
    word_at,
)

# Description of a block for compiled code: addresses and numbers, as an int64 array.
(
    DATA,  # address of the text, which ends in padding
    END,  # length of the text
    POSITION,  # position up to which it was scanned
    BETWEEN,  # state at that position: `rows.Between`
    ROWS,  # number of events found
    CAPACITY,  # capacity in rows, and the stride from one column to the next
    COLUMNS,  # the int64 columns, contiguous
    VIEWS,  # arguments as string views, two words each
    PHASES,  # one byte each
    FLAGS,  # one byte each: which columns have a value (`rows.HAS_*`)
    NAME,  # one int32 each: number of the pair of name and category
    LANE,  # one int32 each: number of the pair of pid and tid
) = range(12)

# The int64 columns: those of `rows.NUMBERS` in the same order, and the offset.
TIME, DURATION, FLOW, CORRELATION, EXTERNAL, DEVICE, STREAM, BYTES, OFFSET = range(9)
INT64_COLUMNS = 9

INLINE_BYTES = 12
"""Strings of up to this length are stored in the string view itself."""

_FOUR = np.uint64(0xFFFFFFFF)


@jit_inline
def short_view(data: Data, start: int, end: int) -> tuple[int, int]:
    """Returns the last 96 bits of a string view of up to twelve bytes, as 32 and 64 bits."""
    low = high = 0
    for offset in range(min(end - start, 4)):
        low |= byte_at(data, start + offset) << (8 * offset & 63)
    for offset in range(4, end - start):
        high |= byte_at(data, start + offset) << (8 * (offset - 4) & 63)
    return low, high


@jit_inline
def put_view(views: Longs, row: int, data: Data, start: int, end: int) -> None:
    """Writes the string view of some text."""
    length = end - start
    if length <= INLINE_BYTES:
        low, high = short_view(data, start, end)
    else:
        low, high = as_long(word_at(data, start) & _FOUR), start << 32
    put_long(views, 2 * row, length | (low << 32))
    put_long(views, 2 * row + 1, high)


@jit_inline
def put_row(
    block: Longs, row: int, name: int, lane: int, phase: int, flags: int, start: int
) -> None:
    """Writes what every event has.

    Args:
        row: Number of the event's row, less than the capacity.
        flags: Which columns it has.
    """
    put_int(long_at(block, NAME), row, name)
    put_int(long_at(block, LANE), row, lane)
    put_byte(long_at(block, PHASES), row, phase)
    put_byte(long_at(block, FLAGS), row, flags)
    put_long(long_at(block, COLUMNS), OFFSET * long_at(block, CAPACITY) + row, start)
