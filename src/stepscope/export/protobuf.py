"""Writes Protocol Buffers by column: one message per row, without a loop over the rows.

A `Pieces` holds one byte string per row. Fields are pieces, a message is pieces joined row by row,
and a field that a row lacks is a piece of length 0. Format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit
from stepscope.trace.parquet.thrift import varint

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, eq=False)
class Pieces:
    """One byte string per row.

    Attributes:
        data: The bytes of all rows, in order.
    """

    data: npt.NDArray[np.uint8]
    length: Int64Array

    def __len__(self) -> int:
        return len(self.length)

    def tobytes(self) -> bytes:
        """The bytes of all rows."""
        return self.data.tobytes()


def varints(values: npt.NDArray[np.integer[Any]]) -> Pieces:
    """Encode whole numbers, not negative, in as few bytes as they need."""
    rest = values.astype(np.uint64)
    length = np.ones(len(rest), np.int64)
    for bits in range(7, 64, 7):
        length += rest >= np.uint64(1 << bits)
    first = np.cumsum(length) - length
    data = np.empty(int(length.sum()), np.uint8)
    for place in range(int(length.max(initial=0))):
        rows = np.flatnonzero(length > place)
        byte = (rest[rows] >> np.uint64(7 * place)).astype(np.uint8) & np.uint8(0x7F)
        more = (length[rows] > place + 1).astype(np.uint8) << np.uint8(7)
        data[first[rows] + place] = byte | more
    return Pieces(data, length)


def texts(values: pl.Series) -> Pieces:
    """The UTF-8 bytes of strings; null is empty."""
    filled = values.fill_null("")
    joined = filled.str.join("").item() if len(filled) else ""
    data = np.frombuffer((joined or "").encode(), np.uint8)
    return Pieces(data, filled.str.len_bytes().to_numpy().astype(np.int64))


def constant(value: bytes, rows: int) -> Pieces:
    """The same bytes in every row."""
    data = np.tile(np.frombuffer(value, np.uint8), rows)
    return Pieces(data, np.full(rows, len(value), np.int64))


def joined(parts: Sequence[Pieces]) -> Pieces:
    """Join pieces row by row."""
    length = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        length = length + part.length
    place = np.cumsum(length) - length
    data = np.empty(int(length.sum()), np.uint8)
    for part in parts:
        jit(put_by_loop)(np.ascontiguousarray(part.data), part.length, place, data)
    return Pieces(data, length)


def put_by_loop(
    data: npt.NDArray[np.uint8],
    length: Int64Array,
    place: Written[np.int64],
    target: Written[np.uint8],
) -> None:
    """Copy each piece to its place in the target, and move the place behind it.

    Args:
        place: Where each begins in the target.
    """
    at = 0
    for row in range(len(length)):
        first = place[row]
        for byte in range(length[row]):
            target[first + byte] = data[at + byte]
        at += length[row]
        place[row] = first + length[row]


def only(pieces: Pieces, rows: BoolArray) -> Pieces:
    """Pieces of the chosen rows, given in their order, with nothing in the others."""
    length = np.zeros(len(rows), np.int64)
    length[rows] = pieces.length
    return Pieces(pieces.data, length)


def number_field(field: int, values: npt.NDArray[np.integer[Any]]) -> Pieces:
    """A field with a whole number, not negative."""
    return joined([constant(_tag(field, _VARINT), len(values)), varints(values)])


def fixed64_field(field: int, values: npt.NDArray[np.generic]) -> Pieces:
    """A field with eight bytes: unsigned integers or doubles."""
    data = values.astype(values.dtype.newbyteorder("<")).view(np.uint8)
    eight = Pieces(data, np.full(len(values), 8, np.int64))
    return joined([constant(_tag(field, _FIXED64), len(values)), eight])


def bytes_field(field: int, pieces: Pieces) -> Pieces:
    """A field with text, bytes or a message."""
    tag = constant(_tag(field, _BYTES), len(pieces))
    return joined([tag, varints(pieces.length), pieces])


def one_number(field: int, value: int) -> bytes:
    """One field with a whole number, not negative."""
    return _tag(field, _VARINT) + varint(value)


def one_double(field: int, value: float) -> bytes:
    """One field with a double."""
    return _tag(field, _FIXED64) + struct.pack("<d", value)


def one_float(field: int, value: float) -> bytes:
    """One field with a single-precision number."""
    return _tag(field, _FIXED32) + np.array(value, "<f4").tobytes()


def one_text(field: int, value: str) -> bytes:
    """One field with text."""
    return one_message(field, value.encode("utf-8", "replace"))


def one_message(field: int, content: bytes | Iterable[bytes]) -> bytes:
    """One field with a message, or with bytes."""
    whole = content if isinstance(content, bytes) else b"".join(content)
    return _tag(field, _BYTES) + varint(len(whole)) + whole


def _tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)
