"""Mends events in machine code, so that the scanner can read them.

Where a recorder makes a mistake, it often makes it in every event. The text is therefore copied
with these events mended, as the tolerant reader would have them: valid JSON, except that bytes that
are not UTF-8 and unpaired surrogates become U+FFFD (`json_text.py`), or almost-valid JSON
(`lenient_json.py`). What the tables do not hold, such as unknown keys, is left out, and quotes
around times and identifiers are. Whatever is harder to tell is left to the tolerant reader.

Text is data as in `scan_bytes.py`. Zero bytes end it, so that everything stays inside it.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.formats.chrome.scan_bytes import (
    BACKSLASH,
    CLOSE_LIST,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MINUS,
    OPEN_LIST,
    OPEN_OBJECT,
    QUOTE,
    SPACE,
    ZERO,
    character_length,
    copy_bytes,
    copy_some,
    escape_length,
    has_escape,
    skip_space,
    spaces_go_on,
    strings_go_on,
    word_of,
)
from stepscope.trace.formats.chrome.scan_values import is_digit, number_end
from stepscope.trace.machine.calling import inlined, translated
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

# What `mend` needs, and how far it got: addresses and numbers, as an int64 array.
(
    SOURCE,  # address of the text
    AT,  # position up to which it was copied
    SOURCE_END,  # its length
    LIMIT,  # position from which on no event is begun
    TARGET,  # address of the copy
    USED,  # its length
    ROOM,  # how long it may become
    LOG,  # address of the mended events: one array for each of the fields below
    LOGGED,  # how many there are
    LOG_ROOM,  # how many there may be, and the stride from one array to the next
) = range(10)
JOB_FIELDS = 10

# Of each mended event: where its copy begins and ends, how much further on in the text its end is,
# where it begins there, and what was wrong: a sum of the following.
COPY_START, COPY_END, SHIFT, SOURCE_START, WRONG = range(5)
LOG_FIELDS = 5
NOTHING, NOT_UTF8, NOT_JSON, UNKNOWN_KEYS = 0, 1, 2, 4

# Why `mend` stopped.
MORE, STUCK, NO_ROOM = range(3)

# Where a string is. What may follow it depends on that.
_KEY, _MEMBER, _ELEMENT = range(3)
# What was mended in an event.
_BYTES, _SURROGATES, _SYNTAX, _KEYS, _FORM = 1, 2, 4, 8, 16
# Keys of an event, by what they hold.
_UNKNOWN, _USUAL, _UNUSED, _PHASE, _ARGUMENTS, _NUMBER = range(6)
# Why something cannot be copied: it is invalid; there is no room; or the tolerant reader shall say.
_FAILED, _FULL, _UNTOLD = -1, -2, -3
_NO_COMMA = -1

_WIDTH = 32
_MARGIN = 512  # what is written between two looks at the room that is left
_DEEPEST = 60
_LONGEST_WORD = 64
_LONGEST_KEY = 200  # of one that shows that a string has ended before it
_MOST_INNER_QUOTES = 100
_LONGEST_NOT_JSON = 200_000  # so that there are no more steps than the tolerant reader takes
_NEVER_CUT = 64  # errors this close to the end of the text may be caused by the end
_NEWLINE = 10
_U = ord("u")
_TRUE, _NULL, _FALSE = word_of(b"true"), word_of(b"null"), word_of(b"false")
_PH, _TS, _ID, _BP = word_of(b'ph"'), word_of(b'ts"'), word_of(b'id"'), word_of(b'bp"')
_CAT, _PID, _TID, _DUR = word_of(b'cat"'), word_of(b'pid"'), word_of(b'tid"'), word_of(b'dur"')
_NAME, _ARGS, _S = word_of(b'name"'), word_of(b'args"'), word_of(b's"')
_SF, _CNAME = word_of(b'sf"'), word_of(b'cname"')
_IGNORED = word_of(b'"s":""')
_TWO, _THREE, _SIX = np.uint64(0xFFFF), np.uint64(0xFFFFFF), np.uint64(0xFFFFFFFFFFFF)
_FOUR, _FIVE = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFF)


@inlined
def _is_unusual(character: int) -> bool:
    """Whether a character might be whitespace to a regular expression, or the end of the text."""
    return character < SPACE or character >= 0x7F


@translated
def _is_key(data: Data, at: int) -> int:
    """Whether a key and a colon follow the quote at `at`: 1 or 0; -1 if it is hard to tell."""
    is_ascii = True
    first, here = at + 1, at + 1
    while here - first <= _LONGEST_KEY:
        length = strings_go_on(data, here)
        here += length
        if length == _WIDTH:
            continue
        character = byte_at(data, here)
        if character == 0:
            return _FAILED
        if here - first > _LONGEST_KEY:
            break
        if character == _NEWLINE:
            return 0
        if character == QUOTE:
            following = byte_at(data, skip_space(data, here + 1))
            if _is_unusual(following):
                return _FAILED
            return 1 if following == COLON else 0
        is_ascii = is_ascii and character < 0x80
        here += 1
    return 0 if is_ascii else _FAILED


@translated
def _closes(data: Data, at: int, place: int) -> int:
    """Whether the quote at `at` closes a string: 1 or 0; -1 if it is hard to tell."""
    here = skip_space(data, at + 1)
    character = byte_at(data, here)
    if _is_unusual(character):
        return _FAILED
    if place == _KEY:
        return 1 if character == COLON else 0
    closing = CLOSE_OBJECT if place == _MEMBER else CLOSE_LIST
    if character == closing:
        return 1
    if character != COMMA:
        return 0
    here = skip_space(data, here + 1)
    character = byte_at(data, here)
    if _is_unusual(character):
        return _FAILED
    if character == closing:
        return 1
    if place == _MEMBER:
        return _is_key(data, here) if character == QUOTE else 0
    is_value = character in (QUOTE, MINUS, OPEN_OBJECT, OPEN_LIST, 116, 102, 110, 78)  # tfnN
    return 1 if is_value or is_digit(character) else 0


@inlined
def _put_replacement(out: int) -> int:
    """Writes U+FFFD to an address, and returns the address after it."""
    put_byte(out, 0, 0xEF)
    put_byte(out, 1, 0xBF)
    put_byte(out, 2, 0xBD)
    return out + 3


@inlined
def _hexadecimal(digit: int) -> int:
    return digit + (ZERO if digit < 10 else 87)


@translated
def _put_control(out: int, character: int) -> int:
    """Writes the escape of a control character to an address, and returns the address after it."""
    put_byte(out, 0, BACKSLASH)
    letter = 0
    if character == 8:
        letter = 98
    elif character == 9:
        letter = 116
    elif character == _NEWLINE:
        letter = 110
    elif character == 12:
        letter = 102
    elif character == 13:
        letter = 114
    if letter != 0:
        put_byte(out, 1, letter)
        return out + 2
    put_byte(out, 1, _U)
    put_byte(out, 2, ZERO)
    put_byte(out, 3, ZERO)
    put_byte(out, 4, _hexadecimal(character >> 4))
    put_byte(out, 5, _hexadecimal(character & 15))
    return out + 6


@translated
def _mend_string(
    data: Data, at: int, out: int, last: int, place: int, is_lenient: bool
) -> tuple[int, int, int]:
    """Copies the string at `at`.

    Args:
        data: The text.
        at: Position of the opening quote.
        out: The address to copy to.
        last: The last address from which on there is room for `_MARGIN` bytes.
        place: Where the string is.
        is_lenient: Whether it need not be valid.

    Returns:
        The position after it, or why it cannot be copied; the address after its copy; and what was
        mended, or the position from which on it cannot be copied.
    """
    put_byte(out, 0, QUOTE)
    at += 1
    out += 1
    wrong = inner_quotes = 0
    while True:
        if out > last:
            return _FULL, out, 0
        copy_some(out, data + at)
        length = strings_go_on(data, at)
        at += length
        out += length
        if length == _WIDTH:
            continue
        character = byte_at(data, at)
        if character == QUOTE:
            closes = _closes(data, at, place) if is_lenient else 1
            if closes < 0:
                return _FAILED, out, at
            if closes == 0:
                inner_quotes += 1
                if inner_quotes > _MOST_INNER_QUOTES:
                    return _FAILED, out, at
                wrong |= _SYNTAX
                put_byte(out, 0, BACKSLASH)
                out += 1
            put_byte(out, 0, QUOTE)
            at += 1
            out += 1
            if closes == 1:
                return at, out, wrong
        elif character == BACKSLASH:
            if is_lenient and byte_at(data, at + 1) == QUOTE:
                closes = _closes(data, at + 1, place)
                if closes < 0:
                    return _FAILED, out, at
                if closes == 1:
                    put_byte(out, 0, BACKSLASH)
                    put_byte(out, 1, BACKSLASH)
                    put_byte(out, 2, QUOTE)
                    return at + 2, out + 3, wrong | _SYNTAX
            length = escape_length(data, at)
            if length > 0:
                copy_some(out, data + at)
                at += length
                out += length
            elif length < 0:
                wrong |= _SURROGATES
                at -= length
                out = _put_replacement(out)
            elif is_lenient:
                wrong |= _SYNTAX
                put_byte(out, 0, BACKSLASH)
                put_byte(out, 1, BACKSLASH)
                at += 1
                out += 2
            else:
                return _FAILED, out, at
        elif character >= 0x80:
            length = character_length(data, at)
            if length > 0:
                copy_some(out, data + at)
                at += length
                out += length
            else:
                wrong |= _BYTES
                at += 1
                out = _put_replacement(out)
        elif character == 0 or not is_lenient:
            return _FAILED, out, at
        else:
            wrong |= _SYNTAX
            at += 1
            out = _put_control(out, character)


@translated
def _word_end(data: Data, at: int) -> int:
    """Returns the position after a bare word; -1 if there is none that is short and plain."""
    here = at
    while here - at <= _LONGEST_WORD:
        character = byte_at(data, here)
        if character in (
            SPACE, 9, _NEWLINE, 13, QUOTE, COMMA, COLON,
            OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST,
        ):  # fmt: skip
            return here if here > at else _FAILED
        if _is_unusual(character) or character == BACKSLASH:
            return _FAILED
        here += 1
    return _FAILED


@translated
def _mend_word(data: Data, at: int, out: int, is_lenient: bool) -> tuple[int, int, int]:
    """Copies a number or a word, like `_mend_string`. A word that JSON has not becomes a string."""
    end = number_end(data, at)
    if end >= 0:
        after = byte_at(data, end)
        if not is_lenient or after in (SPACE, 9, _NEWLINE, 13, COMMA, CLOSE_LIST, CLOSE_OBJECT):
            copy_bytes(out, data + at, end - at)
            return end, out + end - at, 0
    end = _word_end(data, at)
    if end < 0:
        return _FAILED, out, at
    word, length = word_at(data, at), end - at
    is_known = (length == 5 and (word & _FIVE) == _FALSE) or (
        length == 4 and ((word & _FOUR) == _TRUE or (word & _FOUR) == _NULL)
    )
    if is_known:
        copy_some(out, data + at)
        return end, out + length, 0
    if not is_lenient:
        return _FAILED, out, at
    put_byte(out, 0, QUOTE)
    copy_bytes(out + 1, data + at, length)
    put_byte(out + 1 + length, 0, QUOTE)
    return end, out + length + 2, _SYNTAX


@translated
def _copy_long_space(data: Data, at: int, out: int, last: int) -> tuple[int, int]:
    """Like `_copy_space`, for more than a space."""
    while out <= last:
        copy_some(out, data + at)
        length = spaces_go_on(data, at)
        at += length
        out += length
        if length < _WIDTH:
            return at, out
    return _FULL, out


@inlined
def _copy_space(data: Data, at: int, out: int, last: int) -> tuple[int, int]:
    """Copies the whitespace at `at`; returns the position after it, and the address."""
    if byte_at(data, at) > SPACE:
        return at, out
    if byte_at(data, at) == SPACE and byte_at(data, at + 1) > SPACE:
        put_byte(out, 0, SPACE)
        return at + 1, out + 1
    return _copy_long_space(data, at, out, last)


@inlined
def _copy_string(
    data: Data, at: int, out: int, last: int, place: int, is_lenient: bool
) -> tuple[int, int, int]:
    """Like `_mend_string`, faster for a short one that needs no mending."""
    copy_some(out, data + at)
    length = strings_go_on(data, at + 1)
    end = at + length + 2
    is_short = length + 2 <= _WIDTH and byte_at(data, end - 1) == QUOTE and out <= last
    if is_short and (not is_lenient or _closes(data, end - 1, place) == 1):
        return end, out + length + 2, 0
    return _mend_string(data, at, out, last, place, is_lenient)


@translated
def _key_of_event(data: Data, start: int, end: int) -> int:
    """Returns what a key of an event holds: `_UNKNOWN` and so on; -1 if it is hard to tell.

    Args:
        data: The text.
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
        word &= _FOUR
        if word in (_CAT, _PID, _TID, _DUR):
            return _NUMBER if word == _DUR else _USUAL
    elif length == 5:
        word &= _FIVE
        if word in (_NAME, _ARGS):
            return _ARGUMENTS if word == _ARGS else _USUAL
    elif length == 2 and (word & _TWO) == _S:
        return _USUAL
    elif length == 6 and (word & _SIX) == _CNAME:
        return _UNUSED
    return _FAILED if has_escape(data, start, end) else _UNKNOWN


