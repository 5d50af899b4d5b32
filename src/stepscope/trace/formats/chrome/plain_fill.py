"""Writes the columns of a plain block in one compiled pass."""

from __future__ import annotations

from stepscope.trace.formats.chrome.phases import EVENT_ROLE, FLOW_ROLE, METADATA_ROLE
from stepscope.trace.formats.chrome.plain_layout import (
    ARGS_BITS,
    BITS_EACH,
    CODE,
    CORRELATION_BITS,
    CORRELATION_IDS,
    DEVICE_BITS,
    DEVICES,
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
    FIRST_EVENT,
    FIRST_OF_LANE,
    FLOW_BITS,
    FLOW_INTS,
    FLOW_LONGS,
    FLOW_PHASES,
    FLOW_ROOM,
    FLOWS_FILLED,
    IS_GPU,
    IS_WORK,
    LANE_DEVICE,
    LANE_ID,
    LANE_IDS,
    LANE_STREAM,
    LENGTH,
    MOMENT_BITS,
    MOMENT_BYTES_FILLED,
    MOMENT_INTS,
    MOMENT_ROLES,
    MOMENT_ROOM,
    MOMENT_TEXT,
    MOMENT_TIMES,
    MOMENT_VIEWS,
    MOMENTS_FILLED,
    NAME_ID,
    NAME_IDS,
    NUMBER,
    ROLE_OF,
    SIZE_BITS,
    SIZES,
    START,
    STREAM_BITS,
    STREAMS,
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
from stepscope.trace.formats.chrome.scan_bytes import copy_bytes
from stepscope.trace.formats.chrome.scanned import (
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
from stepscope.trace.machine.calling import inlined, translated
from stepscope.trace.machine.instructions import (
    Data,
    Longs,
    byte_at,
    int_at,
    long_at,
    put_byte,
    put_int,
    put_long,
)


@inlined
def _set_bit(bits: Data, at: int) -> None:
    """Marks a row as not null."""
    put_byte(bits, at >> 3, byte_at(bits, at >> 3) | (1 << (at & 7)))


@inlined
def _put_bit(bits: Data, at: int, is_set: bool) -> None:
    """Marks a row as not null if it is not."""
    bit = 1 if is_set else 0
    put_byte(bits, at >> 3, byte_at(bits, at >> 3) | (bit << (at & 7)))


@inlined
def _put_view(
    views: Longs, at: int, source: Longs, row: int, data: Data, text: Data, used: int
) -> int:
    """Copies a view and its text, and returns how much of `text` is used."""
    first, second = long_at(source, 2 * row), long_at(source, 2 * row + 1)
    length = first & LENGTH
    if length > INLINE_BYTES:
        copy_bytes(text + used, data + (second >> 32), length)
        second = used << 32
        used += length
    put_long(views, 2 * at, first)
    put_long(views, 2 * at + 1, second)
    return used


@translated
def fill(block: Longs, meaning: Longs, target: Longs) -> int:
    """Writes the columns of a plain block, after those of earlier blocks.

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
    flow_longs, flow_ints = long_at(target, FLOW_LONGS), long_at(target, FLOW_INTS)
    flow_room = long_at(target, FLOW_ROOM)
    moment_ints, moment_room = long_at(target, MOMENT_INTS), long_at(target, MOMENT_ROOM)
    at, used = long_at(target, EVENTS_FILLED), long_at(target, EVENT_BYTES_FILLED)
    moment, moment_used = long_at(target, MOMENTS_FILLED), long_at(target, MOMENT_BYTES_FILLED)
    flow = long_at(target, FLOWS_FILLED)
    lane_devices, lane_streams = long_at(meaning, LANE_DEVICE), long_at(meaning, LANE_STREAM)
    latest = -INT64_MAX
    for row in range(long_at(block, ROWS)):
        phase, has = byte_at(phases, row), byte_at(flags, row)
        role = byte_at(role_of, phase)
        if role == METADATA_ROLE:
            continue
        name_number, lane_number = int_at(name, row), int_at(lane, row)
        if role == FLOW_ROLE:
            put_long(flow_longs, flow, long_at(columns, FLOW * room + row))
            put_long(flow_longs, flow_room + flow, long_at(columns, TIME * room + row))
            put_int(flow_ints, flow, long_at(name_ids, name_number))
            put_int(flow_ints, flow_room + flow, long_at(lane_ids, lane_number))
            put_byte(long_at(target, FLOW_PHASES), flow, phase)
            if has & HAS_FLOW:
                _set_bit(long_at(target, FLOW_BITS), flow)
            flow += 1
            continue
        has_args = (long_at(views, 2 * row) & LENGTH) != 0
        if role != EVENT_ROLE:
            put_long(long_at(target, MOMENT_TIMES), moment, long_at(columns, TIME * room + row))
            put_int(moment_ints, moment, long_at(name_ids, name_number))
            put_int(moment_ints, moment_room + moment, long_at(lane_ids, lane_number))
            put_byte(long_at(target, MOMENT_ROLES), moment, role)
            moment_used = _put_view(
                long_at(target, MOMENT_VIEWS), moment, views, row, data,
                long_at(target, MOMENT_TEXT), moment_used,
            )  # fmt: skip
            if has_args:
                _set_bit(long_at(target, MOMENT_BITS), moment)
            moment += 1
            continue
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
        value = long_at(columns, CORRELATION * room + row)
        put_long(event_longs, CORRELATION_IDS * event_room + at, value)
        _put_bit(event_bits + CORRELATION_BITS * bits_each, at, (has & HAS_CORRELATION) != 0)
        value = long_at(columns, EXTERNAL * room + row)
        put_long(event_longs, EXTERNAL_IDS * event_room + at, value)
        _put_bit(event_bits + EXTERNAL_BITS * bits_each, at, (has & HAS_EXTERNAL) != 0)
        # All are read in any case, as branches would cost more.
        is_on_gpu = long_at(is_gpu, code) != 0
        device, lane_device = (
            long_at(columns, DEVICE * room + row),
            long_at(lane_devices, lane_number),
        )
        device = device if (has & HAS_DEVICE) != 0 else lane_device
        has_device = is_on_gpu and 0 <= device <= LARGEST_DEVICE
        put_int(event_ints, DEVICES * event_room + at, device if has_device else -1)
        _put_bit(event_bits + DEVICE_BITS * bits_each, at, has_device)
        stream, lane_stream = (
            long_at(columns, STREAM * room + row),
            long_at(lane_streams, lane_number),
        )
        stream = stream if (has & HAS_STREAM) != 0 else lane_stream
        has_stream = is_on_gpu and stream >= 0
        put_long(event_longs, STREAMS * event_room + at, stream if has_stream else -1)
        _put_bit(event_bits + STREAM_BITS * bits_each, at, has_stream)
        if is_on_gpu and long_at(first_of_lane, lane_number) < 0:
            put_long(first_of_lane, lane_number, at)
        is_on_work = long_at(is_work, code) != 0
        size = long_at(columns, BYTES * room + row)
        put_long(event_longs, SIZES * event_room + at, size)
        has_size = (has & HAS_BYTES) != 0 and size >= 0 and is_on_work
        _put_bit(event_bits + SIZE_BITS * bits_each, at, has_size)
        used = _put_view(event_views, at, views, row, data, event_text, used)
        _put_bit(event_bits + ARGS_BITS * bits_each, at, has_args)
        at += 1
    put_long(target, EVENTS_FILLED, at)
    put_long(target, EVENT_BYTES_FILLED, used)
    put_long(target, FLOWS_FILLED, flow)
    put_long(target, MOMENTS_FILLED, moment)
    put_long(target, MOMENT_BYTES_FILLED, moment_used)
    return latest
