"""Numbers and values of JSON, for the compiled scanner."""

from __future__ import annotations

import numpy as np

from stepscope.trace.formats.chrome.scanner.scan_bytes import (
    CLOSE_LIST,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MINUS,
    NINE,
    OPEN_LIST,
    OPEN_OBJECT,
    PERIOD,
    QUOTE,
    ZERO,
    digits_end,
    skip_space,
    string_end,
)
from stepscope.trace.machine.helpers import as_long, jit_inline
from stepscope.trace.machine.instructions import Data, byte_at, word_at
from stepscope.trace.machine.jit import jit

_LONGEST_NUMBER = 300
_DEEPEST = 60
_LARGEST_WHOLE = 9_223_372_036_854_774  # microseconds that fit int64 nanoseconds
_TRUE, _NULL = np.uint64(0x65757274), np.uint64(0x6C6C756E)  # "true", "null"
_FALSE = np.uint64(0x65736C6166)  # "false"
_FOUR, _FIVE = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFF)

# Multipliers that add digits to ten times their neighbours, and so on.
_PAIRS, _FOURS = np.uint64(10 * 2**8 + 1), np.uint64(100 * 2**16 + 1)
_EIGHTS = np.uint64(10000 * 2**32 + 1)


@jit_inline
def is_digit(character: int) -> bool:
    """Whether a character is a decimal digit."""
    return ZERO <= character <= NINE


@jit_inline
def _whole_end(data: Data, at: int) -> int:
    """Returns the position after the whole part of a number; -1 if there is none."""
    if byte_at(data, at) == MINUS:
        at += 1
    first = byte_at(data, at)
    if not is_digit(first):
        return -1
    at += 1
    if first != ZERO:
        return digits_end(data, at)
    return -1 if is_digit(byte_at(data, at)) else at


@jit_inline
def integer_end(data: Data, at: int) -> int:
    """Returns the position after the integer at `at`; -1 if there is none, or another number."""
    end = _whole_end(data, at)
    if end < 0:
        return -1
    after = byte_at(data, end)
    return -1 if after == PERIOD or (after | 32) == 101 or end - at > 30 else end


@jit_inline
def number_end(data: Data, at: int) -> int:
    """Returns the position after the number at `at`; -1 if it is invalid or very long."""
    start = at
    at = _whole_end(data, at)
    if at < 0:
        return -1
    if byte_at(data, at) == PERIOD:
        at += 1
        if not is_digit(byte_at(data, at)):
            return -1
        at = digits_end(data, at)
    if (byte_at(data, at) | 32) == 101:  # e
        at += 1
        if byte_at(data, at) in (43, MINUS):
            at += 1
        if not is_digit(byte_at(data, at)):
            return -1
        at = digits_end(data, at)
    return at if at - start <= _LONGEST_NUMBER else -1


@jit_inline
def up_to_eight_digits(data: Data, at: int, count: int) -> np.uint64:
    """Returns the value of 1 to 8 digits, combined in parallel into pairs, fours and eights."""
    digits = word_at(data, at) << np.uint64(64 - 8 * count)
    digits = ((digits & np.uint64(0x0F0F0F0F0F0F0F0F)) * _PAIRS) >> np.uint64(8)
    digits = ((digits & np.uint64(0x00FF00FF00FF00FF)) * _FOURS) >> np.uint64(16)
    return ((digits & np.uint64(0x0000FFFF0000FFFF)) * _EIGHTS) >> np.uint64(32)


@jit_inline
def up_to_sixteen_digits(data: Data, at: int, count: int) -> np.uint64:
    """Returns the value of 1 to 16 digits."""
    if count <= 8:
        return up_to_eight_digits(data, at, count)
    high = up_to_eight_digits(data, at, count - 8)
    return high * np.uint64(100_000_000) + up_to_eight_digits(data, at + count - 8, 8)


@jit
def long_magnitude(data: Data, at: int, end: int) -> tuple[np.uint64, bool]:
    """Like `magnitude`, for 17 or more digits."""
    if end - at > 20:
        return np.uint64(0), False
    high = up_to_sixteen_digits(data, at, 16)
    for position in range(at + 16, end):
        digit = np.uint64(byte_at(data, position) - ZERO)
        if high > (np.uint64(0xFFFFFFFFFFFFFFFF) - digit) // np.uint64(10):
            return np.uint64(0), False
        high = high * np.uint64(10) + digit
    return high, True


