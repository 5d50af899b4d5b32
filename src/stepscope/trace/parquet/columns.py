"""Columns of Polars as column chunks of Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.parquet.encodings import (
    as_differences,
    as_packed,
    as_present,
    most_bytes,
)
from stepscope.trace.parquet.thrift import Long, Struct, Value, encoded

INT32, INT64, BYTE_ARRAY = 1, 2, 6  # physical types
_PLAIN, _RLE, _DIFFERENCES, _OF_DICTIONARY = 0, 3, 5, 8  # encodings
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_UNCOMPRESSED = 0
_MOST_WORDS = 128
"""Distinct words of a column."""
_SAMPLE = 1000  # rows, to recognise text early

_PHYSICAL: dict[type[pl.DataType], int] = {
    pl.Int32: INT32,
    pl.UInt32: INT32,
    pl.Int64: INT64,
    pl.UInt64: INT64,
    pl.Enum: BYTE_ARRAY,
    pl.String: BYTE_ARRAY,
}


def physical_type(dtype: pl.DataType) -> int:
    """Returns the type in which Parquet stores a type of Polars."""
    return _PHYSICAL[dtype.base_type()]


def is_suitable(column: pl.Series) -> bool:
    """Whether a column has a type that can be written, and its beginning has few distinct words."""
    if column.dtype.base_type() not in _PHYSICAL:
        return False
    return column.dtype != pl.String or column.head(_SAMPLE).n_unique() <= _MOST_WORDS


@dataclass(frozen=True)
class ColumnChunk:
    """A column of a row group.

    Attributes:
        content: Its pages.
        description: Its entry in the footer.
    """

    content: bytes
    description: Struct


class Scratch:
    """Memory for the columns of a table, one after another: fresh memory costs more than the work.

    Args:
        rows: Number of rows of its longest row group.
    """

    def __init__(self, rows: int) -> None:
        self._numbers = np.empty(rows, np.int64)
        self.encoded = np.empty(most_bytes(rows), np.uint8)

    def joined(self, arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Joins arrays of the same integers. The result is valid until the next call."""
        if len(arrays) == 1:
            return arrays[0]
        count = sum(map(len, arrays))
        return np.concatenate(arrays, out=self._numbers.view(arrays[0].dtype)[:count])


def chunk_of(column: pl.Series, offset: int, scratch: Scratch) -> ColumnChunk | None:
    """Returns a column as a chunk; None if it has too many distinct words.

    Args:
        column: A suitable one.
        offset: Position of the chunk in the file.
        scratch: Memory to use.
    """
    count, nulls = len(column), column.null_count()
    present = column.is_not_null().to_numpy() if 0 < nulls < count else np.full(count, not nulls)
    values = column.drop_nulls() if nulls else column
    physical = physical_type(column.dtype)
    statistics: dict[int, Value] = {3: Long(nulls)}
    pages = []
    if physical == BYTE_ARRAY:
        words = _words_of(values)
        if words is None:
            return None
        numbers, distinct = words
        pages.append(_dictionary_page(distinct))
        width = max(len(distinct) - 1, 1).bit_length()
        body, encoding = bytes([width]) + as_packed(numbers, width), _OF_DICTIONARY
    else:
        integers = scratch.joined([part.to_numpy() for part in values.get_chunks()])
        body, encoding = as_differences(integers, scratch.encoded), _DIFFERENCES
        if len(integers):
            statistics |= {5: integers.max().tobytes(), 6: integers.min().tobytes()}
    pages.append(_data_page(as_present(present, count) + body, count, encoding))
    content = b"".join(pages)
    data_offset = offset + len(content) - len(pages[-1])
    description = Struct(
        {
            1: physical,
            2: [_PLAIN, _RLE, encoding],
            3: [column.name.encode()],
            4: _UNCOMPRESSED,
            5: Long(count),
            6: Long(len(content)),
            7: Long(len(content)),
            9: Long(data_offset),
            11: Long(offset) if len(pages) > 1 else None,
            12: Struct(statistics),
        }
    )
    return ColumnChunk(content, description)


def _words_of(values: pl.Series) -> tuple[npt.NDArray[np.uint8], list[bytes]] | None:
    """Returns the number of each word, and the words; None if there are too many."""
    if isinstance(values.dtype, pl.Enum):
        words = values.dtype.categories
    else:
        words = values.unique()
        if len(words) <= _MOST_WORDS:
            values = values.cast(pl.Enum(words))
    if len(words) > _MOST_WORDS:
        return None
    return values.to_physical().cast(pl.UInt8).to_numpy(), [word.encode() for word in words]


def _dictionary_page(words: list[bytes]) -> bytes:
    body = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    return _page(_DICTIONARY_PAGE, body, {7: Struct({1: len(words), 2: _PLAIN})})


def _data_page(body: bytes, count: int, encoding: int) -> bytes:
    return _page(_DATA_PAGE, body, {5: Struct({1: count, 2: encoding, 3: _RLE, 4: _RLE})})


def _page(kind: int, body: bytes, header: dict[int, Value]) -> bytes:
    return encoded(Struct({1: kind, 2: len(body), 3: len(body), **header})) + body
