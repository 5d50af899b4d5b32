"""Bytes and strings of JSON, for the compiled scanner.

Data is a uint8 array that ends in at least `PADDING` zero bytes. JSON contains no zero bytes, so
loops stop there without checking the length. A negative position means "not recognised".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir

from stepscope.trace.machine.helpers import jit_inline
from stepscope.trace.machine.instructions import (
    Data,
    Instruction,
    byte_at,
    load,
    word_at,
)
from stepscope.trace.machine.jit import jit
from stepscope.trace.machine.kinds import I64, VOID

PADDING = 64
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_WIDTH = 32  # bytes compared at once

QUOTE, BACKSLASH, COMMA, COLON, MINUS, PERIOD, ZERO, NINE = 34, 92, 44, 58, 45, 46, 48, 57
OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST = 123, 125, 91, 93
SPACE = 32
_LOWER_CASE = 32  # the bit that tells small letters from capital ones
_SPACES = (SPACE, 9, 10, 13)

_BYTE, _MASK = ir.IntType(8), ir.IntType(_WIDTH)


def word_of(text: bytes) -> np.uint64:
    """Returns up to eight bytes as `word_at` reads them."""
    return np.uint64(int.from_bytes(text, "little"))


def _run_length(stops: Callable[[Any, Any, Callable[[int], Any]], Any]) -> Instruction:
    """Returns an instruction that counts bytes up to the first one that stops it.

    It compares `_WIDTH` bytes at once without branches. This is what makes the scanner fast, since
    there is no branch to mispredict. If nothing stops it, the count is `_WIDTH`.
    """
    vector = ir.VectorType(_BYTE, _WIDTH)

    def all_of(value: int) -> Any:
        return ir.Constant(vector, [value] * _WIDTH)

    def generate(builder: Any, arguments: list[Any]) -> Any:
        some = load(builder, builder.add(*arguments), vector)
        mask = builder.bitcast(stops(builder, some, all_of), _MASK)
        zeros = builder.cttz(mask, ir.Constant(ir.IntType(1), 0))
        return builder.zext(zeros, I64.llvm_type)

    return Instruction(stops.__name__, (I64, I64), I64, generate)


def _ends_plain(builder: Any, some: Any, all_of: Callable[[int], Any]) -> Any:
    # As signed bytes, control characters and non-ASCII bytes are below a space.
    ends = builder.icmp_signed("<", some, all_of(SPACE))
    ends = builder.or_(ends, builder.icmp_unsigned("==", some, all_of(QUOTE)))
    return builder.or_(ends, builder.icmp_unsigned("==", some, all_of(BACKSLASH)))


def _is_no_space(builder: Any, some: Any, all_of: Callable[[int], Any]) -> Any:
    others = [builder.icmp_unsigned("!=", some, all_of(each)) for each in _SPACES]
    return functools.reduce(builder.and_, others)


def _is_no_digit(builder: Any, some: Any, all_of: Callable[[int], Any]) -> Any:
    return builder.icmp_unsigned(">=", builder.sub(some, all_of(ZERO)), all_of(10))


def _is_no_hexadecimal(builder: Any, some: Any, all_of: Callable[[int], Any]) -> Any:
    letters = builder.sub(builder.or_(some, all_of(_LOWER_CASE)), all_of(ord("a")))
    is_no_letter = builder.icmp_unsigned(">=", letters, all_of(6))
    return builder.and_(_is_no_digit(builder, some, all_of), is_no_letter)


def _copy_some(builder: Any, arguments: list[Any]) -> None:
    form = ir.VectorType(_BYTE, _WIDTH)
    some = load(builder, arguments[1], form)
    builder.store(some, builder.inttoptr(arguments[0], form.as_pointer()), align=1)


if TYPE_CHECKING:

    def copy_some(target: int, source: int) -> None:
        """Copies 32 bytes from one address to another."""

    def digit_length(data: Data, at: int) -> int:
        """Returns how many of the next bytes are digits, 32 at most."""

    def hexadecimal_length(data: Data, at: int) -> int:
        """Returns how many of the next bytes are hexadecimal digits, 32 at most."""

    def plain_length(data: Data, at: int) -> int:
        """Returns how many of the next bytes belong to a string without an escape, 32 at most."""

    def space_length(data: Data, at: int) -> int:
        """Returns how many of the next bytes are whitespace, 32 at most."""

else:
    plain_length, space_length = _run_length(_ends_plain), _run_length(_is_no_space)
    digit_length = _run_length(_is_no_digit)
    hexadecimal_length = _run_length(_is_no_hexadecimal)
    copy_some = Instruction("copy_some", (I64, I64), VOID, _copy_some)


@jit
def long_space_end(data: Data, at: int) -> int:
    """Like `skip_space`, for more than a space."""
    while True:
        length = space_length(data, at)
        at += length
        if length < _WIDTH:
            return at


@jit_inline
def skip_space(data: Data, at: int) -> int:
    """Returns the first position from `at` on that is not whitespace."""
    if byte_at(data, at) > SPACE:
        return at
    if byte_at(data, at) == SPACE and byte_at(data, at + 1) > SPACE:
        return at + 1  # as after a colon or comma
    return long_space_end(data, at)


@jit_inline
def digits_end(data: Data, at: int) -> int:
    """Returns the first position from `at` on that is not a digit."""
    while True:
        length = digit_length(data, at)
        at += length
        if length < _WIDTH:
            return at


@jit
def character_length(data: Data, at: int) -> int:
    """Returns the length of the non-ASCII UTF-8 sequence at `at`; 0 if it is invalid."""
    first, second, third = byte_at(data, at), byte_at(data, at + 1), byte_at(data, at + 2)
    fourth = byte_at(data, at + 3)
    if first < 0xC2 or (second & 0xC0) != 0x80:
        return 0
    if first < 0xE0:
        return 2
    if (third & 0xC0) != 0x80:
        return 0
    if first < 0xF0:
        # Reject overlong forms and surrogates.
        if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
            return 0
        return 3
    if first > 0xF4 or (fourth & 0xC0) != 0x80:
        return 0
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0
    return 4


@jit
def is_hexadecimal(character: int) -> bool:
    """Whether a character is a hexadecimal digit."""
    return (ZERO <= character <= NINE) or (97 <= (character | 32) <= 102)


@jit
def is_four_digits_escape(data: Data, at: int) -> bool:
    """Whether there is a backslash, a u and four hexadecimal digits at `at`."""
    if byte_at(data, at) != BACKSLASH or byte_at(data, at + 1) != 117:  # u
        return False
    for offset in range(2, 6):  # noqa: SIM110 - generators are not translated
        if not is_hexadecimal(byte_at(data, at + offset)):
            return False
    return True


@jit
def escape_length(data: Data, at: int) -> int:
    """Returns the length of the escape at `at`, or of a pair of surrogates; 0 if it is invalid.

    That of a surrogate without its other half is negative.
    """
    kind = byte_at(data, at + 1)
    if kind in (QUOTE, BACKSLASH, 47, 98, 102, 110, 114, 116):  # "\/bfnrt
        return 2
    if not is_four_digits_escape(data, at):
        return 0
    if (byte_at(data, at + 2) | 32) != 100 or byte_at(data, at + 3) < 56:  # \ud8.. to \udf..
        return 6
    is_first = (byte_at(data, at + 3) | 32) < 99  # up to \udb..
    if not is_first or not is_four_digits_escape(data, at + 6):
        return -6
    is_second = (byte_at(data, at + 8) | 32) == 100 and (byte_at(data, at + 9) | 32) >= 99
    return 12 if is_second else -6


@jit
def unusual_string_end(data: Data, at: int) -> int:
    """Like `string_end`, for strings with an escape or a non-ASCII character."""
    while True:
        length = plain_length(data, at)
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
        if length <= 0:
            return -1
        at += length


@jit_inline
def plain_string_end(data: Data, at: int) -> int:
    """Like `string_end`, but -1 also if the string has an escape or a non-ASCII character."""
    length = plain_length(data, at)
    at += length
    while length == _WIDTH:
        length = plain_length(data, at)
        at += length
    return at if byte_at(data, at) == QUOTE else -1


@jit_inline
def string_end(data: Data, at: int) -> int:
    """Returns the position of the closing quote of the string from `at` on; -1 if invalid."""
    end = plain_string_end(data, at)
    return end if end >= 0 else unusual_string_end(data, at)


@jit_inline
def has_escape(data: Data, at: int, end: int) -> bool:
    """Whether there is a backslash in some bytes."""
    for position in range(at, end):  # noqa: SIM110 - generators are not translated
        if byte_at(data, position) == BACKSLASH:
            return True
    return False


@jit_inline
def first_bytes(data: Data, at: int, count: int) -> np.uint64:
    """Returns one to eight bytes as a word, and zeros; touches all eight."""
    return word_at(data, at) & (_ALL >> np.uint64(64 - 8 * count))


@jit_inline
def hash_bytes(data: Data, at: int, end: int) -> np.uint64:
    """Returns a hash of some bytes, for hash tables. It does not resist adversaries."""
    value = np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(end - at)
    while at + 8 <= end:
        value = (value ^ word_at(data, at)) * np.uint64(0xD6E8FEB86659FD93)
        value ^= value >> np.uint64(32)
        at += 8
    if at < end:
        value = (value ^ first_bytes(data, at, end - at)) * np.uint64(0xD6E8FEB86659FD93)
        value ^= value >> np.uint64(32)
    return value * np.uint64(0xCA5A826395121157)


@jit_inline
def same_bytes(first: int, second: int, length: int) -> bool:
    """Whether two memory regions hold the same bytes; may touch seven bytes after either one."""
    offset = 0
    while offset + 8 <= length:
        if word_at(first, offset) != word_at(second, offset):
            return False
        offset += 8
    rest = length - offset
    return rest <= 0 or first_bytes(first, offset, rest) == first_bytes(second, offset, rest)


@jit_inline
def copy_bytes(target: int, source: int, length: int) -> None:
    """Copies a memory region, `_WIDTH` bytes at once: may touch that many after either one."""
    offset = 0
    while offset < length:
        copy_some(target + offset, source + offset)
        offset += _WIDTH
