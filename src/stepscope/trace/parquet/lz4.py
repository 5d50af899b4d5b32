"""Compresses text as blocks of LZ4 in compiled code.

Most arguments of events repeat earlier ones in all but a few digits, and the last ones of the same
length more often than others. So a text is compared with that one as a whole, digits and all, and
only where they differ for long are other places looked up. A general compressor looks up every
place, which takes several times as long.

The format is defined at https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.machine.calling import inlined, translated
from stepscope.trace.machine.instructions import (
    Data,
    Ints,
    as_long,
    byte_at,
    int_at,
    leading_zeros,
    put_byte,
    put_int,
    put_word,
    word_at,
)

SLACK_BYTES = 16
"""Bytes after a text that are read, and bytes after a block that are written, for speed."""
_LENGTHS, _WORDS = 1 << 12, 1 << 13  # slots for texts by their length, and for places by their word
_FARTHEST = (1 << 16) - 1
_SHORTEST = 4  # bytes of a repetition
_MOST_DIFFERENT = 4  # bytes, before other places are looked up
_LAST_LITERALS, _LAST_SEARCHED = 5, 12  # bytes at the end of a block, by the format
_LOW_HALF = np.uint64(0xFFFFFFFF)
_UNUSED_BITS = np.uint64(16)  # of the eight bytes at a place, to look it up by six
_SPREAD, _SLOT_SHIFT = np.uint64(0x9E3779B185EBCA87), np.uint64(51)


@inlined
def _put_length(target: Data, at: int, length: int) -> int:
    """Writes what is left of a length of 15 or more, and returns the position after it."""
    left = length - 15
    while left >= 255:
        put_byte(target, at, 255)
        left -= 255
        at += 1
    put_byte(target, at, left)
    return at + 1


@inlined
def _put_literals(data: Data, first: int, count: int, following: int, target: Data, at: int) -> int:
    """Writes bytes that are no repetition, and returns the position after them.

    Args:
        data: Where they are.
        first: Position of the first.
        count: How many.
        following: Length of the repetition after them, as it is written.
        target: Where to write them.
        at: Position there.
    """
    put_byte(target, at, min(count, 15) << 4 | min(following, 15))
    at += 1
    if count >= 15:
        at = _put_length(target, at, count)
    copied = 0
    while copied < count:
        put_word(target, at + copied, word_at(data, first + copied))
        copied += 8
    return at + count


@inlined
def _end_of_repetition(data: Data, at: int, distance: int, end: int) -> int:
    """Returns where the bytes from a position stop to be those at a distance before it."""
    while at + 8 <= end:
        different = word_at(data, at) ^ word_at(data, at - distance)
        if different != np.uint64(0):
            lowest = different & (~different + np.uint64(1))
            return at + ((63 - leading_zeros(lowest)) >> 3)
        at += 8
    while at < end and byte_at(data, at) == byte_at(data, at - distance):
        at += 1
    return at


@translated
def _compress(data: Data, size: int, places: Ints, target: Data) -> int:
    """Writes texts, each after its length in four bytes, as a block.

    Stays inside the arrays: positions of words are at least `_LAST_SEARCHED` before the end of the
    texts, or of bytes that are copied as literals, at most `SLACK_BYTES` after it; a distance is
    from a position that was seen before; slots are masked. A repetition takes no more bytes than
    it replaces, and literals one more for every 255 (`most_bytes`).

    Args:
        data: Address of the texts, and of `SLACK_BYTES` after them.
        size: Bytes of the texts with their lengths.
        places: Address of `_LENGTHS + _WORDS` numbers, for positions plus one.
        target: Address to write to.

    Returns:
        The number of bytes.
    """
    for slot in range(_LENGTHS + _WORDS):
        put_int(places, slot, 0)
    last = size - _LAST_SEARCHED
    written = pending = at = start = distance = 0
    while start < size:
        length = int_at(data + start, 0)
        end = start + 4 + length
        slot = length & (_LENGTHS - 1)
        before = start + 1 - int_at(places, slot)
        if before <= min(start, _FARTHEST):
            distance = before
        put_int(places, slot, start + 1)
        at = max(at, start)
        stop = min(end, last)
        different = 0
        while at < stop:
            word = word_at(data, at)
            chosen = distance
            if chosen == 0 or (word ^ word_at(data, at - chosen)) & _LOW_HALF != np.uint64(0):
                chosen = 0
                slot = _LENGTHS + as_long(((word << _UNUSED_BITS) * _SPREAD) >> _SLOT_SHIFT)
                before = at + 1 - int_at(places, slot)
                put_int(places, slot, at + 1)
                if (
                    different >= _MOST_DIFFERENT
                    and before <= min(at, _FARTHEST)
                    and (word ^ word_at(data, at - before)) << _UNUSED_BITS == np.uint64(0)
                ):
                    chosen = before
            if chosen == 0:
                at += 1
                different += 1
                continue
            first = at
            while first > max(pending, chosen) and byte_at(data, first - 1) == byte_at(
                data, first - 1 - chosen
            ):
                first -= 1
            at = _end_of_repetition(data, at, chosen, size - _LAST_LITERALS)
            repeated = at - first - _SHORTEST
            written = _put_literals(data, pending, first - pending, repeated, target, written)
            put_byte(target, written, chosen & 0xFF)
            put_byte(target, written + 1, chosen >> 8)
            written += 2
            if repeated >= 15:
                written = _put_length(target, written, repeated)
            pending = at
            distance = chosen
            different = 0
        start = end
    return _put_literals(data, pending, size - pending, 0, target, written)


def most_bytes(size: int) -> int:
    """Returns how many bytes `as_block` needs to write so many."""
    return size + size // 255 + SLACK_BYTES + SLACK_BYTES


class Compressor:
    """Compresses texts. Not for several threads at once."""

    def __init__(self) -> None:
        self._places = np.empty(_LENGTHS + _WORDS, np.int32)
        self._block = np.empty(0, np.uint8)

    def compressed(self, data: npt.NDArray[np.uint8], size: int) -> bytes:
        """Returns texts as a block.

        Args:
            data: Texts, each after its length as four bytes, and `SLACK_BYTES` of anything.
            size: Bytes of the texts with their lengths, less than 2 GiB.
        """
        if len(self._block) < most_bytes(size):
            self._block = np.empty(most_bytes(size), np.uint8)
        block = self._block
        used = _compress(data.ctypes.data, size, self._places.ctypes.data, block.ctypes.data)
        return block[:used].tobytes()
