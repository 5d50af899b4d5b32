"""What compiled functions do to memory.

Functions take addresses rather than arrays: `byte_at(data, 3)` is the byte three bytes after the
address `data`, `long_at(columns, 3)` the fourth number of an int64 array.

Nothing checks an address. These modules use them, and this is why they stay inside:

`formats/chrome/scanner`
    A block ends in `PADDING` zero bytes (`scan_bytes.py`). JSON has no zero bytes, so loops over
    bytes stop there, and reads of up to 64 bytes at once end within. Columns have `ROOM` rows, and
    scanning stops at the last; tables of names, lanes and patterns are indexed by masked hashes,
    and grow before they are full. Copies of repaired events have room for `MARGIN` bytes after
    `last`, which is looked at before each piece.
`parquet`
    The caller allocates the longest that the numbers, or the texts, can become.
`arrays/arrow_columns.py`
    Polars calls it with the address of a structure whose layout Arrow's C data interface fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir

from stepscope.trace.machine.kinds import I64, U64, VOID, Kind

Data = int
"""Address of a uint8 array."""

Ints = int
"""Address of an int32 array."""

Longs = int
"""Address of an int64 array."""


@dataclass(frozen=True)
class Instruction:
    """Something that compiled functions can call, and that LLVM has instructions for.

    Attributes:
        name: Its name, which it also stands for in keys of code that is kept.
        generate: Adds the instructions; takes a builder and the arguments, and returns the result.
    """

    name: str
    takes: tuple[Kind, ...]
    gives: Kind
    generate: Callable[[Any, list[Any]], Any]


_LONG_FORM = ir.IntType(64)


def load(builder: Any, address: Any, llvm_type: Any) -> Any:
    """Loads a value from an address, aligned or not."""
    return builder.load(builder.inttoptr(address, llvm_type.as_pointer()), align=1, typ=llvm_type)


def _load_of(name: str, size: int, extended: str) -> Instruction:
    def generate(builder: Any, arguments: list[Any]) -> Any:
        address = _address(builder, arguments, size)
        value = load(builder, address, ir.IntType(8 * size))
        return getattr(builder, extended)(value, _LONG_FORM)

    return Instruction(name, (I64, I64), I64, generate)


def _store_of(name: str, size: int) -> Instruction:
    def generate(builder: Any, arguments: list[Any]) -> None:
        llvm_type = ir.IntType(8 * size)
        address = _address(builder, arguments, size)
        pointer = builder.inttoptr(address, llvm_type.as_pointer())
        builder.store(builder.trunc(arguments[2], llvm_type), pointer, align=size)

    return Instruction(name, (I64, I64, I64), VOID, generate)


def _address(builder: Any, arguments: list[Any], size: int) -> Any:
    return builder.add(arguments[0], builder.mul(arguments[1], ir.Constant(_LONG_FORM, size)))


def _word_at(builder: Any, arguments: list[Any]) -> Any:
    return load(builder, builder.add(*arguments), _LONG_FORM)


def _put_word(builder: Any, arguments: list[Any]) -> None:
    address = builder.add(*arguments[:2])
    builder.store(arguments[2], builder.inttoptr(address, _LONG_FORM.as_pointer()), align=1)


def _leading_zeros(builder: Any, arguments: list[Any]) -> Any:
    return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))


if TYPE_CHECKING:

    def byte_at(data: Data, at: int) -> int:
        """Returns the byte at a position."""

    def int_at(ints: Ints, index: int) -> int:
        """Returns a number of an int32 array."""

    def long_at(longs: Longs, index: int) -> int:
        """Returns a number of an int64 array."""

    def put_byte(data: Data, at: int, value: int) -> None:
        """Sets the byte at a position."""

    def put_int(ints: Ints, index: int, value: int) -> None:
        """Sets a number of an int32 array."""

    def put_long(longs: Longs, index: int, value: int) -> None:
        """Sets a number of an int64 array."""

    def word_at(data: Data, at: int) -> np.uint64:
        """Returns the eight bytes at a position, the first as the lowest."""

    def put_word(data: Data, at: int, value: np.uint64) -> None:
        """Sets the eight bytes at a position."""

    def leading_zeros(value: np.uint64) -> int:
        """Returns how many of the highest bits are zero; 64 for zero."""

else:
    byte_at = _load_of("byte_at", 1, "zext")
    int_at, long_at = _load_of("int_at", 4, "sext"), _load_of("long_at", 8, "sext")
    put_byte, put_int = _store_of("put_byte", 1), _store_of("put_int", 4)
    put_long = _store_of("put_long", 8)
    word_at = Instruction("word_at", (I64, I64), U64, _word_at)
    put_word = Instruction("put_word", (I64, I64, U64), VOID, _put_word)
    leading_zeros = Instruction("leading_zeros", (U64,), I64, _leading_zeros)
