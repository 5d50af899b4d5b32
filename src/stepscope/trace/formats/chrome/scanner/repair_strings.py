"""Copies strings, words and white space of JSON in machine code, and repairs what is wrong in them.

Bytes that are not UTF-8 and unpaired surrogates become U+FFFD. What is only almost JSON is repaired
as `lenient_json.py` does, where that is asked for. `repair_events.py` copies whole events.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.formats.chrome.scanner.scan_bytes import (
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
    plain_length,
    skip_space,
    space_length,
    word_of,
)
from stepscope.trace.formats.chrome.scanner.scan_values import is_digit, number_end
from stepscope.trace.machine.helpers import jit_inline
from stepscope.trace.machine.instructions import Data, byte_at, put_byte, word_at
from stepscope.trace.machine.jit import jit

# Where a string is. What may follow it depends on that.
KEY, MEMBER, ELEMENT = range(3)
# What was repaired.
BYTES, SURROGATES, SYNTAX = 1, 2, 4
# Why something cannot be copied: it is invalid, or there is no room.
FAILED, FULL = -1, -2

MARGIN = 512
"""How many bytes may be written between two checks of the space that is left."""
_WIDTH = 32
_LONGEST_WORD = 64
_LONGEST_KEY = 200  # of one that shows that a string has ended before it
_MOST_INNER_QUOTES = 100
NEWLINE = 10
_U = ord("u")
_TRUE, NULL, _FALSE = word_of(b"true"), word_of(b"null"), word_of(b"false")
FOUR_BYTES, FIVE_BYTES = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFF)


@jit_inline
def _is_unusual(character: int) -> bool:
    """Whether a character might be whitespace to a regular expression, or the end of the text."""
    return character < SPACE or character >= 0x7F


@jit
def _is_key(data: Data, at: int) -> int:
    """Whether a key and a colon follow the quote at `at`: 1 or 0; -1 if it is hard to tell."""
    is_ascii = True
    first, here = at + 1, at + 1
    while here - first <= _LONGEST_KEY:
        length = plain_length(data, here)
        here += length
        if length == _WIDTH:
            continue
        character = byte_at(data, here)
        if character == 0:
            return FAILED
        if here - first > _LONGEST_KEY:
            break
        if character == NEWLINE:
            return 0
        if character == QUOTE:
            following = byte_at(data, skip_space(data, here + 1))
            if _is_unusual(following):
                return FAILED
            return 1 if following == COLON else 0
        is_ascii = is_ascii and character < 0x80
        here += 1
    return 0 if is_ascii else FAILED


@jit
def _closes(data: Data, at: int, place: int) -> int:
    """Whether the quote at `at` closes a string: 1 or 0; -1 if it is hard to tell."""
    here = skip_space(data, at + 1)
    character = byte_at(data, here)
    if _is_unusual(character):
        return FAILED
    if place == KEY:
        return 1 if character == COLON else 0
    closing = CLOSE_OBJECT if place == MEMBER else CLOSE_LIST
    if character == closing:
        return 1
    if character != COMMA:
        return 0
    here = skip_space(data, here + 1)
    character = byte_at(data, here)
    if _is_unusual(character):
        return FAILED
    if character == closing:
        return 1
    if place == MEMBER:
        return _is_key(data, here) if character == QUOTE else 0
    is_value = character in (QUOTE, MINUS, OPEN_OBJECT, OPEN_LIST, 116, 102, 110, 78)  # tfnN
    return 1 if is_value or is_digit(character) else 0


@jit_inline
def _put_replacement(out: int) -> int:
    """Writes U+FFFD to an address, and returns the address after it."""
    put_byte(out, 0, 0xEF)
    put_byte(out, 1, 0xBF)
    put_byte(out, 2, 0xBD)
    return out + 3


@jit_inline
def _hexadecimal(digit: int) -> int:
    return digit + (ZERO if digit < 10 else 87)


@jit
def _put_control(out: int, character: int) -> int:
    """Writes the escape of a control character to an address, and returns the address after it."""
    put_byte(out, 0, BACKSLASH)
    letter = 0
    if character == 8:
        letter = 98
    elif character == 9:
        letter = 116
    elif character == NEWLINE:
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


@jit
def repair_string(
    data: Data, at: int, out: int, last: int, place: int, is_lenient: bool
) -> tuple[int, int, int]:
    """Copies the string at `at`.

    Args:
        out: The address to copy to.
        last: The last address at which `MARGIN` bytes may be written.
        is_lenient: Whether it need not be valid.

    Returns:
        The position after it, or why it cannot be copied; the address after its copy; and what was
        repaired, or the position from which on it cannot be copied.
    """
    put_byte(out, 0, QUOTE)
    at += 1
    out += 1
    wrong = inner_quotes = 0
    while True:
        if out > last:
            return FULL, out, 0
        copy_some(out, data + at)
        length = plain_length(data, at)
        at += length
        out += length
        if length == _WIDTH:
            continue
        character = byte_at(data, at)
        if character == QUOTE:
            closes = _closes(data, at, place) if is_lenient else 1
            if closes < 0:
                return FAILED, out, at
            if closes == 0:
                inner_quotes += 1
                if inner_quotes > _MOST_INNER_QUOTES:
                    return FAILED, out, at
                wrong |= SYNTAX
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
                    return FAILED, out, at
                if closes == 1:
                    put_byte(out, 0, BACKSLASH)
                    put_byte(out, 1, BACKSLASH)
                    put_byte(out, 2, QUOTE)
                    return at + 2, out + 3, wrong | SYNTAX
            length = escape_length(data, at)
            if length > 0:
                copy_some(out, data + at)
                at += length
                out += length
            elif length < 0:
                wrong |= SURROGATES
                at -= length
                out = _put_replacement(out)
            elif is_lenient:
                wrong |= SYNTAX
                put_byte(out, 0, BACKSLASH)
                put_byte(out, 1, BACKSLASH)
                at += 1
                out += 2
            else:
                return FAILED, out, at
        elif character >= 0x80:
            length = character_length(data, at)
            if length > 0:
                copy_some(out, data + at)
                at += length
                out += length
            else:
                wrong |= BYTES
                at += 1
                out = _put_replacement(out)
        elif character == 0 or not is_lenient:
            return FAILED, out, at
        else:
            wrong |= SYNTAX
            at += 1
            out = _put_control(out, character)


@jit
def _word_end(data: Data, at: int) -> int:
    """Returns the position after a bare word; -1 if there is none that is short and plain."""
    here = at
    while here - at <= _LONGEST_WORD:
        character = byte_at(data, here)
        if character in (
            SPACE, 9, NEWLINE, 13, QUOTE, COMMA, COLON,
            OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST,
        ):  # fmt: skip
            return here if here > at else FAILED
        if _is_unusual(character) or character == BACKSLASH:
            return FAILED
        here += 1
    return FAILED


@jit
def repair_word(data: Data, at: int, out: int, is_lenient: bool) -> tuple[int, int, int]:
    """Copies a number or a word, like `repair_string`. Words that JSON has not become strings."""
    end = number_end(data, at)
    if end >= 0:
        after = byte_at(data, end)
        if not is_lenient or after in (SPACE, 9, NEWLINE, 13, COMMA, CLOSE_LIST, CLOSE_OBJECT):
            copy_bytes(out, data + at, end - at)
            return end, out + end - at, 0
    end = _word_end(data, at)
    if end < 0:
        return FAILED, out, at
    word, length = word_at(data, at), end - at
    is_known = (length == 5 and (word & FIVE_BYTES) == _FALSE) or (
        length == 4 and ((word & FOUR_BYTES) == _TRUE or (word & FOUR_BYTES) == NULL)
    )
    if is_known:
        copy_some(out, data + at)
        return end, out + length, 0
    if not is_lenient:
        return FAILED, out, at
    put_byte(out, 0, QUOTE)
    copy_bytes(out + 1, data + at, length)
    put_byte(out + 1 + length, 0, QUOTE)
    return end, out + length + 2, SYNTAX


@jit
def _copy_long_space(data: Data, at: int, out: int, last: int) -> tuple[int, int]:
    """Like `copy_space`, for more than a space."""
    while out <= last:
        copy_some(out, data + at)
        length = space_length(data, at)
        at += length
        out += length
        if length < _WIDTH:
            return at, out
    return FULL, out


@jit_inline
def copy_space(data: Data, at: int, out: int, last: int) -> tuple[int, int]:
    """Copies the whitespace at `at`; returns the position after it, and the address."""
    if byte_at(data, at) > SPACE:
        return at, out
    if byte_at(data, at) == SPACE and byte_at(data, at + 1) > SPACE:
        put_byte(out, 0, SPACE)
        return at + 1, out + 1
    return _copy_long_space(data, at, out, last)


@jit_inline
def copy_string(
    data: Data, at: int, out: int, last: int, place: int, is_lenient: bool
) -> tuple[int, int, int]:
    """Like `repair_string`, faster for a short one that needs no repair."""
    copy_some(out, data + at)
    length = plain_length(data, at + 1)
    end = at + length + 2
    is_short = length + 2 <= _WIDTH and byte_at(data, end - 1) == QUOTE and out <= last
    if is_short and (not is_lenient or _closes(data, end - 1, place) == 1):
        return end, out + length + 2, 0
    return repair_string(data, at, out, last, place, is_lenient)
