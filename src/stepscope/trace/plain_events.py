"""Tables of the complete events of a block, made in one pass by compiled code.

What `assemble.py` does with vectors, step by step, for rows of every kind. Here it is done for the
rows that the scanner reads and that are as they should be, which are nearly all rows of nearly all
files. Where any event of a block is wrong, the block is left to the vectors, which also count it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrow_columns import numbers_of, strings_of
from stepscope.trace.buffers import Buffers
from stepscope.trace.compiled import compiled
from stepscope.trace.rows import (
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DEVICE,
    HAS_DURATION,
    HAS_EXTERNAL,
    HAS_STREAM,
    HAS_TIME,
    INT64_MAX,
    Rows,
)
from stepscope.trace.scan_bytes import PADDING, as_long, copy_bytes
from stepscope.trace.scan_events import BYTES, CORRELATION, DEVICE, DURATION, EXTERNAL, STREAM, TIME

_COMPLETE = HAS_TIME | HAS_DURATION
_LARGEST_DEVICE = 2**31 - 1
_INLINE_BYTES = 12

# Rows of the matrix of bits that say which rows of a column are no null.
_ARGS, _CORRELATION, _EXTERNAL, _DEVICE, _STREAM, _BYTES = range(6)


@dataclass(frozen=True)
class Meaning:
    """What the numbers in rows stand for.

    Attributes:
        is_complete: For each phase: is it that of a complete event?
        is_gpu: For each code of a category: does it run on a GPU's lane?
        is_work: For each code of a category: does a GPU do it?
        name_id: Of each name of the rows, its number in the tables.
        code: Of each name of the rows, the code of its category.
        lane_id: Of each lane of the rows, its number in the tables.
        device: Of each lane of the rows, the device that its pid names; -1: none.
        stream: Of each lane of the rows, the stream that its tid names; -1: none.
    """

    is_complete: npt.NDArray[np.bool_]
    is_gpu: npt.NDArray[np.bool_]
    is_work: npt.NDArray[np.bool_]
    name_id: npt.NDArray[np.uint32]
    code: npt.NDArray[np.uint8]
    lane_id: npt.NDArray[np.uint32]
    device: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlainEvents:
    """The complete events of a block.

    Attributes:
        columns: As in `events`, without their numbers, and the code in place of the category.
        args: Their arguments, row for row.
        latest_ns: When the last of them ends.
        gpu_lanes: Each lane of a GPU, with device and stream (-1: none) of its first event.
    """

    columns: list[pl.Series]
    code: npt.NDArray[np.uint8]
    args: pl.Series
    latest_ns: int
    gpu_lanes: dict[int, tuple[int, int]]


@compiled
def _survey(
    phase: npt.NDArray[np.uint8],
    flags: npt.NDArray[np.uint32],
    name: npt.NDArray[np.int32],
    time_ns: npt.NDArray[np.int64],
    dur_ns: npt.NDArray[np.int64],
    views: npt.NDArray[np.uint32],
    is_complete: npt.NDArray[np.bool_],
    is_work: npt.NDArray[np.bool_],
    code: npt.NDArray[np.uint8],
) -> tuple[int, int]:
    """Counts complete events and the bytes of their arguments; -1 where one of them is wrong."""
    count = size = 0
    for row in range(len(phase)):
        if not is_complete[phase[row]]:
            continue
        dur = dur_ns[row]
        if (flags[row] & _COMPLETE) != _COMPLETE or dur < 0:
            return -1, 0
        if time_ns[row] > 0 and dur > INT64_MAX - time_ns[row]:
            return -1, 0
        if time_ns[row] == 0 and dur == 0 and is_work[code[name[row]]]:
            return -1, 0
        count += 1
        length = as_long(views[row, 0])
        if length > _INLINE_BYTES:
            size += length
    return count, size


@compiled
def _fill(
    phase: npt.NDArray[np.uint8],
    flags: npt.NDArray[np.uint32],
    name: npt.NDArray[np.int32],
    lane: npt.NDArray[np.int32],
    columns: npt.NDArray[np.int64],
    views: npt.NDArray[np.uint32],
    data: int,
    is_complete: npt.NDArray[np.bool_],
    is_gpu: npt.NDArray[np.bool_],
    is_work: npt.NDArray[np.bool_],
    name_id: npt.NDArray[np.uint32],
    code: npt.NDArray[np.uint8],
    lane_id: npt.NDArray[np.uint32],
    lane_device: npt.NDArray[np.int64],
    lane_stream: npt.NDArray[np.int64],
    first_of_lane: npt.NDArray[np.int64],
    out_numbers: npt.NDArray[np.uint32],
    out_code: npt.NDArray[np.uint8],
    out_device: npt.NDArray[np.int32],
    out_columns: npt.NDArray[np.int64],
    out_views: npt.NDArray[np.uint32],
    out_bits: npt.NDArray[np.uint8],
    out_text: int,
) -> int:
    """Writes the columns of complete events; returns when the last of them ends.

    `out_columns` are, in this order, time, duration, correlation, external id, stream, bytes.
    `out_text` is where texts are copied to; 0: they stay where they are.
    """
    latest = -INT64_MAX
    at = used = 0
    for row in range(len(phase)):
        if not is_complete[phase[row]]:
            continue
        has = flags[row]
        byte, bit = at >> 3, np.uint8(1 << (at & 7))
        kind = code[name[row]]
        out_numbers[0, at] = name_id[name[row]]
        out_numbers[1, at] = lane_id[lane[row]]
        out_code[at] = kind
        start, dur = columns[TIME, row], columns[DURATION, row]
        out_columns[0, at] = start
        out_columns[1, at] = dur
        latest = max(latest, start + dur)
        out_columns[2, at] = columns[CORRELATION, row]
        if has & HAS_CORRELATION:
            out_bits[_CORRELATION, byte] |= bit
        out_columns[3, at] = columns[EXTERNAL, row]
        if has & HAS_EXTERNAL:
            out_bits[_EXTERNAL, byte] |= bit
        device = stream = -1
        if is_gpu[kind]:
            device = columns[DEVICE, row] if has & HAS_DEVICE else lane_device[lane[row]]
            stream = columns[STREAM, row] if has & HAS_STREAM else lane_stream[lane[row]]
            if 0 <= device <= _LARGEST_DEVICE:
                out_bits[_DEVICE, byte] |= bit
            else:
                device = -1
            if stream >= 0:
                out_bits[_STREAM, byte] |= bit
            else:
                stream = -1
            if first_of_lane[lane[row]] < 0:
                first_of_lane[lane[row]] = at
        out_device[at] = device
        out_columns[4, at] = stream
        out_columns[5, at] = columns[BYTES, row]
        if (has & HAS_BYTES) and is_work[kind] and columns[BYTES, row] >= 0:
            out_bits[_BYTES, byte] |= bit
        length = as_long(views[row, 0])
        for word in range(4):
            out_views[at, word] = views[row, word]
        if length > 0:
            out_bits[_ARGS, byte] |= bit
        if out_text != 0 and length > _INLINE_BYTES:
            copy_bytes(out_text + used, data + as_long(views[row, 3]), length)
            out_views[at, 3] = used
            used += length
        at += 1
    return latest


def plain_events(rows: Rows, meaning: Meaning, buffers: Buffers | None) -> PlainEvents | None:
    """The complete events of rows that the scanner read; None where one of them is wrong.

    Args:
        rows: With `scanned`.
        meaning: What their numbers stand for.
        buffers: Where to take arrays from, for tables that are soon let go. None: they stay, and
            the arguments are copied, so that the block they stand in need not stay too.
    """
    scanned = rows.scanned
    assert scanned is not None
    count, size = _survey(
        rows.phase, rows.flags, rows.name, rows.time_ns, rows.dur_ns, scanned.views,
        meaning.is_complete, meaning.is_work, meaning.code,
    )  # fmt: skip
    if count < 0:
        return None
    # Columns in powers of two fit again.
    take = np.empty if buffers is None else buffers.take
    room = count if buffers is None else 1 << count.bit_length()
    numbers = take((2, room), np.uint32)
    code = take((room,), np.uint8)
    device = take((room,), np.int32)
    columns = take((6, room), np.int64)
    views = take((room, 4), np.uint32)
    bits = np.zeros((6, (count + 7) // 8), np.uint8)
    texts = np.empty(size + PADDING, np.uint8) if buffers is None else scanned.data
    first_of_lane = np.full(len(meaning.lane_id), -1, np.int64)
    latest_ns = _fill(
        rows.phase, rows.flags, rows.name, rows.lane, scanned.columns, scanned.views,
        scanned.data.ctypes.data, meaning.is_complete, meaning.is_gpu, meaning.is_work,
        meaning.name_id, meaning.code, meaning.lane_id, meaning.device, meaning.stream,
        first_of_lane, numbers, code, device, columns, views, bits,
        texts.ctypes.data if buffers is None else 0,
    )  # fmt: skip
    gpu_lanes = {
        int(meaning.lane_id[lane]): (int(device[at]), int(columns[4, at]))
        for lane, at in enumerate(first_of_lane.tolist())
        if at >= 0
    }
    made = [
        numbers_of("name_id", numbers[0, :count]),
        numbers_of("lane_id", numbers[1, :count]),
        numbers_of("start_ns", columns[0, :count]),
        numbers_of("dur_ns", columns[1, :count]),
        numbers_of("correlation", columns[2, :count].view(np.uint64), bits[_CORRELATION]),
        numbers_of("external_id", columns[3, :count].view(np.uint64), bits[_EXTERNAL]),
        numbers_of("device", device[:count], bits[_DEVICE]),
        numbers_of("stream", columns[4, :count], bits[_STREAM]),
        numbers_of("bytes", columns[5, :count], bits[_BYTES]),
    ]
    args = strings_of("args", texts, views[:count], bits[_ARGS])
    return PlainEvents(made, code[:count], args, latest_ns, gpu_lanes)