@jit_inline
def magnitude(data: Data, at: int, end: int) -> tuple[np.uint64, bool]:
    """Returns the absolute value of an integer, and whether it fits 64 bits."""
    if byte_at(data, at) == MINUS:
        at += 1
    if end - at > 16:
        return long_magnitude(data, at, end)
    return up_to_sixteen_digits(data, at, end - at), True


@jit
def thousandths(data: Data, at: int, places: int) -> int:
    """Returns decimals rounded to three, half to even; 1000 if they round up to 1."""
    value = as_long(up_to_eight_digits(data, at, min(places, 3)))
    for _ in range(places, 3):
        value *= 10
    if places > 3:
        fourth = byte_at(data, at + 3) - ZERO
        beyond = False
        for position in range(at + 4, at + places):
            beyond = beyond or byte_at(data, position) != ZERO
        if fourth > 5 or (fourth == 5 and (beyond or (value & 1) == 1)):
            value += 1
    return value


@jit_inline
def nanoseconds_at(data: Data, at: int) -> tuple[int, int]:
    """Returns the microseconds at `at` in ns, half to even, and the position after; -1: unusual."""
    negative = byte_at(data, at) == MINUS
    if negative:
        at += 1
    start = at
    at = digits_end(data, at)
    digits = at - start
    if digits == 0 or digits > 16 or (digits > 1 and byte_at(data, start) == ZERO):
        return 0, -1
    whole = as_long(up_to_sixteen_digits(data, start, digits))
    if whole > _LARGEST_WHOLE:
        return 0, -1
    value = whole * 1000
    after = byte_at(data, at)
    if after == PERIOD:
        start = at + 1
        at = digits_end(data, start)
        places = at - start
        if 0 < places <= 3:
            unit = 1 if places == 3 else (10 if places == 2 else 100)
            value += as_long(up_to_eight_digits(data, start, places)) * unit
        elif places == 0 or places > 30:
            return 0, -1
        else:
            value += thousandths(data, start, places)
        after = byte_at(data, at)
    if (after | 32) == 101:
        return 0, -1
    return (-value if negative else value), at


@jit_inline
def scalar_end(data: Data, at: int) -> int:
    """Returns the position after a string, number or literal; -1 if there is none."""
    character = byte_at(data, at)
    if character == QUOTE:
        at = string_end(data, at + 1)
        return at + 1 if at >= 0 else -1
    if is_digit(character) or character == MINUS:
        return number_end(data, at)
    word = word_at(data, at)
    if (word & _FOUR) == _TRUE or (word & _FOUR) == _NULL:
        return at + 4
    if (word & _FIVE) == _FALSE:
        return at + 5
    return -1


@jit_inline
def key_end(data: Data, at: int) -> int:
    """Returns the position of the value of the member at `at`; -1 if there is none."""
    if byte_at(data, at) != QUOTE:
        return -1
    at = string_end(data, at + 1)
    if at < 0:
        return -1
    at = skip_space(data, at + 1)
    if byte_at(data, at) != COLON:
        return -1
    return skip_space(data, at + 1)


@jit
def value_end(data: Data, at: int) -> int:
    """Returns the position after the value at `at`; -1 if it is invalid or deeply nested."""
    depth = 0
    objects = np.uint64(0)  # one bit per open bracket, innermost lowest: set for objects
    while True:
        character = byte_at(data, at)
        if character in (OPEN_OBJECT, OPEN_LIST):
            if depth == _DEEPEST:
                return -1
            depth += 1
            objects <<= np.uint64(1)
            at = skip_space(data, at + 1)
            if character == OPEN_OBJECT:
                objects |= np.uint64(1)
                if byte_at(data, at) != CLOSE_OBJECT:
                    at = key_end(data, at)
                    if at < 0:
                        return -1
                    continue
            elif byte_at(data, at) != CLOSE_LIST:
                continue
        else:
            at = scalar_end(data, at)
            if at < 0:
                return -1
        # After a value, or before the closing bracket of an empty list or object.
        while True:
            if depth == 0:
                return at
            inside_object = (objects & np.uint64(1)) == np.uint64(1)
            at = skip_space(data, at)
            character = byte_at(data, at)
            if character == COMMA:
                at = skip_space(data, at + 1)
                if inside_object:
                    at = key_end(data, at)
                    if at < 0:
                        return -1
                break
            if character != (CLOSE_OBJECT if inside_object else CLOSE_LIST):
                return -1
            at += 1
            depth -= 1
            objects >>= np.uint64(1)
