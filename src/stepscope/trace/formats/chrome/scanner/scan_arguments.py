"""The arguments of one event, for the compiled scanner."""

from __future__ import annotations

import numpy as np

from stepscope.trace.formats.chrome.rows import (
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DEVICE,
    HAS_EXTERNAL,
    HAS_STREAM,
)
from stepscope.trace.formats.chrome.scanner.scan_bytes import (
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MINUS,
    QUOTE,
    has_escape,
    plain_string_end,
    skip_space,
    unusual_string_end,
    word_of,
)
from stepscope.trace.formats.chrome.scanner.scan_patterns import (
    NEGATIVE,
    POSITIVE,
    note,
    note_unfit,
)
from stepscope.trace.formats.chrome.scanner.scan_rows import (
    BYTES,
    CORRELATION,
    DEVICE,
    EXTERNAL,
    STREAM,
)
from stepscope.trace.formats.chrome.scanner.scan_values import (
    integer_end,
    is_digit,
    magnitude,
    value_end,
)
from stepscope.trace.machine.helpers import as_long, jit_inline
from stepscope.trace.machine.instructions import Data, Longs, byte_at, put_long, word_at

_FOUR, _SIX = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFF)
_SEVEN = np.uint64(0xFFFFFFFFFFFFFF)

_KEY_BYTES, _KEY_DEVICE, _KEY_STREAM = word_of(b'bytes"'), word_of(b'device"'), word_of(b'stream"')
_CORRELAT, _ION = word_of(b"correlat"), word_of(b'ion"')
_EXTERNAL_NEW, _EXTERNAL_OLD, _SPACE_ID = (
    word_of(b"External"),
    word_of(b"external"),
    word_of(b' id"'),
)

ARGUMENT_BITS = HAS_CORRELATION | HAS_EXTERNAL | HAS_DEVICE | HAS_STREAM | HAS_BYTES
"""Flags of the columns that come from arguments."""
_EXTERNAL_NEW_SLOT = 100


@jit_inline
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


@jit_inline
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


@jit_inline
def scan_arguments(
    data: Data, at: int, columns: Longs, stride: int, notes: Longs
) -> tuple[int, int]:
    """Reads the arguments at `at`.

    Args:
        columns: Address of the event's row in the first column.
        stride: Distance between columns.
        notes: Notes for a pattern (`scan_patterns`).

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
                        note(notes, at, end, POSITIVE, target)
                        put_long(columns, target * stride, as_long(value))
                        flags |= bit
                    else:
                        note_unfit(notes)  # as -0 has a number
                elif value > np.uint64(0x7FFFFFFFFFFFFFFF):
                    return -1, 0
                else:
                    if character == MINUS:
                        note(notes, at + 1, end, NEGATIVE, slot)
                    else:
                        note(notes, at, end, POSITIVE, slot)
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
