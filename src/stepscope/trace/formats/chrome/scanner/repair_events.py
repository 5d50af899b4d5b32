"""Repairs values of JSON in machine code: the mistakes that recorders of traces are known to make.

Beyond the standard, it accepts control characters inside strings, unescaped quotes and backslashes,
commas before a closing bracket, missing values, and bare words. Bytes that are not UTF-8 and
unpaired surrogates become U+FFFD. What needs no repair stays unchanged, digit for digit.

Where a recorder makes a mistake, it often makes it in every event. The text between events is
therefore copied with these repaired, so that the scanner can read them (`repaired.py`). What the
tables do not hold, such as unknown keys, is left out there, and quotes around times and identifiers
are. The tolerant reader has single values repaired (`lenient_json.py`).

Text is data as in `scan_bytes.py`. Zero bytes end it, so that everything stays inside it.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.formats.chrome.scanner.repair_strings import (
    ALMOST,
    BYTES,
    ELEMENT,
    FAILED,
    FIVE_BYTES,
    FOUR_BYTES,
    FULL,
    KEY,
    MARGIN,
    MEMBER,
    NEWLINE,
    NULL,
    SURROGATES,
    SYNTAX,
    VALID,
    copy_space,
    copy_string,
    repair_string,
    repair_word,
)
from stepscope.trace.formats.chrome.scanner.scan_bytes import (
    CLOSE_LIST,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    OPEN_LIST,
    OPEN_OBJECT,
    QUOTE,
    SPACE,
    copy_bytes,
    has_escape,
    skip_space,
    word_of,
)
from stepscope.trace.formats.chrome.scanner.scan_values import number_end
from stepscope.trace.machine.instructions import (
    Data,
    Longs,
    byte_at,
    long_at,
    put_byte,
    put_long,
    put_word,
    word_at,
)
from stepscope.trace.machine.jit import jit

# What `repair` needs, and how far it got: addresses and numbers, as an int64 array.
(
    SOURCE,  # address of the text
    AT,  # position up to which it was copied
    SOURCE_END,  # its length
    LIMIT,  # position from which on no event is begun
    TARGET,  # address of the copy
    USED,  # its length
    CAPACITY,  # how long it may become
    LOG,  # address of the repaired events: one array for each of the fields below
    LOGGED,  # how many there are
    LOG_CAPACITY,  # how many there may be, and the stride from one array to the next
    ALONE,  # 0 to copy events; for a single value, `ALMOST` or `ALMOST_ESCAPED`
) = range(11)
JOB_FIELDS = 11

# Of each repaired event: where its copy begins and ends, how much further on in the text its end
# is, where it begins there, and what was wrong: a sum of the following.
COPY_START, COPY_END, SHIFT, SOURCE_START, WRONG = range(5)
LOG_FIELDS = 5
NOTHING, NOT_UTF8, NOT_JSON, UNKNOWN_KEYS = 0, 1, 2, 4

# Why `repair` stopped.
MORE, STUCK, COPY_FULL = range(3)

# What was repaired in an event, besides what `repair_strings.py` repairs.
_KEYS, _FORM = 8, 16
# Keys of an event, by what they hold.
_UNKNOWN, _USUAL, _UNUSED, _PHASE, _ARGUMENTS, _NUMBER = range(6)
_NO_COMMA = -1

_DEEPEST = 60
_MOST_STEPS = 200_000  # values, commas, brackets; what has more and is not valid is no event
_NEVER_CUT = 64  # errors this close to the end of the text may be caused by the end
_PH, _TS, _ID, _BP = word_of(b'ph"'), word_of(b'ts"'), word_of(b'id"'), word_of(b'bp"')
_CAT, _PID, _TID, _DUR = word_of(b'cat"'), word_of(b'pid"'), word_of(b'tid"'), word_of(b'dur"')
_NAME, _ARGS, _S = word_of(b'name"'), word_of(b'args"'), word_of(b's"')
_SF, _CNAME = word_of(b'sf"'), word_of(b'cname"')
_IGNORED = word_of(b'"s":""')
_TWO, _THREE, _SIX = np.uint64(0xFFFF), np.uint64(0xFFFFFF), np.uint64(0xFFFFFFFFFFFF)


@jit
def _key_of_event(data: Data, start: int, end: int) -> int:
    """Returns what a key of an event holds: `_UNKNOWN` and so on; -1 if it is hard to tell.

    Args:
        start: The position of its opening quote.
        end: The position after its closing quote.
    """
    word, length = word_at(data, start + 1), end - start - 1
    if length == 3:
        word &= _THREE
        if word == _PH:
            return _PHASE
        if word in (_TS, _ID):
            return _NUMBER
        if word in (_BP, _SF):
            return _USUAL if word == _BP else _UNUSED
    elif length == 4:
        word &= FOUR_BYTES
        if word in (_CAT, _PID, _TID, _DUR):
            return _NUMBER if word == _DUR else _USUAL
    elif length == 5:
        word &= FIVE_BYTES
        if word in (_NAME, _ARGS):
            return _ARGUMENTS if word == _ARGS else _USUAL
    elif length == 2 and (word & _TWO) == _S:
        return _USUAL
    elif length == 6 and (word & _SIX) == _CNAME:
        return _UNUSED
    return FAILED if has_escape(data, start, end) else _UNKNOWN


@jit
def _repair_container(
    data: Data, at: int, end: int, out: int, last: int, mode: int, is_event: bool
) -> tuple[int, int, int]:
    """Copies the object or list at `at`, like `repair_string`."""
    first, steps = at, 0
    character = byte_at(data, at)
    put_byte(out, 0, character)
    at += 1
    out += 1
    depth = 1
    # One bit per open bracket, innermost lowest: set for objects.
    objects = np.uint64(1) if character == OPEN_OBJECT else np.uint64(0)
    comma = _NO_COMMA  # the address of one that no member or element has followed so far
    is_after_value = has_phase = has_arguments = False
    wrong = 0
    # Of the present member of the event: what it holds, its address, the address of its value, and
    # what had been repaired before it.
    holds, member, value, before = _USUAL, out, out, 0
    while True:
        if out > last:
            return FULL, out, 0
        steps += 1
        if steps > _MOST_STEPS and mode != VALID:
            return FAILED, out, first
        at, out = copy_space(data, at, out, last)
        if at < 0:
            return at, out, 0
        character = byte_at(data, at)
        is_inside_object = (objects & np.uint64(1)) == np.uint64(1)
        has_value = False
        if character == (CLOSE_OBJECT if is_inside_object else CLOSE_LIST):
            if comma != _NO_COMMA:
                if mode == VALID:
                    return FAILED, out, at
                put_byte(comma, 0, SPACE)
                wrong |= SYNTAX
            put_byte(out, 0, character)
            at += 1
            out += 1
            depth -= 1
            if depth == 0:
                if is_event and not has_phase and mode != VALID:
                    return FAILED, out, at
                return at, out, wrong
            objects >>= np.uint64(1)
            comma, has_value = _NO_COMMA, True
        elif character == COMMA:
            at += 1
            if is_after_value:
                put_byte(out, 0, COMMA)
                comma, is_after_value = out, False
                out += 1
            elif mode != VALID:
                wrong |= SYNTAX
            else:
                return FAILED, out, at
            continue
        elif is_after_value:
            return FAILED, out, at
        else:
            start = at
            if depth == 1:
                member, before = out, wrong
            if is_inside_object:
                if character != QUOTE:
                    return FAILED, out, at
                at, out, found = copy_string(data, at, end, out, last, KEY, mode)
                if at < 0:
                    return at, out, found
                wrong |= found
                if depth == 1 and is_event:
                    holds = _key_of_event(data, start, at)
                    if holds < 0 or (holds == _ARGUMENTS and has_arguments):
                        return FAILED, out, at
                    has_arguments = has_arguments or holds == _ARGUMENTS
                at, out = copy_space(data, at, out, last)
                if at < 0 or byte_at(data, at) != COLON:
                    return min(at, FAILED), out, at
                put_byte(out, 0, COLON)
                at, out = copy_space(data, at + 1, out + 1, last)
                if at < 0:
                    return at, out, 0
                character = byte_at(data, at)
                start = at
                if depth == 1:
                    value = out
                    if holds == _PHASE:
                        has_phase = character == QUOTE
            comma = _NO_COMMA
            if character in (OPEN_OBJECT, OPEN_LIST):
                if depth == _DEEPEST:
                    return FAILED, out, at
                put_byte(out, 0, character)
                at += 1
                out += 1
                depth += 1
                objects <<= np.uint64(1)
                if character == OPEN_OBJECT:
                    objects |= np.uint64(1)
                continue
            if character == QUOTE:
                place = MEMBER if is_inside_object else ELEMENT
                at, out, found = copy_string(data, at, end, out, last, place, mode)
                is_number = depth == 1 and holds == _NUMBER
                if is_number and at > 0 and number_end(data, start + 1) == at - 1:
                    found = _FORM
                    copy_bytes(value, data + start + 1, at - start - 2)
                    out = value + at - start - 2
            elif mode != VALID and is_inside_object and character in (COMMA, CLOSE_OBJECT):
                found = SYNTAX
                put_word(out, 0, NULL)
                out += 4
            else:
                at, out, found = repair_word(data, at, out, last, mode, not is_event)
            if at < 0:
                return at, out, found
            wrong |= found
            has_value = True
        is_after_value = has_value
        if depth == 1 and holds in (_UNKNOWN, _UNUSED, _ARGUMENTS):
            is_null = out - value == 4 and (word_at(value, 0) & FOUR_BYTES) == NULL
            if holds != _ARGUMENTS or is_null:
                put_word(member, 0, _IGNORED)
                out = member + 6
                if mode == VALID:
                    wrong = before  # nobody sees what was wrong with it
                wrong |= _KEYS if holds == _UNKNOWN else _FORM


@jit
def _repair_value(
    data: Data, at: int, end: int, out: int, last: int, mode: int
) -> tuple[int, int, int]:
    """Copies the value at `at`, that of a member, like `repair_string`."""
    character = byte_at(data, at)
    if character in (OPEN_OBJECT, OPEN_LIST):
        return _repair_container(data, at, end, out, last, mode, False)
    if character == QUOTE:
        return repair_string(data, at, end, out, last, MEMBER, mode)
    if character in (COMMA, CLOSE_OBJECT, CLOSE_LIST):
        put_word(out, 0, NULL)
        return at, out + 4, SYNTAX
    return repair_word(data, at, out, last, mode, True)


@jit
def repair(job: Longs) -> int:
    """Copies text between the events of a list, with these repaired, as far as it can; or a value.

    It stays inside the copy, as it checks the space that is left before it writes `MARGIN` bytes,
    and inside the log.

    Args:
        job: Address of a description of what to do. How far it got is written there.

    Returns:
        `MORE` (it reached the limit, or the end of the value), `STUCK` (no event follows that it
        can copy; the value cannot be copied from this position on) or `COPY_FULL`.
    """
    data, at, end = long_at(job, SOURCE), long_at(job, AT), long_at(job, SOURCE_END)
    limit, target = long_at(job, LIMIT), long_at(job, TARGET)
    out, last = target + long_at(job, USED), target + long_at(job, CAPACITY) - MARGIN
    log, logged, log_capacity = long_at(job, LOG), long_at(job, LOGGED), long_at(job, LOG_CAPACITY)
    status = MORE
    alone = long_at(job, ALONE)
    if alone != VALID:
        after, out, found = _repair_value(data, at, end, out, last, alone)
        if after < 0:
            status = COPY_FULL if after == FULL else STUCK
        put_long(job, AT, after if after >= 0 else found)
        put_long(job, USED, out - target)
        return status
    while True:
        if out > last:
            status = COPY_FULL
            break
        character = byte_at(data, at)
        if at >= end or (at >= limit and character == OPEN_OBJECT):
            break
        if character in (SPACE, 9, NEWLINE, 13, COMMA):
            put_byte(out, 0, character)
            at += 1
            out += 1
            continue
        if character != OPEN_OBJECT or logged == log_capacity:
            if character == CLOSE_LIST:
                put_byte(out, 0, character)
                at += 1
                out += 1
            status = STUCK
            break
        after, copied, found = _repair_container(data, at, end, out, last, VALID, True)
        wrong = NOT_UTF8 if (found & (BYTES | SURROGATES)) != 0 else NOTHING
        if after == FAILED and found < end - _NEVER_CUT:  # there, more text could make it valid
            after, copied, found = _repair_container(data, at, end, out, last, ALMOST, True)
            wrong = NOT_UTF8 if (found & BYTES) != 0 else NOT_JSON
            if after >= 0:
                following = byte_at(data, skip_space(data, after))
                after = after if following in (COMMA, CLOSE_LIST) else FAILED
        # A block may end within a string that looks like the boundary between two events; its
        # memory goes on.
        if after < 0 or after > end:
            status = COPY_FULL if after == FULL else STUCK
            break
        if (found & _KEYS) != 0:
            wrong |= UNKNOWN_KEYS
        if found != 0:
            put_long(log, COPY_START * log_capacity + logged, out - target)
            put_long(log, COPY_END * log_capacity + logged, copied - target)
            put_long(log, SHIFT * log_capacity + logged, after - (copied - target))
            put_long(log, SOURCE_START * log_capacity + logged, at)
            put_long(log, WRONG * log_capacity + logged, wrong)
            logged += 1
        at, out = after, copied
    put_long(job, AT, at)
    put_long(job, USED, out - target)
    put_long(job, LOGGED, logged)
    return status
