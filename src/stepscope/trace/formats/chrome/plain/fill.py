"""Writes the columns of a plain block in one compiled pass."""

from __future__ import annotations

import numpy as np

from stepscope.trace.formats.chrome.phases import EVENT_ROLE, INSTANT_ROLE, METADATA_ROLE
from stepscope.trace.formats.chrome.plain.layout import (
    ARGS_BITS,
    ARGS_FILLED,
    ARGS_FROM,
    BITS_EACH,
    CODE,
    CORRELATION_BITS,
    CORRELATION_IDS,
    CORRELATIONS_FILLED,
    DEVICE_BITS,
    DEVICES,
    DEVICES_FILLED,
    DUR,
    EVENT_BITS,
    EVENT_BYTES_FILLED,
    EVENT_CODES,
    EVENT_INTS,
    EVENT_LONGS,
    EVENT_ROOM,
    EVENT_TEXT,
    EVENT_VIEWS,
    EVENTS_FILLED,
    EXTERNAL_BITS,
    EXTERNAL_IDS,
    EXTERNALS_FILLED,
    FIRST_EVENT,
    FIRST_OF_LANE,
    ID_BITS,
    ID_COLUMN,
    IDS_FILLED,
    IS_DENSE,
    IS_GPU,
    IS_WORK,
    LANE_COLUMN,
    LANE_DEVICE,
    LANE_ID,
    LANE_IDS,
    LANE_STREAM,
    LENGTH,
    NAME_COLUMN,
    NAME_ID,
    NAME_IDS,
    NO_LANE,
    NUMBER,
    OTHER_FIELDS,
    OTHERS,
    PHASE_COLUMN,
    ROLE_OF,
    ROWS_FILLED,
    SIZE_BITS,
    SIZES,
    SIZES_FILLED,
    START,
    STREAM_BITS,
    STREAMS,
    STREAMS_FILLED,
    TEXT,
    TEXT_BITS,
    TEXT_BYTES_FILLED,
    TEXT_FROM,
    TEXTS_FILLED,
    TIME_COLUMN,
    VIEW_COLUMN,
)
from stepscope.trace.formats.chrome.rows import (
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DEVICE,
    HAS_EXTERNAL,
    HAS_FLOW,
    HAS_STREAM,
    INT64_MAX,
    LARGEST_DEVICE,
)
from stepscope.trace.formats.chrome.scanner.scan_bytes import copy_bytes
from stepscope.trace.formats.chrome.scanner.scanned import (
    BYTES,
    COLUMNS,
    CORRELATION,
    DATA,
    DEVICE,
    DURATION,
    EXTERNAL,
    FLAGS,
    FLOW,
    INLINE_BYTES,
    LANE,
    NAME,
    PHASES,
    ROOM,
    ROWS,
    STREAM,
    TIME,
    VIEWS,
)
from stepscope.trace.machine.helpers import jit_inline
from stepscope.trace.machine.instructions import (
    Data,
    Longs,
    byte_at,
    int_at,
    long_at,
    put_byte,
    put_int,
    put_long,
    put_word,
)
from stepscope.trace.machine.jit import jit

LENGTH_BYTES = 4
"""Bytes of the length before each text of a page."""
_HALF = np.uint64(32)


@jit_inline
def _put_bit(bits: Data, at: int, bit: int) -> None:
    """Marks a row as not null if the bit is 1."""
    put_byte(bits, at >> 3, byte_at(bits, at >> 3) | (bit << (at & 7)))


@jit_inline
def _put_text(
    source: Longs, row: int, data: Data, views: Longs, at: int, text: Data, used: int,
    is_dense: int,
) -> int:  # fmt: skip
    """Copies the text of a view, and returns how much of `text` is used.

    If dense, text that is not empty is written after its length; otherwise, the view is written as
    well, and text only if it does not fit into it.
    """
    first, second = long_at(source, 2 * row), long_at(source, 2 * row + 1)
    length = first & LENGTH
    if is_dense != 0:
        if length == 0:
            return used
        # Eight bytes each: whatever follows is overwritten.
        put_word(text, used, np.uint64(length))
        used += LENGTH_BYTES
    after = used
    if length > INLINE_BYTES:
        copy_bytes(text + used, data + (second >> 32), length)
        second = used << 32
        after += length
    elif is_dense != 0:
        low, high = np.uint64(first) >> _HALF, np.uint64(second)
        put_word(text, used, low | (high << _HALF))
        put_word(text, used + 8, high >> _HALF)
        after += length
    if is_dense == 0:
        put_long(views, 2 * at, first)
        put_long(views, 2 * at + 1, second)
    return after


