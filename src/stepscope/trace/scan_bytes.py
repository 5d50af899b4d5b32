"""Bytes and strings of JSON, for the compiled scanner.

Data is a uint8 array that ends in at least `PADDING` zero bytes: zero stands in no JSON, so every
loop stops there without asking for the length. A position that is negative means: not recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from stepscope.trace.compiled import compiled, part

PADDING = 64
_WIDTH = 32  # bytes that are looked at in one step

Data = int
"""Where a uint8 array begins in memory. An address and no array, because every call that is
handed an array counts its references up and down, which costs more than most of these calls."""

as_long = cast("Callable[[Any], int]", np.int64)
"""A number as a signed one: mixing unsigned and signed ones would make floats of both."""

Ints = int
"""Where an int32 array begins in memory."""

Longs = int
"""Where an int64 array begins in memory."""

QUOTE, BACKSLASH, COMMA, COLON, MINUS, PERIOD, ZERO, NINE = 34, 92, 44, 58, 45, 46, 48, 57
OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST = 123, 125, 91, 93
SPACE, TAB, NEWLINE, RETURN = 32, 9, 10, 13

if TYPE_CHECKING:
    # What the intrinsics below look like to those who call them.
    byte_at: Callable[[Data, int], int]
    word_at: Callable[[Data, int], np.uint64]
    strings_go_on: Callable[[Data, int], int]
    int_at: Callable[[Ints, int], int]
    long_at: Callable[[Longs, int], int]
    put_byte: Callable[[Data, int, int], None]
    put_int: Callable[[Ints, int, int], None]
    put_long: Callable[[Longs, int, int], None]
    put_word: Callable[[Data, int, np.uint64], None]
else:
    _BYTE, _MASK, _LONG = ir.IntType(8), ir.IntType(_WIDTH), ir.IntType(64)

    def _load(builder: Any, arguments: Any, kind: Any) -> Any:
        """A value of some kind from an address and an offset, aligned or not."""
        address = builder.add(arguments[0], arguments[1])
        pointer = builder.inttoptr(address, kind.as_pointer())
        return builder.load(pointer, align=1, typ=kind)

    def _run_length(stops: Any) -> Any:
        """An intrinsic that counts bytes from a position on, up to the first that stops it.

        `_WIDTH` bytes are compared at once, without branches, which is what makes the scanner
        fast: the length of a run cannot be mispredicted. The count is `_WIDTH` where none stops.
        """

        def count(_: Any, data: Any, at: Any) -> Any:
            def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
                vector = ir.VectorType(_BYTE, _WIDTH)
                some = _load(builder, arguments, vector)

                def all_of(value: int) -> Any:
                    return ir.Constant(vector, [value] * _WIDTH)

                mask = builder.bitcast(stops(builder, some, all_of), _MASK)
                zeros = builder.cttz(mask, ir.Constant(ir.IntType(1), 0))
                return builder.zext(zeros, _LONG)

            return types.int64(data, at), generate

        return intrinsic(count)

    def _ends_plain(builder: Any, some: Any, all_of: Any) -> Any:
        # As signed bytes, control characters and all that is no ASCII are below a space.
        ends = builder.icmp_signed("<", some, all_of(SPACE))
        ends = builder.or_(ends, builder.icmp_unsigned("==", some, all_of(QUOTE)))
        return builder.or_(ends, builder.icmp_unsigned("==", some, all_of(BACKSLASH)))

    strings_go_on = _run_length(_ends_plain)

    @intrinsic
    def byte_at(_: Any, data: Any, at: Any) -> Any:
        """The byte at a position, without the check for negative indices."""

        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return builder.zext(_load(builder, arguments, _BYTE), _LONG)

        return types.int64(data, at), generate

    @intrinsic
    def word_at(_: Any, data: Any, at: Any) -> Any:
        """Eight bytes as one little-endian word, from any position."""

        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return _load(builder, arguments, _LONG)

        return types.uint64(data, at), generate

    def _element(size: int, widened: str) -> Any:
        """An intrinsic that reads an element of an array of integers of some size."""

        def element(_: Any, array: Any, index: Any) -> Any:
            def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
                offset = builder.mul(arguments[1], ir.Constant(_LONG, size))
                value = _load(builder, (arguments[0], offset), ir.IntType(8 * size))
                return getattr(builder, widened)(value, _LONG)

            return types.int64(array, index), generate

        return intrinsic(element)

    def _put_element(size: int) -> Any:
        """An intrinsic that sets an element of an array of integers of some size."""

        def put_element(_: Any, array: Any, index: Any, value: Any) -> Any:
            def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
                offset = builder.mul(arguments[1], ir.Constant(_LONG, size))
                kind = ir.IntType(8 * size)
                address = builder.add(arguments[0], offset)
                pointer = builder.inttoptr(address, kind.as_pointer())
                builder.store(builder.trunc(arguments[2], kind), pointer, align=size)
                return context.get_dummy_value()

            return types.void(array, index, value), generate

        return intrinsic(put_element)

    int_at, long_at = _element(4, "sext"), _element(8, "sext")
    put_byte, put_int, put_long = _put_element(1), _put_element(4), _put_element(8)

    @intrinsic
    def put_word(_: Any, data: Any, at: Any, value: Any) -> Any:
        """Writes eight bytes to any position."""

        def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
            address = builder.add(arguments[0], arguments[1])
            pointer = builder.inttoptr(address, _LONG.as_pointer())
            builder.store(arguments[2], pointer, align=1)
            return context.get_dummy_value()

        return types.void(data, at, value), generate


@part
def skip_space(data: Data, at: int) -> int:
    """The first position from `at` on that holds no whitespace."""
    character = byte_at(data, at)
    while character <= SPACE:
        if character not in (SPACE, NEWLINE, RETURN, TAB):
            return at
        at += 1
        character = byte_at(data, at)
    return at


@part
def digits_end(data: Data, at: int) -> int:
    """The first position from `at` on that holds no digit."""
    while ZERO <= byte_at(data, at) <= NINE:
        at += 1
    return at


@compiled
def character_length(data: Data, at: int) -> int:
    """Length of the UTF-8 sequence that begins at `at` (no ASCII); 0 where it is not valid."""
    first, second, third = byte_at(data, at), byte_at(data, at + 1), byte_at(data, at + 2)
    fourth = byte_at(data, at + 3)
    if first < 0xC2 or (second & 0xC0) != 0x80:
        return 0
    if first < 0xE0:
        return 2
    if (third & 0xC0) != 0x80:
        return 0
    if first < 0xF0:
        # No longer form of a shorter character, no surrogate.
        if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
            return 0
        return 3
    if first > 0xF4 or (fourth & 0xC0) != 0x80:
        return 0
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0
    return 4


@compiled
def is_hexadecimal(character: int) -> bool:
    """Whether a character is a hexadecimal digit."""
    return (ZERO <= character <= NINE) or (97 <= (character | 32) <= 102)


@compiled
def escape_length(data: Data, at: int) -> int:
    """Length of the escape whose backslash is at `at`; 0 where it is not valid or a surrogate."""
    kind = byte_at(data, at + 1)
    if kind in (QUOTE, BACKSLASH, 47, 98, 102, 110, 114, 116):  # "\/bfnrt
        return 2
    if kind != 117:  # u
        return 0
    for offset in range(2, 6):
        if not is_hexadecimal(byte_at(data, at + offset)):
            return 0
    if (byte_at(data, at + 2) | 32) == 100 and byte_at(data, at + 3) > 55:  # \ud8.. to \udf..
        return 0
    return 6


@part
def string_end(data: Data, at: int) -> int:
    """Position of the quote that closes the string whose inside begins at `at`; -1: not valid."""
    while True:
        length = strings_go_on(data, at)
        at += length
        if length == _WIDTH:
            continue
        character = byte_at(data, at)
        if character == QUOTE:
            return at
        if character == BACKSLASH:
            length = escape_length(data, at)
        elif character >= 0x80:
            length = character_length(data, at)
        else:
            return -1
        if length == 0:
            return -1
        at += length


@part
def hash_bytes(data: Data, at: int, end: int) -> np.uint64:
    """A hash of some bytes: good enough for a table, not meant against an adversary."""
    value = np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(end - at)
    while at + 8 <= end:
        value = (value ^ word_at(data, at)) * np.uint64(0xD6E8FEB86659FD93)
        value ^= value >> np.uint64(32)
        at += 8
    if at < end:
        rest = word_at(data, at) & ((np.uint64(1) << np.uint64(8 * (end - at))) - np.uint64(1))
        value = (value ^ rest) * np.uint64(0xD6E8FEB86659FD93)
        value ^= value >> np.uint64(32)
    return value * np.uint64(0xCA5A826395121157)


@part
def same_bytes(first: int, second: int, length: int) -> bool:
    """Whether two stretches of memory hold the same bytes."""
    offset = 0
    while offset + 8 <= length:
        if word_at(first, offset) != word_at(second, offset):
            return False
        offset += 8
    while offset < length:
        if byte_at(first, offset) != byte_at(second, offset):
            return False
        offset += 1
    return True


@part
def copy_bytes(target: int, source: int, length: int) -> None:
    """Copies a stretch of memory; up to seven bytes after either are touched too."""
    offset = 0
    while offset < length:
        put_word(target, offset, word_at(source, offset))
        offset += 8
