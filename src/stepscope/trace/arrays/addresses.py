"""Reads and writes memory by address, for compiled loops.

These functions take addresses rather than arrays, because passing an array updates its reference
count, which costs more than most of these calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

Data = int
"""Address of a uint8 array."""

as_long = cast("Callable[[Any], int]", np.int64)
"""Converts a number to a signed one. Mixing signed and unsigned numbers would yield floats."""

Ints = int
"""Address of an int32 array."""

Longs = int
"""Address of an int64 array."""

if TYPE_CHECKING:
    # Signatures of the intrinsics below.
    byte_at: Callable[[Data, int], int]
    word_at: Callable[[Data, int], np.uint64]
    int_at: Callable[[Ints, int], int]
    long_at: Callable[[Longs, int], int]
    put_byte: Callable[[Data, int, int], None]
    put_int: Callable[[Ints, int, int], None]
    put_long: Callable[[Longs, int, int], None]
    put_word: Callable[[Data, int, np.uint64], None]
else:
    _BYTE, _LONG = ir.IntType(8), ir.IntType(64)

    def load(builder: Any, arguments: Any, kind: Any) -> Any:
        """Loads a value from an address plus an offset, aligned or not."""
        address = builder.add(arguments[0], arguments[1])
        pointer = builder.inttoptr(address, kind.as_pointer())
        return builder.load(pointer, align=1, typ=kind)

    @intrinsic
    def byte_at(_: Any, data: Any, at: Any) -> Any:
        """Returns the byte at a position, without handling negative indices."""

        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return builder.zext(load(builder, arguments, _BYTE), _LONG)

        return types.int64(data, at), generate

    @intrinsic
    def word_at(_: Any, data: Any, at: Any) -> Any:
        """Returns eight bytes from any position as a little-endian word."""

        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return load(builder, arguments, _LONG)

        return types.uint64(data, at), generate

    def _element(size: int, widened: str) -> Any:
        """Returns an intrinsic that reads an element of an integer array."""

        def element(_: Any, array: Any, index: Any) -> Any:
            def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
                offset = builder.mul(arguments[1], ir.Constant(_LONG, size))
                value = load(builder, (arguments[0], offset), ir.IntType(8 * size))
                return getattr(builder, widened)(value, _LONG)

            return types.int64(array, index), generate

        return intrinsic(element)

    def _put_element(size: int) -> Any:
        """Returns an intrinsic that sets an element of an integer array."""

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
        """Writes eight bytes at any position."""

        def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
            address = builder.add(arguments[0], arguments[1])
            pointer = builder.inttoptr(address, _LONG.as_pointer())
            builder.store(arguments[2], pointer, align=1)
            return context.get_dummy_value()

        return types.void(data, at, value), generate