@jit
def _put_other(
    block: Longs, row: int, name_id: int, lane_id: int, is_dense: int, table: Longs
) -> None:
    """Writes the columns of an instant, a counter sample or an end of an arrow.

    Args:
        block: Address of the block's description (`scanned`).
        is_dense: As in the target.
        table: Address of the fields of its table in the target.
    """
    columns, room = long_at(block, COLUMNS), long_at(block, ROOM)
    views, data = long_at(block, VIEWS), long_at(block, DATA)
    at, gap = long_at(table, ROWS_FILLED), 1 - is_dense
    put_int(long_at(table, NAME_COLUMN), at, name_id)
    put_int(long_at(table, LANE_COLUMN), at, lane_id)
    put_long(long_at(table, TIME_COLUMN), at, long_at(columns, TIME * room + row))
    put_byte(long_at(table, PHASE_COLUMN), at, byte_at(long_at(block, PHASES), row))
    identifiers = long_at(table, IDS_FILLED)
    put_long(long_at(table, ID_COLUMN), identifiers, long_at(columns, FLOW * room + row))
    bit = 1 if (byte_at(long_at(block, FLAGS), row) & HAS_FLOW) != 0 else 0
    _put_bit(long_at(table, ID_BITS), at, bit)
    put_long(table, IDS_FILLED, identifiers + (bit | gap))
    bit = 1 if (long_at(views, 2 * row) & LENGTH) != 0 else 0
    text, used = long_at(table, TEXT), long_at(table, TEXT_BYTES_FILLED)
    target_views = long_at(table, VIEW_COLUMN)
    used = _put_text(views, row, data, target_views, at, text, used, is_dense)
    _put_bit(long_at(table, TEXT_BITS), at - long_at(table, TEXT_FROM), bit)
    put_long(table, TEXT_BYTES_FILLED, used)
    put_long(table, TEXTS_FILLED, long_at(table, TEXTS_FILLED) + (bit | gap))
    put_long(table, ROWS_FILLED, at + 1)


