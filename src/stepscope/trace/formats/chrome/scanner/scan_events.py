"""The compiled scanner: reads a block of the list of events straight into columns, in one pass.

It handles the events that recorders write, in any layout and order of keys, and validates every
byte. At anything else, it stops before the event, which is then read by the tolerant reader, and
continues after it. Most events are not read in full, but compared with earlier ones of their kind
(`scan_alike.py`).
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.formats.chrome.rows import HAS_DURATION, HAS_FLOW, HAS_TIME, Between
from stepscope.trace.formats.chrome.scanner.scan_alike import HEAD_BYTES, remember, scan_alike
from stepscope.trace.formats.chrome.scanner.scan_arguments import ARGUMENT_BITS, scan_arguments
from stepscope.trace.formats.chrome.scanner.scan_bytes import (
    CLOSE_LIST,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MINUS,
    OPEN_OBJECT,
    QUOTE,
    has_escape,
    same_bytes,
    skip_space,
    string_end,
    word_of,
)
from stepscope.trace.formats.chrome.scanner.scan_patterns import (
    AFTER_ARGUMENTS,
    ARGUMENTS,
    CREDIT,
    DECIMAL,
    MOST_CREDIT,
    NOTES,
    POSITIVE,
    RECOGNISED,
    note,
)
from stepscope.trace.formats.chrome.scanner.scan_rows import (
    BETWEEN,
    CAPACITY,
    COLUMNS,
    DATA,
    DURATION,
    END,
    FLOW,
    POSITION,
    ROWS,
    TIME,
    VIEWS,
    put_row,
    put_view,
)
from stepscope.trace.formats.chrome.scanner.scan_values import (
    integer_end,
    magnitude,
    nanoseconds_at,
)
from stepscope.trace.formats.chrome.scanner.scan_vocabularies import intern
from stepscope.trace.machine.helpers import as_long, jit_inline
from stepscope.trace.machine.instructions import (
    Data,
    Longs,
    byte_at,
    long_at,
    put_long,
    word_at,
)
from stepscope.trace.machine.jit import jit

# Why the scanner stopped.
USED_UP, ENDED, HANDED_OVER, FULL = range(4)

_AFTER_EVENT, _AFTER_COMMA = Between.AFTER_EVENT.value, Between.AFTER_COMMA.value

_TWO, _THREE = np.uint64(0xFFFF), np.uint64(0xFFFFFF)
_FOUR, _FIVE = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFF)

_S = word_of(b's"')
_PH, _TS, _ID, _BP = word_of(b'ph"'), word_of(b'ts"'), word_of(b'id"'), word_of(b'bp"')
_CAT, _PID = word_of(b'cat"'), word_of(b'pid"')
_TID, _DUR = word_of(b'tid"'), word_of(b'dur"')
_NAME, _ARGS = word_of(b'name"'), word_of(b'args"')

_SAMPLED = 15  # mask of the rows for which patterns are looked for although these bring nothing


@jit_inline
def looks_for_patterns(credit: int, row: int) -> bool:
    """Whether to compare with patterns: if that pays, and now and then to find out."""
    return credit > 0 or (credit == 0 and (row & _SAMPLED) == 0)


@jit_inline
def credit_after(credit: int, recognised: int) -> int:
    """Returns the new credit after so many events in a row were like patterns, and one was not.

    It is used up unless two of three events are like patterns.
    """
    return max(min(credit + recognised, MOST_CREDIT) - 2, 0)


@jit
def lane_word(data: Data, at: int) -> tuple[int, int, int]:
    """Returns start and length of a pid or tid, and the position after; -1 if unusual."""
    if byte_at(data, at) == QUOTE:
        end = string_end(data, at + 1)
        if has_escape(data, at + 1, end):
            return 0, 0, -1
        return at + 1, end - at - 1, (end + 1 if end >= 0 else -1)
    end = integer_end(data, at)
    return at, end - at, end


@jit
def scan_events(block: Longs, name_table: Longs, lane_table: Longs, pattern_table: Longs) -> int:
    """Scans events up to the end of the block, the end of the list, or something unusual.

    Args:
        block: Address of the block's description (`scan_rows`). Position and counts are updated. A
            view of length 0 means no arguments.
        name_table: Address of the table of names (`scan_vocabularies`), which include quotes.
        lane_table: Address of the table of lanes, which do not.
        pattern_table: Address of the description of the patterns (`scan_patterns`).

    Returns:
        `USED_UP`, `ENDED`, `HANDED_OVER` (the event at the position is unusual) or `FULL` (no space
        for another row or word).
    """
    data, end, most_rows = long_at(block, DATA), long_at(block, END), long_at(block, CAPACITY)
    at, between, row = long_at(block, POSITION), long_at(block, BETWEEN), long_at(block, ROWS)
    columns, views = long_at(block, COLUMNS), long_at(block, VIEWS)
    notes, credit = long_at(pattern_table, NOTES), long_at(pattern_table, CREDIT)
    has_looked = False
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

        if not has_looked and at + HEAD_BYTES <= end and looks_for_patterns(credit, row):
            after, next_row = scan_alike(block, pattern_table, at, row)
            recognised = next_row - row
            credit = credit_after(credit, recognised)
            has_looked = True
            if recognised:
                put_long(pattern_table, RECOGNISED, long_at(pattern_table, RECOGNISED) + recognised)
                at, row, between = after, next_row, _AFTER_COMMA
                continue

        put_long(notes, 0, 0)
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
                start = here
                value, here = nanoseconds_at(data, here)
                if here < 0:
                    break
                column = TIME if word3 == _TS else DURATION
                note(notes, start, here, DECIMAL, column)
                put_long(columns, column * most_rows + row, value)
                if word3 == _TS:
                    flags |= HAS_TIME
                else:
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
                note(notes, here, here, ARGUMENTS, 0)
                here, found = scan_arguments(data, here, columns + 8 * row, most_rows, notes)
                args_end = here
                note(notes, here, here, AFTER_ARGUMENTS, 0)
                flags = (flags & ~ARGUMENT_BITS) | found
            elif word3 == _ID:
                start = here
                here = integer_end(data, start)
                number, fits = magnitude(data, start, here)
                if character == MINUS or not fits:
                    here = -1
                    break
                note(notes, start, here, POSITIVE, FLOW)
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
        put_row(block, row, name_number, lane_number, phase, flags, at)
        put_view(views, row, data, args_start, args_end)
        row += 1
        if has_looked:
            has_looked = False
            here = skip_space(data, here)
            after = skip_space(data, here + 1)
            is_followed = byte_at(data, here) == COMMA and byte_at(data, after) == OPEN_OBJECT
            if is_followed and row < most_rows:
                numbers, codes = name_number | (lane_number << 32), phase | (flags << 8)
                remember(block, pattern_table, at, after, row, numbers, codes)
        at = here
        between = _AFTER_EVENT
    put_long(pattern_table, CREDIT, credit)
    put_long(block, POSITION, at)
    put_long(block, BETWEEN, between)
    put_long(block, ROWS, row)
    return status
