"""Encodings of Parquet in compiled code: packed differences, and packed small numbers.

The formats are defined at https://parquet.apache.org/docs/file-format/data-pages/encodings/.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.machine.helpers import as_long, jit_inline
from stepscope.trace.machine.instructions import (
    Data,
    Longs,
    byte_at,
    int_at,
    leading_zeros,
    long_at,
    put_byte,
    put_long,
    put_word,
)
from stepscope.trace.machine.jit import jit
from stepscope.trace.parquet.thrift import varint

_BLOCK, _MINIBLOCKS = 128, 4
_IN_MINIBLOCK = 32
_LARGEST = 2**63 - 1
_HEADER_BYTES, _VARINT_BYTES, _WORD_BYTES = 32, 10, 8
_LOW_SEVEN, _MORE = np.uint64(0x7F), np.uint64(0x80)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_NARROW_BITS = 56  # with up to seven bits left over from the last byte, they do not fill a word
_LIMITS = 2
_SCRATCH = _LIMITS + _BLOCK


@jit_inline
def _put_varint(target: Data, at: int, value: np.uint64) -> int:
    """Writes an unsigned number in groups of seven bits, and returns the position after it."""
    while value >= _MORE:
        put_byte(target, at, as_long((value & _LOW_SEVEN) | _MORE))
        value >>= np.uint64(7)
        at += 1
    put_byte(target, at, as_long(value))
    return at + 1


@jit_inline
def _zigzag(value: int) -> np.uint64:
    """Returns an unsigned number that is small if a signed one is near zero."""
    return np.uint64((value << 1) ^ (value >> 63))


@jit_inline
def _number_at(numbers: Longs, index: int, is_narrow: bool) -> int:
    return int_at(numbers, index) if is_narrow else long_at(numbers, index)


@jit_inline
def _difference(later: int, earlier: int, is_narrow: bool) -> int:
    """Returns the difference of two numbers, which wraps at their own width."""
    difference = later - earlier
    return (difference << 32) >> 32 if is_narrow else difference


@jit_inline
def _above(difference: int, least: int, is_narrow: bool) -> np.uint64:
    """Returns by how much a difference exceeds the smallest one."""
    above = np.uint64(difference - least)
    return above & _LOW_HALF if is_narrow else above


@jit_inline
def _put_bits(
    target: Data, at: int, word: np.uint64, filled: int, number: np.uint64, width: int
) -> tuple[int, np.uint64, int]:
    """Adds the lowest bits of a number to a word, which is written when it is full.

    Returns:
        The position after what is written, the word, and how many of its bits are in use.
    """
    word |= number << np.uint64(filled)
    filled += width
    if filled >= 64:
        put_word(target, at, word)
        at += 8
        filled -= 64
        word = np.uint64(0)
        if filled > 0:
            word = number >> np.uint64(width - filled)
    return at, word, filled


@jit_inline
def _key(number: int, mask: int, flipped: int) -> int:
    """Returns a number whose order among signed ones is the order of the column's type."""
    return (number & mask) ^ flipped


@jit_inline
def _put_narrow_bits(
    differences: Longs, first: int, least: int, is_narrow: bool, width: int, target: Data, at: int
) -> int:
    """Writes a miniblock of up to `_NARROW_BITS` each, and returns the position after it.

    Eight bytes are stored for each number, so that nothing depends on how many are full.
    """
    filled, word = 0, np.uint64(0)
    for index in range(first, first + _IN_MINIBLOCK):
        word |= _above(long_at(differences, index), least, is_narrow) << np.uint64(filled)
        put_word(target, at, word)
        filled += width
        word >>= np.uint64(filled & ~7)
        at += filled >> 3
        filled &= 7
    return at


@jit_inline
def _put_wide_bits(
    differences: Longs, first: int, least: int, is_narrow: bool, width: int, target: Data, at: int
) -> int:
    """Writes a miniblock of more than `_NARROW_BITS` each, and returns the position after it."""
    filled, word = 0, np.uint64(0)
    for index in range(first, first + _IN_MINIBLOCK):
        above = _above(long_at(differences, index), least, is_narrow)
        at, word, filled = _put_bits(target, at, word, filled, above, width)
    if filled > 0:  # half a word
        put_word(target, at, word)
        at += filled >> 3
    return at