@translated
def _mend_event(data: Data, at: int, out: int, last: int, is_lenient: bool) -> tuple[int, int, int]:
    """Copies the object at `at`, like `_mend_string`."""
    first = at
    put_byte(out, 0, OPEN_OBJECT)
    at += 1
    out += 1
    depth = 1
    objects = np.uint64(1)  # one bit per open bracket, innermost lowest: set for objects
    comma = _NO_COMMA  # the address of one that no member or element has followed so far
    is_after_value = has_phase = has_arguments = False
    wrong = 0
    # Of the present member of the event: what it holds, its address, the address of its value, and
    # what had been mended before it.
    holds, member, value, before = _USUAL, out, out, 0
    while True:
        at, out = _copy_space(data, at, out, last)
        if at < 0:
            return at, out, 0
        character = byte_at(data, at)
        is_inside_object = (objects & np.uint64(1)) == np.uint64(1)
        has_value = False
        if character == (CLOSE_OBJECT if is_inside_object else CLOSE_LIST):
            if comma != _NO_COMMA:
                if not is_lenient:
                    return _FAILED, out, at
                put_byte(comma, 0, SPACE)
                wrong |= _SYNTAX
            put_byte(out, 0, character)
            at += 1
            out += 1
            depth -= 1
            if depth == 0:
                if is_lenient and not (has_phase and at - first <= _LONGEST_NOT_JSON):
                    return _FAILED, out, at
                return at, out, wrong
            objects >>= np.uint64(1)
            comma, has_value = _NO_COMMA, True
        elif character == COMMA:
            at += 1
            if is_after_value:
                put_byte(out, 0, COMMA)
                comma, is_after_value = out, False
                out += 1
            elif is_lenient:
                wrong |= _SYNTAX
            else:
                return _FAILED, out, at
            continue
        elif is_after_value:
            return _FAILED, out, at
        else:
            start = at
            if depth == 1:
                member, before = out, wrong
            if is_inside_object:
                if character != QUOTE:
                    return _FAILED, out, at
                at, out, found = _copy_string(data, at, out, last, _KEY, is_lenient)
                if at < 0:
                    return at, out, found
                wrong |= found
                if depth == 1:
                    holds = _key_of_event(data, start, at)
                    if holds < 0 or (holds == _ARGUMENTS and has_arguments):
                        return _UNTOLD, out, at
                    has_arguments = has_arguments or holds == _ARGUMENTS
                at, out = _copy_space(data, at, out, last)
                if at < 0 or byte_at(data, at) != COLON:
                    return min(at, _FAILED), out, 0
                put_byte(out, 0, COLON)
                at, out = _copy_space(data, at + 1, out + 1, last)
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
                    return _UNTOLD, out, at
                put_byte(out, 0, character)
                at += 1
                out += 1
                depth += 1
                objects <<= np.uint64(1)
                if character == OPEN_OBJECT:
                    objects |= np.uint64(1)
                continue
            if character == QUOTE:
                place = _MEMBER if is_inside_object else _ELEMENT
                at, out, found = _copy_string(data, at, out, last, place, is_lenient)
                is_number = depth == 1 and holds == _NUMBER
                if is_number and at > 0 and number_end(data, start + 1) == at - 1:
                    found = _FORM
                    copy_bytes(value, data + start + 1, at - start - 2)
                    out = value + at - start - 2
            elif is_lenient and is_inside_object and character in (COMMA, CLOSE_OBJECT):
                found = _SYNTAX
                put_word(out, 0, _NULL)
                out += 4
            else:
                at, out, found = _mend_word(data, at, out, is_lenient)
            if at < 0:
                return at, out, found
            wrong |= found
            has_value = True
        is_after_value = has_value
        if depth == 1 and holds in (_UNKNOWN, _UNUSED, _ARGUMENTS):
            is_null = out - value == 4 and (word_at(value, 0) & _FOUR) == _NULL
            if holds != _ARGUMENTS or is_null:
                put_word(member, 0, _IGNORED)
                out = member + 6
                if not is_lenient:
                    wrong = before  # nobody sees what was wrong with it
                wrong |= _KEYS if holds == _UNKNOWN else _FORM


