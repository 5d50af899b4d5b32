"""Copies strings, words and white space of JSON in machine code, and repairs what is wrong in them.

Bytes that are not UTF-8 and unpaired surrogates become U+FFFD. Where that is asked for, what is
only almost JSON is repaired: control characters in strings, unescaped quotes and backslashes, and
bare words (`N/A`, `nan`, `-inf`), which become strings. A quote closes a string where what follows
says so. `repair_events.py` copies whole values.
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
# How far a text may be from valid JSON: not at all, or as repair makes it valid; of the latter,
# whether a quote after a backslash may close a string, which then ends in that backslash.
VALID, ALMOST, ALMOST_ESCAPED = range(3)
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


@jit
def _is_key(data: Data, at: int, end: int) -> bool:
    """Whether a key and a colon follow the quote at `at`."""
    first, here = at + 1, at + 1
    while here - first <= _LONGEST_KEY:
        length = plain_length(data, here)
        here += length
        if length == _WIDTH:
            continue
        character = byte_at(data, here)
        if here >= end or here - first > _LONGEST_KEY or character == NEWLINE:
            return False
        if character == QUOTE:
            return byte_at(data, skip_space(data, here + 1)) == COLON
        here += 1
    return False


@jit
def _closes(data: Data, at: int, end: int, place: int) -> bool:
    """Whether the quote at `at` closes a string: it does where what follows says so."""
    here = skip_space(data, at + 1)
    character = byte_at(data, here)
    if place == KEY:
        return character == COLON
    closing = CLOSE_OBJECT if place == MEMBER else CLOSE_LIST
    if character == closing:
        return True
    if character != COMMA:
        return False
    here = skip_space(data, here + 1)
    character = byte_at(data, here)
    if character == closing:
        return True
    if place == MEMBER:
        return character == QUOTE and _is_key(data, here, end)
    if character in (QUOTE, MINUS, OPEN_OBJECT, OPEN_LIST, 116, 102, 110, 78):  # tfnN
        return True
    return is_digit(character)


@jit_inline
def _put_replacement(out: int) -> int:
    """Writes U+FFFD to an address, and returns the address after it."""
    put_byte(out, 0, 0xEF)
    put_byte(out, 1, 0xBF)
    put_byte(out, 2, 0xBD)
    return out + 3


@jit
def _copy_character(data: Data, at: int, out: int) -> tuple[int, int, int]:
    """Copies a character beyond ASCII, like `repair_string`."""
    length = character_length(data, at)
    if length == 0:
        return at + 1, _put_replacement(out), BYTES
    copy_some(out, data + at)
    return at + length, out + length, 0


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
    data: Data, at: int, end: int, out: int, last: int, place: int, mode: int
) -> tuple[int, int, int]:
    """Copies the string at `at`.

    Args:
        end: Length of the text. Zero bytes follow.
        out: The address to copy to.
        last: The last address at which `MARGIN` bytes may be written.
        mode: How far it may be from valid.

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
            closes = mode == VALID or _closes(data, at, end, place)
            if not closes:
                inner_quotes += 1
                if inner_quotes > _MOST_INNER_QUOTES:
                    return FAILED, out, at
                wrong |= SYNTAX
                put_byte(out, 0, BACKSLASH)
                out += 1
            put_byte(out, 0, QUOTE)
            at += 1
            out += 1
            if closes:
                return at, out, wrong
        elif character == BACKSLASH:
            if (
                mode == ALMOST
                and byte_at(data, at + 1) == QUOTE
                and _closes(data, at + 1, end, place)
            ):
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
            elif mode != VALID:
                wrong |= SYNTAX
                put_byte(out, 0, BACKSLASH)
                put_byte(out, 1, BACKSLASH)
                at += 1
                out += 2
            else:
                return FAILED, out, at
        elif character >= 0x80:
            at, out, found = _copy_character(data, at, out)
            wrong |= found
        elif at >= end or mode == VALID:
            return FAILED, out, at
        else:
            wrong |= SYNTAX
            at += 1
            out = _put_control(out, character)


@jit_inline
def _ends_value(character: int) -> bool:
    return character in (SPACE, 9, NEWLINE, 13, COMMA, CLOSE_LIST, CLOSE_OBJECT)


@jit
def _repair_bare_word(data: Data, at: int, out: int) -> tuple[int, int, int]:
    """Copies a word that JSON has not as a string, like `repair_string`."""
    put_byte(out, 0, QUOTE)
    out += 1
    wrong = SYNTAX
    for _ in range(_LONGEST_WORD):
        character = byte_at(data, at)
        if character >= 0x80:
            at, out, found = _copy_character(data, at, out)
            wrong |= found
            continue
        if character <= SPACE or character in (
            QUOTE, COMMA, COLON, OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST,
        ):  # fmt: skip
            break
        if character == BACKSLASH:
            put_byte(out, 0, BACKSLASH)
            out += 1
        put_byte(out, 0, character)
        at += 1
        out += 1
    put_byte(out, 0, QUOTE)
    return at, out + 1, wrong


@jit
def _repair_long_number(data: Data, at: int, out: int, last: int) -> tuple[int, int, int]:
    """Copies a number as a string, like `repair_string`: Python refuses very long ones."""
    put_byte(out, 0, QUOTE)
    out += 1
    while out <= last:
        character = byte_at(data, at)
        if not is_digit(character) and character not in (46, 43, MINUS, 69, 101):  # .+-Ee
            if not _ends_value(character):
                return FAILED, out, at
            put_byte(out, 0, QUOTE)
            return at, out + 1, SYNTAX
        put_byte(out, 0, character)
        at += 1
        out += 1
    return FULL, out, 0


@jit
def repair_word(
    data: Data, at: int, out: int, last: int, mode: int, is_alone: bool
) -> tuple[int, int, int]:
    """Copies a number or a word, like `repair_string`. Words that JSON has not become strings.

    Args:
        is_alone: Whether it is no part of an event: then very long numbers become strings, too.
    """
    after = number_end(data, at)
    if after >= 0 and (mode == VALID or _ends_value(byte_at(data, after))):
        copy_bytes(out, data + at, after - at)
        return after, out + after - at, 0
    word = word_at(data, at)
    length = 0
    if (word & FOUR_BYTES) in (_TRUE, NULL):
        length = 4
    elif (word & FIVE_BYTES) == _FALSE:
        length = 5
    if length > 0 and _ends_value(byte_at(data, at + length)):
        copy_some(out, data + at)
        return at + length, out + length, 0
    if mode == VALID:
        return FAILED, out, at
    after, copied, wrong = _repair_bare_word(data, at, out)
    if after > at and _ends_value(byte_at(data, after)):
        return after, copied, wrong
    if is_alone and (is_digit(byte_at(data, at)) or byte_at(data, at) == MINUS):
        return _repair_long_number(data, at, out, last)
    return FAILED, out, after


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
    data: Data, at: int, end: int, out: int, last: int, place: int, mode: int
) -> tuple[int, int, int]:
    """Like `repair_string`, faster for a short one that needs no repair."""
    copy_some(out, data + at)
    length = plain_length(data, at + 1)
    after = at + length + 2
    is_short = length + 2 <= _WIDTH and byte_at(data, after - 1) == QUOTE and out <= last
    if is_short and (mode == VALID or _closes(data, after - 1, end, place)):
        return after, out + length + 2, 0
    return repair_string(data, at, end, out, last, place, mode)
