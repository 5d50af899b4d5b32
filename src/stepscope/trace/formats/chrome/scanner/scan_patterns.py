"""Patterns: events that the scanner has read, to recognise later ones that differ only in numbers.

Recorders write events of one kind alike: the same keys in the same order, with the same space. So
the scanner keeps the text of each kind of event, and compares later ones with it (`scan_alike.py`),
which takes a third of the time of reading them.

A pattern is the text of an event up to the next one, without the numbers that go to columns. Its
steps divide the text: each has the length of a piece, and what follows it. While an event is read
in full, it is noted where these numbers are; `learn` makes steps of the notes.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.formats.chrome.scanner.scan_bytes import PADDING, copy_bytes
from stepscope.trace.formats.chrome.scanner.scan_values import is_digit
from stepscope.trace.machine.helpers import jit_inline
from stepscope.trace.machine.instructions import (
    Data,
    Ints,
    Longs,
    byte_at,
    int_at,
    long_at,
    put_int,
    put_long,
)
from stepscope.trace.machine.jit import jit

# What follows a piece of text: the next event; microseconds; the digits of an integer, or of one
# that is negative; or what is no text: where the arguments begin and end.
NEXT_EVENT, DECIMAL, POSITIVE, NEGATIVE, ARGUMENTS, AFTER_ARGUMENTS = range(6)

# A step is one number: the length of a piece, then what follows it, then the column of that.
LENGTH, KIND_SHIFT, KIND, COLUMN_SHIFT = 0xFFFF, 16, 0xFF, 24

# Description of the patterns for the scanner: addresses and numbers.
(
    SLOTS,  # int32: by a hash of an event's beginning, `WAYS` patterns, the latest used first
    LATEST,  # int32: by the number of a name, the latest pattern
    PATTERNS,
    STEPS,
    TEXTS,
    NOTES,  # the number of notes, and `NOTE_FIELDS` of each
    COUNT,  # of patterns
    STEPS_USED,
    TEXTS_USED,
    CREDIT,  # what looking for patterns has brought; none are looked for if it is negative
    RECOGNISED,  # events that were like a pattern
) = range(11)

# Of each pattern: addresses; the numbers of name and lane; phase and flags; and the next one of
# the same name.
FIRST_STEP, TEXT, NUMBERS, CODES, NEXT = range(5)
PATTERN_FIELDS = 5

# Of each note.
_START, _END, _WHAT = range(3)
NOTE_FIELDS = 3

NONE = -1
"""In place of a pattern."""
CROWDED = -2
"""In place of the first pattern of a slot that had too many: patterns are looked up by a longer
beginning, in the second half of the slots.
"""

WAYS = 4
SLOT_BITS = 12
ALL_SLOTS = 2 << SLOT_BITS
_NAME_SLOTS = 1 << 12  # a power of two
_MOST_PATTERNS, _MOST_STEPS, _MOST_TEXT_BYTES = 1 << 12, 1 << 16, 1 << 21
_MOST_NOTES = 30
_LONGEST_EVENT = 1 << 14
_LONGEST_RUN = 24  # digits in a row
MOST_CREDIT = 1024


@jit_inline
def note(notes: Longs, start: int, end: int, kind: int, column: int) -> None:
    """Notes what an event has that is no text of a pattern.

    It stays inside the notes: once these are full, it only counts.
    """
    count = long_at(notes, 0)
    if count < _MOST_NOTES:
        fields = notes + 8 * (1 + NOTE_FIELDS * count)
        put_long(fields, _START, start)
        put_long(fields, _END, end)
        put_long(fields, _WHAT, (kind << KIND_SHIFT) | (column << COLUMN_SHIFT))
    put_long(notes, 0, count + 1)


@jit_inline
def note_unfit(notes: Longs) -> None:
    """Notes that an event cannot be a pattern."""
    put_long(notes, 0, _MOST_NOTES + 1)


@jit_inline
def pattern_at(table: Longs, number: int) -> Longs:
    """Returns the address of a pattern."""
    return long_at(table, PATTERNS) + 8 * PATTERN_FIELDS * number


@jit_inline
def latest_of(table: Longs, name: int) -> Ints:
    """Returns the address of the number of the latest pattern with a name, or one like it."""
    return long_at(table, LATEST) + 4 * (name & (_NAME_SLOTS - 1))


@jit_inline
def _has_long_run(data: Data, at: int, end: int) -> bool:
    """Whether there are so many digits in a row that other digits could make another number."""
    digits = 0
    for position in range(at, end):
        digits = digits + 1 if is_digit(byte_at(data, position)) else 0
        if digits > _LONGEST_RUN:
            return True
    return False


@jit_inline
def _forget_all(table: Longs) -> None:
    for slot in range(WAYS * ALL_SLOTS):
        put_int(long_at(table, SLOTS), slot, NONE)
    for name in range(_NAME_SLOTS):
        put_int(long_at(table, LATEST), name, NONE)
    put_long(table, COUNT, 0)
    put_long(table, STEPS_USED, 0)
    put_long(table, TEXTS_USED, 0)


@jit
def learn(data: Data, at: int, end: int, numbers: int, codes: int, table: Longs) -> int:
    """Keeps an event as a pattern. If the tables are full, all others are forgotten first.

    It stays inside its arrays: an event has at most `_LONGEST_EVENT` bytes and `_MOST_NOTES` steps
    and one more, and is only kept if as much is free.

    Args:
        end: Where the next one begins.
        numbers: The numbers of its name and lane.
        codes: Its phase and flags.
        table: Address of the description of the patterns, with notes of this event in order.

    Returns:
        The number of the pattern; `NONE` if the event cannot be one.
    """
    notes = long_at(table, NOTES)
    count = long_at(notes, 0)
    if count > _MOST_NOTES or end - at > _LONGEST_EVENT or _has_long_run(data, at, end):
        return NONE
    if (
        long_at(table, COUNT) == _MOST_PATTERNS
        or long_at(table, TEXTS_USED) + _LONGEST_EVENT > _MOST_TEXT_BYTES
        or long_at(table, STEPS_USED) + _MOST_NOTES + 1 > _MOST_STEPS
    ):
        _forget_all(table)
    number, used = long_at(table, COUNT), long_at(table, TEXTS_USED)
    steps_used = long_at(table, STEPS_USED)
    text, steps = long_at(table, TEXTS) + used, long_at(table, STEPS) + 8 * steps_used
    pattern, latest = pattern_at(table, number), latest_of(table, numbers & 0xFFFFFFFF)
    put_long(pattern, FIRST_STEP, steps)
    put_long(pattern, TEXT, text)
    put_long(pattern, NUMBERS, numbers)
    put_long(pattern, CODES, codes)
    put_long(pattern, NEXT, int_at(latest, 0))
    put_int(latest, 0, number)
    for index in range(count + 1):
        piece_end, following, what = end, end, NEXT_EVENT << KIND_SHIFT
        if index < count:
            fields = notes + 8 * (1 + NOTE_FIELDS * index)
            piece_end, following = long_at(fields, _START), long_at(fields, _END)
            what = long_at(fields, _WHAT)
        length = piece_end - at
        copy_bytes(text, data + at, length)
        put_long(steps, index, length | what)
        text += length
        used += length
        at = following
    put_long(table, COUNT, number + 1)
    put_long(table, TEXTS_USED, used)
    put_long(table, STEPS_USED, steps_used + count + 1)
    return number


class Patterns:
    """Patterns that the scanner fills, used by one scan at a time."""

    def __init__(self) -> None:
        self._slots = np.full(WAYS * ALL_SLOTS, NONE, np.int32)
        self._latest = np.full(_NAME_SLOTS, NONE, np.int32)
        self._patterns = np.empty((_MOST_PATTERNS, PATTERN_FIELDS), np.int64)
        self._steps = np.empty(_MOST_STEPS, np.int64)
        self._texts = np.empty(_MOST_TEXT_BYTES + PADDING, np.uint8)
        self._notes = np.zeros(1 + NOTE_FIELDS * _MOST_NOTES, np.int64)
        arrays = (
            self._slots, self._latest, self._patterns, self._steps, self._texts, self._notes,
        )  # fmt: skip
        addresses = [array.ctypes.data for array in arrays]
        self.table = np.array([*addresses, 0, 0, 0, MOST_CREDIT, 0], np.int64)

    @property
    def count(self) -> int:
        """How many patterns there are."""
        return int(self.table[COUNT])

    @property
    def recognised(self) -> int:
        """How many events were like a pattern."""
        return int(self.table[RECOGNISED])