@jit_inline
def _put_all(
    numbers: Longs, count: int, is_narrow: bool, mask: int, flipped: int, target: Data,
    scratch: Longs,
) -> int:  # fmt: skip
    """Writes numbers as `DELTA_BINARY_PACKED`; see `_put_differences`."""
    at = _put_varint(target, 0, np.uint64(_BLOCK))
    at = _put_varint(target, at, np.uint64(_MINIBLOCKS))
    at = _put_varint(target, at, np.uint64(count))
    before = 0
    if count > 0:
        before = _number_at(numbers, 0, is_narrow)
    at = _put_varint(target, at, _zigzag(before))
    lowest = highest = _key(before, mask, flipped)
    differences = scratch + 8 * _LIMITS
    start = 1
    while start < count:
        size = min(_BLOCK, count - start)
        least = _LARGEST
        for index in range(size):
            number = _number_at(numbers, start + index, is_narrow)
            difference = _difference(number, before, is_narrow)
            put_long(differences, index, difference)
            least = min(least, difference)
            key = _key(number, mask, flipped)
            lowest, highest = min(lowest, key), max(highest, key)
            before = number
        filled_up = (size + _IN_MINIBLOCK - 1) & ~(_IN_MINIBLOCK - 1)
        for index in range(size, filled_up):
            put_long(differences, index, least)
        at = _put_varint(target, at, _zigzag(least))
        widths = at
        at += _MINIBLOCKS
        for miniblock in range(_MINIBLOCKS):
            first = _IN_MINIBLOCK * miniblock
            bits = np.uint64(0)
            if first < filled_up:
                for index in range(first, first + _IN_MINIBLOCK):
                    bits |= _above(long_at(differences, index), least, is_narrow)
            width = 64 - leading_zeros(bits)
            put_byte(target, widths + miniblock, width)
            if width == 0:
                continue
            if width <= _NARROW_BITS:
                at = _put_narrow_bits(differences, first, least, is_narrow, width, target, at)
            else:
                at = _put_wide_bits(differences, first, least, is_narrow, width, target, at)
        start += size
    put_long(scratch, 0, lowest ^ flipped)
    put_long(scratch, 1, highest ^ flipped)
    return at


@jit
def _put_differences(
    numbers: Longs, count: int, is_narrow: bool, mask: int, flipped: int, target: Data,
    scratch: Longs,
) -> int:  # fmt: skip
    """Writes numbers as `DELTA_BINARY_PACKED`, and finds the least and the largest.

    It stays inside its arrays: the target has `most_bytes(count)`, which suffices for 64 bits each,
    and for the eight bytes that are stored past the last number; the scratch has room for the
    limits and for the differences of a block, which are whole miniblocks.

    Args:
        numbers: Address of 64-bit numbers, or of 32-bit ones if `is_narrow`.
        mask: The bits of a number that tell its size: the lower half if it has 32 and no sign.
        flipped: The bits to flip so that the order is that of signed numbers: the sign if 64-bit
            numbers have none.
        target: Address to write to.
        scratch: Address of `_SCRATCH` 64-bit numbers. The first two become the least and the
            largest number, or 0 if there are none.
    """
    if is_narrow:
        return _put_all(numbers, count, True, mask, flipped, target, scratch)
    return _put_all(numbers, count, False, mask, flipped, target, scratch)


@jit
def _pack(numbers: Data, count: int, width: int, target: Data) -> int:
    """Writes the lowest `width` bits of bytes one after another, and returns the number of bytes.

    The last group of eight is filled up with zeros.
    """
    at = filled = 0
    word = np.uint64(0)
    for index in range((count + 7) & ~7):
        number = np.uint64(0)
        if index < count:
            number = np.uint64(byte_at(numbers, index))
        at, word, filled = _put_bits(target, at, word, filled, number, width)
    if filled > 0:
        put_word(target, at, word)
        at += filled >> 3
    return at


def most_bytes(count: int) -> int:
    """Returns how many bytes `as_differences` needs to write so many numbers."""
    blocks = count // _BLOCK + 1
    return _HEADER_BYTES + blocks * (_VARINT_BYTES + _MINIBLOCKS + 8 * _BLOCK) + _WORD_BYTES


def as_differences(
    numbers: npt.NDArray[Any], target: npt.NDArray[np.uint8]
) -> tuple[bytes, tuple[np.integer[Any], np.integer[Any]] | None]:
    """Encodes integers of 32 or 64 bits as `DELTA_BINARY_PACKED`.

    Args:
        target: Memory to write to, of `most_bytes`.

    Returns:
        The encoded integers; and the least and the largest, or None if there are none.
    """
    numbers = np.ascontiguousarray(numbers)
    kind = numbers.dtype
    is_narrow, has_sign = kind.itemsize == 4, kind.kind == "i"
    scratch = np.empty(_SCRATCH, np.int64)
    used = _put_differences(
        numbers.ctypes.data,
        len(numbers),
        is_narrow,
        0xFFFFFFFF if is_narrow and not has_sign else -1,
        0 if is_narrow or has_sign else -(2**63),
        target.ctypes.data,
        scratch.ctypes.data,
    )
    encoded = target[:used].tobytes()
    if not len(numbers):
        return encoded, None
    low, high = scratch[:_LIMITS].view(np.int64 if has_sign else np.uint64).tolist()
    return encoded, (kind.type(low), kind.type(high))


def as_packed(numbers: npt.NDArray[np.uint8], width: int) -> bytes:
    """Returns numbers below `1 << width` as one run of the hybrid encoding `RLE`."""
    numbers = np.ascontiguousarray(numbers)
    groups = (len(numbers) + 7) // 8
    target = np.empty(groups * width + _WORD_BYTES, np.uint8)
    used = _pack(numbers.ctypes.data, len(numbers), width, target.ctypes.data)
    return varint(groups << 1 | 1) + target[:used].tobytes()


def as_levels(present: npt.NDArray[np.uint8], count: int, nulls: int) -> bytes:
    """Returns which values of a column are not null, as definition levels.

    Args:
        present: One bit per value, least significant bit first, set unless it is null; read only
            if some are null and others are not.
    """
    if nulls in (0, count):
        return varint(count << 1) + (b"\0" if nulls else b"\1")
    bits = present.tobytes()
    return varint(len(bits) << 1 | 1) + bits