@translated
def mend(job: Longs) -> int:
    """Copies text between the events of a list, with these mended, as far as it can.

    It stays inside the copy, as it looks at the room that is left before it writes `_MARGIN` bytes,
    and inside the log.

    Args:
        job: Address of a description of what to do. How far it got is written there.

    Returns:
        `MORE` (it reached the limit, or the end), `STUCK` (no event follows that it can copy) or
        `NO_ROOM`.
    """
    data, at, end = long_at(job, SOURCE), long_at(job, AT), long_at(job, SOURCE_END)
    limit, target = long_at(job, LIMIT), long_at(job, TARGET)
    out, last = target + long_at(job, USED), target + long_at(job, ROOM) - _MARGIN
    log, logged, log_room = long_at(job, LOG), long_at(job, LOGGED), long_at(job, LOG_ROOM)
    status = MORE
    while True:
        if out > last:
            status = NO_ROOM
            break
        character = byte_at(data, at)
        if at >= end or (at >= limit and character == OPEN_OBJECT):
            break
        if character in (SPACE, 9, _NEWLINE, 13, COMMA):
            put_byte(out, 0, character)
            at += 1
            out += 1
            continue
        if character != OPEN_OBJECT or logged == log_room:
            if character == CLOSE_LIST:
                put_byte(out, 0, character)
                at += 1
                out += 1
            status = STUCK
            break
        after, copied, found = _mend_event(data, at, out, last, False)
        wrong = NOT_UTF8 if (found & (_BYTES | _SURROGATES)) != 0 else NOTHING
        if after == _FAILED and found < end - _NEVER_CUT:  # there, more text could make it valid
            after, copied, found = _mend_event(data, at, out, last, True)
            wrong = NOT_UTF8 if (found & _BYTES) != 0 else NOT_JSON
            if after >= 0:
                following = byte_at(data, skip_space(data, after))
                after = after if following in (COMMA, CLOSE_LIST) else _FAILED
        if after < 0:
            status = NO_ROOM if after == _FULL else STUCK
            break
        if (found & _KEYS) != 0:
            wrong |= UNKNOWN_KEYS
        if found != 0:
            put_long(log, COPY_START * log_room + logged, out - target)
            put_long(log, COPY_END * log_room + logged, copied - target)
            put_long(log, SHIFT * log_room + logged, after - (copied - target))
            put_long(log, SOURCE_START * log_room + logged, at)
            put_long(log, WRONG * log_room + logged, wrong)
            logged += 1
        at, out = after, copied
    put_long(job, AT, at)
    put_long(job, USED, out - target)
    put_long(job, LOGGED, logged)
    return status