@jit
def fill(block: Longs, meaning: Longs, target: Longs) -> int:
    """Writes the columns of a plain block, after those of earlier blocks.

    It stays inside its arrays: these have room for as many rows, and as much text, as were counted
    in the blocks (`survey`).

    Returns:
        The latest end of an event.
    """
    phases, flags, views = long_at(block, PHASES), long_at(block, FLAGS), long_at(block, VIEWS)
    name, lane, data = long_at(block, NAME), long_at(block, LANE), long_at(block, DATA)
    columns, room = long_at(block, COLUMNS), long_at(block, ROOM)
    role_of, is_work = long_at(meaning, ROLE_OF), long_at(meaning, IS_WORK)
    is_gpu, codes = long_at(meaning, IS_GPU), long_at(meaning, CODE)
    name_ids, lane_ids = long_at(meaning, NAME_ID), long_at(meaning, LANE_ID)
    event_longs, event_room = long_at(target, EVENT_LONGS), long_at(target, EVENT_ROOM)
    event_ints, event_codes = long_at(target, EVENT_INTS), long_at(target, EVENT_CODES)
    event_views, event_text = long_at(target, EVENT_VIEWS), long_at(target, EVENT_TEXT)
    event_bits, bits_each = long_at(target, EVENT_BITS), long_at(target, BITS_EACH)
    first_of_lane, first_event = long_at(target, FIRST_OF_LANE), long_at(target, FIRST_EVENT)
    is_dense = long_at(target, IS_DENSE)
    at, used = long_at(target, EVENTS_FILLED), long_at(target, EVENT_BYTES_FILLED)
    texts, correlation = long_at(target, ARGS_FILLED), long_at(target, CORRELATIONS_FILLED)
    external, size_at = long_at(target, EXTERNALS_FILLED), long_at(target, SIZES_FILLED)
    device_at, stream_at = long_at(target, DEVICES_FILLED), long_at(target, STREAMS_FILLED)
    args_bits, args_from = long_at(target, ARGS_BITS), long_at(target, ARGS_FROM)
    lane_devices, lane_streams = long_at(meaning, LANE_DEVICE), long_at(meaning, LANE_STREAM)
    latest = -INT64_MAX
    gap = 1 - is_dense  # what a null adds to a column
    for row in range(long_at(block, ROWS)):
        phase, has = byte_at(phases, row), byte_at(flags, row)
        role = byte_at(role_of, phase)
        if role == METADATA_ROLE:
            continue
        name_number, lane_number = int_at(name, row), int_at(lane, row)
        if role != EVENT_ROLE:
            table = target + 8 * (OTHERS + OTHER_FIELDS * (role - INSTANT_ROLE))
            name_id, lane_id = long_at(name_ids, name_number), long_at(lane_ids, lane_number)
            _put_other(block, row, name_id, lane_id, is_dense, table)
            continue
        text_bit = 1 if (long_at(views, 2 * row) & LENGTH) != 0 else 0
        code = long_at(codes, name_number)
        put_int(event_ints, NAME_IDS * event_room + at, long_at(name_ids, name_number))
        put_int(event_ints, LANE_IDS * event_room + at, long_at(lane_ids, lane_number))
        put_byte(event_codes, at, code)
        start = long_at(columns, TIME * room + row)
        dur = long_at(columns, DURATION * room + row)
        latest = max(latest, start + dur)
        put_long(event_longs, NUMBER * event_room + at, first_event + at)
        put_long(event_longs, START * event_room + at, start)
        put_long(event_longs, DUR * event_room + at, dur)
        # Values are written in any case, as branches would cost more: what is null is overwritten.
        value = long_at(columns, CORRELATION * room + row)
        put_long(event_longs, CORRELATION_IDS * event_room + correlation, value)
        bit = 1 if (has & HAS_CORRELATION) != 0 else 0
        _put_bit(event_bits + CORRELATION_BITS * bits_each, at, bit)
        correlation += bit | gap
        value = long_at(columns, EXTERNAL * room + row)
        put_long(event_longs, EXTERNAL_IDS * event_room + external, value)
        bit = 1 if (has & HAS_EXTERNAL) != 0 else 0
        _put_bit(event_bits + EXTERNAL_BITS * bits_each, at, bit)
        external += bit | gap
        is_on_gpu = long_at(is_gpu, code) != 0
        device, lane_device = (
            long_at(columns, DEVICE * room + row),
            long_at(lane_devices, lane_number),
        )
        device = device if (has & HAS_DEVICE) != 0 else lane_device
        bit = 1 if is_on_gpu and 0 <= device <= LARGEST_DEVICE else 0
        device = device if bit != 0 else -1
        put_int(event_ints, DEVICES * event_room + device_at, device)
        _put_bit(event_bits + DEVICE_BITS * bits_each, at, bit)
        device_at += bit | gap
        stream, lane_stream = (
            long_at(columns, STREAM * room + row),
            long_at(lane_streams, lane_number),
        )
        stream = stream if (has & HAS_STREAM) != 0 else lane_stream
        bit = 1 if is_on_gpu and stream >= 0 else 0
        stream = stream if bit != 0 else -1
        put_long(event_longs, STREAMS * event_room + stream_at, stream)
        _put_bit(event_bits + STREAM_BITS * bits_each, at, bit)
        stream_at += bit | gap
        if is_on_gpu and long_at(first_of_lane, 2 * lane_number) == NO_LANE:
            put_long(first_of_lane, 2 * lane_number, device)
            put_long(first_of_lane, 2 * lane_number + 1, stream)
        is_on_work = long_at(is_work, code) != 0
        size = long_at(columns, BYTES * room + row)
        put_long(event_longs, SIZES * event_room + size_at, size)
        bit = 1 if (has & HAS_BYTES) != 0 and size >= 0 and is_on_work else 0
        _put_bit(event_bits + SIZE_BITS * bits_each, at, bit)
        size_at += bit | gap
        used = _put_text(views, row, data, event_views, at, event_text, used, is_dense)
        _put_bit(args_bits, at - args_from, text_bit)
        texts += text_bit | gap
        at += 1
    put_long(target, EVENTS_FILLED, at)
    put_long(target, EVENT_BYTES_FILLED, used)
    put_long(target, ARGS_FILLED, texts)
    put_long(target, CORRELATIONS_FILLED, correlation)
    put_long(target, EXTERNALS_FILLED, external)
    put_long(target, DEVICES_FILLED, device_at)
    put_long(target, STREAMS_FILLED, stream_at)
    put_long(target, SIZES_FILLED, size_at)
    return latest
