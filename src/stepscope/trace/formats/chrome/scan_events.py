"""The compiled scanner: reads a block of the list of events straight into columns, in one pass.

It handles the events that recorders write, in any layout and order of keys, and validates every
byte. At anything else, it stops before the event, which is then read by the tolerant reader, and
continues after it.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.formats.chrome.event_text import Between
from stepscope.trace.formats.chrome.rows import (
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DEVICE,
    HAS_DURATION,
    HAS_EXTERNAL,
    HAS_FLOW,
    HAS_STREAM,
    HAS_TIME,
)
from stepscope.trace.formats.chrome.scan_bytes import (
    CLOSE_LIST,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MINUS,
    OPEN_OBJECT,
    QUOTE,
    has_escape,
    plain_string_end,
    same_bytes,
    skip_space,
    string_end,
    unusual_string_end,
)
from stepscope.trace.formats.chrome.scan_values import (
    integer_end,
    is_digit,
    magnitude,
    nanoseconds_at,
    value_end,
)
from stepscope.trace.formats.chrome.scan_words import intern
from stepscope.trace.formats.chrome.scanned import (
    BETWEEN,
    BYTES,
    COLUMNS,
    CORRELATION,
    DATA,
    DEVICE,
    DURATION,
    END,
    EXTERNAL,
    FLAGS,
    FLOW,
    INLINE_BYTES,
    LANE,
    NAME,
    OFFSET,
    PHASES,
    POSITION,
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
    as_long,
    byte_at,
    long_at,
    put_byte,
    put_int,
    put_long,
    word_at,
)

# Why the scanner stopped.
USED_UP, ENDED, HANDED_OVER, FULL = range(4)

_AFTER_EVENT, _AFTER_COMMA = Between.AFTER_EVENT.value, Between.AFTER_COMMA.value

_TWO, _THREE = np.uint64(0xFFFF), np.uint64(0xFFFFFF)
_FOUR, _FIVE = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFF)
_SIX, _SEVEN = np.uint64(0xFFFFFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFF)


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


_S = _word(b's"')
_PH, _TS, _ID, _BP = _word(b'ph"'), _word(b'ts"'), _word(b'id"'), _word(b'bp"')
_CAT, _PID, _TID, _DUR = _word(b'cat"'), _word(b'pid"'), _word(b'tid"'), _word(b'dur"')
_NAME, _ARGS = _word(b'name"'), _word(b'args"')
_KEY_BYTES, _KEY_DEVICE, _KEY_STREAM = _word(b'bytes"'), _word(b'device"'), _word(b'stream"')
_CORRELAT, _ION = _word(b"correlat"), _word(b'ion"')
_EXTERNAL_NEW, _EXTERNAL_OLD, _SPACE_ID = _word(b"External"), _word(b"external"), _word(b' id"')

_ARGUMENT_BITS = HAS_CORRELATION | HAS_EXTERNAL | HAS_DEVICE | HAS_STREAM | HAS_BYTES
_EXTERNAL_NEW_SLOT = 100


@inlined
def argument_slot(data: Data, at: int) -> int:
    """Returns the column for the argument with the key at `at`; -1 if it has none."""
    word = word_at(data, at)
    if word == _CORRELAT:
        return CORRELATION if (word_at(data, at + 8) & _FOUR) == _ION else -1
    if word == _EXTERNAL_NEW:
        return _EXTERNAL_NEW_SLOT if (word_at(data, at + 8) & _FOUR) == _SPACE_ID else -1
    if word == _EXTERNAL_OLD:
        return EXTERNAL if (word_at(data, at + 8) & _FOUR) == _SPACE_ID else -1
    if (word & _SEVEN) == _KEY_DEVICE:
        return DEVICE
    if (word & _SEVEN) == _KEY_STREAM:
        return STREAM
    if (word & _SIX) == _KEY_BYTES:
        return BYTES
    return -1


@inlined
def slot_bit(slot: int) -> int:
    """Returns the flag of a column."""
    if slot == CORRELATION:
        return HAS_CORRELATION
    if slot in (EXTERNAL, _EXTERNAL_NEW_SLOT):
        return HAS_EXTERNAL
    if slot == DEVICE:
        return HAS_DEVICE
    if slot == STREAM:
        return HAS_STREAM
    return HAS_BYTES


@inlined
def scan_arguments(data: Data, at: int, columns: Longs, stride: int) -> tuple[int, int]:
    """Reads the arguments at `at`.

    Args:
        data: The block.
        at: Position of the opening brace.
        columns: Address of the event's row in the first column.
        stride: Distance between columns.

    Returns:
        The position after the arguments, or -1 if they are unusual; and flags of what was found.
    """
    flags = 0
    external_is_new = False
    at = skip_space(data, at + 1)
    if byte_at(data, at) == CLOSE_OBJECT:
        return at + 1, 0
    while True:
        if byte_at(data, at) != QUOTE:
            return -1, 0
        slot = argument_slot(data, at + 1)
        key_start = at + 1
        at = plain_string_end(data, key_start)
        if at < 0:
            at = unusual_string_end(data, key_start)
            if at < 0 or has_escape(data, key_start, at):
                return -1, 0  # an escaped key might have a column
        at = skip_space(data, at + 1)
        if byte_at(data, at) != COLON:
            return -1, 0
        at = skip_space(data, at + 1)
        end = -1
        if slot >= 0:
            bit = slot_bit(slot)
            character = byte_at(data, at)
            is_new = slot == _EXTERNAL_NEW_SLOT
            if is_digit(character) or character == MINUS:
                end = integer_end(data, at)
            counts = not (slot == EXTERNAL and external_is_new)
            if counts:
                flags &= ~bit
            if end >= 0 and counts:
                value, fits = magnitude(data, at, end)
                negative = character == MINUS and value != np.uint64(0)
                if not fits:
                    return -1, 0
                if slot in (CORRELATION, EXTERNAL, _EXTERNAL_NEW_SLOT):
                    if not negative:
                        target = EXTERNAL if is_new else slot
                        put_long(columns, target * stride, as_long(value))
                        flags |= bit
                elif value > np.uint64(0x7FFFFFFFFFFFFFFF):
                    return -1, 0
                else:
                    put_long(
                        columns, slot * stride, -as_long(value) if negative else as_long(value)
                    )
                    flags |= bit
            external_is_new = external_is_new or is_new
        if end < 0:
            end = value_end(data, at)
            if end < 0:
                return -1, 0
        at = skip_space(data, end)
        character = byte_at(data, at)
        if character == CLOSE_OBJECT:
            return at + 1, flags
        if character != COMMA:
            return -1, 0
        at = skip_space(data, at + 1)


@inlined
def short_view(data: Data, start: int, end: int) -> tuple[int, int]:
    """Returns the last 96 bits of a string view of up to twelve bytes, as 32 and 64 bits."""
    low = high = 0
    for offset in range(min(end - start, 4)):
        low |= byte_at(data, start + offset) << (8 * offset)
    for offset in range(4, end - start):
        high |= byte_at(data, start + offset) << (8 * (offset - 4))
    return low, high


@inlined
def lane_word(data: Data, at: int) -> tuple[int, int, int]:
    """Returns start and length of a pid or tid, and the position after; -1 if unusual."""
    if byte_at(data, at) == QUOTE:
        end = string_end(data, at + 1)
        if has_escape(data, at + 1, end):
            return 0, 0, -1
        return at + 1, end - at - 1, (end + 1 if end >= 0 else -1)
    end = integer_end(data, at)
    return at, end - at, end


@translated
def scan_events(block: Longs, name_table: Longs, lane_table: Longs) -> int:
    """Scans events up to the end of the block, the end of the list, or something unusual.

    Args:
        block: Address of the block's description (`scanned`). Position and counts are updated. A
            view of length 0 means no arguments.
        name_table: Address of the table of names (`scan_words`), which include quotes.
        lane_table: Address of the table of lanes, which do not.

    Returns:
        `USED_UP`, `ENDED`, `HANDED_OVER` (the event at the position is unusual) or `FULL` (no room
        for another row or word).
    """
    data, end, most_rows = long_at(block, DATA), long_at(block, END), long_at(block, ROOM)
    at, between, row = long_at(block, POSITION), long_at(block, BETWEEN), long_at(block, ROWS)
    columns, views = long_at(block, COLUMNS), long_at(block, VIEWS)
    phases, flag_column = long_at(block, PHASES), long_at(block, FLAGS)
    name_column, lane_column = long_at(block, NAME), long_at(block, LANE)
    last_pid_start = last_tid_start = lane_number = 0
    last_pid_length = last_tid_length = -2  # unlike any
    status = HANDED_OVER
    while True:
        at = skip_space(data, at)
        if at >= end:
            status = USED_UP
            break
        character = byte_at(data, at)
        if character == COMMA:
            if between != _AFTER_EVENT:
                break
            between = _AFTER_COMMA
            at += 1
            continue
        if character == CLOSE_LIST:
            if between == _AFTER_COMMA:
                break
            at += 1
            status = ENDED
            break
        if character != OPEN_OBJECT or between == _AFTER_EVENT:
            break
        if row >= most_rows:
            status = FULL
            break

        name_start = name_length = category_start = 0
        pid_start = tid_start = 0
        category_length = pid_length = tid_length = -1
        phase = 0
        flags = 0
        args_start = args_end = 0
        here = at + 1
        while True:
            here = skip_space(data, here)
            if byte_at(data, here) != QUOTE:
                here = -1
                break
            word = word_at(data, here + 1)
            word3, word4, word5 = word & _THREE, word & _FOUR, word & _FIVE
            if word4 in (_CAT, _PID, _TID, _DUR):
                here = skip_space(data, here + 5)
            elif word3 in (_PH, _TS, _ID, _BP):
                here = skip_space(data, here + 4)
            elif word5 in (_NAME, _ARGS):
                here = skip_space(data, here + 6)
            elif (word & _TWO) == _S:
                here = skip_space(data, here + 3)
            else:
                here = -1
                break
            if byte_at(data, here) != COLON:
                here = -1
                break
            here = skip_space(data, here + 1)
            character = byte_at(data, here)
            if word3 == _TS or word4 == _DUR:
                value, here = nanoseconds_at(data, here)
                if here < 0:
                    break
                if word3 == _TS:
                    put_long(columns, TIME * most_rows + row, value)
                    flags |= HAS_TIME
                else:
                    put_long(columns, DURATION * most_rows + row, value)
                    flags |= HAS_DURATION
            elif word4 == _PID:
                pid_start, pid_length, here = lane_word(data, here)
            elif word4 == _TID:
                tid_start, tid_length, here = lane_word(data, here)
            elif word5 == _ARGS:
                if character != OPEN_OBJECT:
                    here = -1
                    break
                args_start = here
                here, found = scan_arguments(data, here, columns + 8 * row, most_rows)
                args_end = here
                flags = (flags & ~_ARGUMENT_BITS) | found
            elif word3 == _ID:
                start = here
                here = integer_end(data, start)
                number, fits = magnitude(data, start, here)
                if character == MINUS or not fits:
                    here = -1
                    break
                put_long(columns, FLOW * most_rows + row, as_long(number))
                flags |= HAS_FLOW
            else:  # a string
                if character != QUOTE:
                    here = -1
                    break
                start = here
                here = string_end(data, start + 1)
                if here < 0:
                    break
                here += 1
                if word5 == _NAME:
                    name_start, name_length = start, here - start
                elif word4 == _CAT:
                    category_start, category_length = start, here - start
                elif word3 == _PH:
                    phase = byte_at(data, start + 1)
                    if here != start + 3 or phase >= 0x7F:
                        here = -1
                        break
            if here < 0:
                break
            here = skip_space(data, here)
            character = byte_at(data, here)
            here += 1
            if character == CLOSE_OBJECT:
                break
            if character != COMMA:
                here = -1
                break
        if here < 0 or here > end:
            break

        name_number = intern(
            data, name_start, name_length, category_start, category_length, name_table
        )
        is_same_lane = (
            pid_length == last_pid_length
            and tid_length == last_tid_length
            and same_bytes(data + pid_start, data + last_pid_start, pid_length)
            and same_bytes(data + tid_start, data + last_tid_start, tid_length)
        )
        if not is_same_lane:
            lane_number = intern(data, pid_start, pid_length, tid_start, tid_length, lane_table)
            last_pid_start, last_pid_length = pid_start, pid_length
            last_tid_start, last_tid_length = tid_start, tid_length
        if name_number < 0 or lane_number < 0:
            status = FULL
            break
        put_int(name_column, row, name_number)
        put_int(lane_column, row, lane_number)
        put_byte(phases, row, phase)
        put_byte(flag_column, row, flags)
        put_long(columns, OFFSET * most_rows + row, at)
        length = args_end - args_start
        if length <= INLINE_BYTES:
            low, high = short_view(data, args_start, args_end)
        else:
            low, high = as_long(word_at(data, args_start) & _FOUR), args_start << 32
        put_long(views, 2 * row, length | (low << 32))
        put_long(views, 2 * row + 1, high)
        row += 1
        at = here
        between = _AFTER_EVENT
    put_long(block, POSITION, at)
    put_long(block, BETWEEN, between)
    put_long(block, ROWS, row)
    return status
