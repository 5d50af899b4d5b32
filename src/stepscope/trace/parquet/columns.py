"""Columns of Polars as column chunks of Parquet."""

from __future__ import annotations

from collections.abc import Iterable
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
from stepscope.trace.parquet.pages import (
    DIFFERENCES,
    OF_DICTIONARY,
    PLAIN,
    RLE,
    data_page,
    dictionary_page,
    text_page,
)
from stepscope.trace.parquet.text import TextPage, TextPages
from stepscope.trace.parquet.thrift import Long, Struct, Value

INT32, INT64, BYTE_ARRAY = 1, 2, 6  # physical types
_UNCOMPRESSED, _LZ4 = 0, 7
_MOST_WORDS = 128
"""Distinct words of a column that is stored as their numbers."""
_SAMPLE = 1000  # rows, to recognise text without looking at all of it

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


def is_suitable(dtype: pl.DataType) -> bool:
    """Whether columns of a type can be written."""
    return dtype.base_type() in _PHYSICAL


@dataclass(frozen=True)
class ColumnChunk:
    """A column of a row group.

    Attributes:
        pages: Its pages.
        description: Its entry in the footer.
    """

    pages: list[bytes]
    description: Struct

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(map(len, self.pages))


class Scratch:
    """Memory for the columns of a table, one after another: fresh memory costs more than the work.

    Args:
        rows: Number of rows of its longest row group.
    """

    def __init__(self, rows: int) -> None:
        self._numbers = np.empty(rows, np.int64)
        self.encoded = np.empty(most_bytes(rows), np.uint8)
        self.text_pages = TextPages()

    def joined(self, arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Joins arrays of the same integers. The result is valid until the next call."""
        if len(arrays) == 1:
            return arrays[0]
        count = sum(map(len, arrays))
        return np.concatenate(arrays, out=self._numbers.view(arrays[0].dtype)[:count])


def chunk_of(column: pl.Series, offset: int, scratch: Scratch) -> ColumnChunk | None:
    """Returns a column as a chunk; None if it has too many categories, or unreadable text.

    Args:
        column: A suitable one, not empty.
        offset: Position of the chunk in the file.
        scratch: Memory to use.
    """
    count, nulls = len(column), column.null_count()
    present = column.is_not_null().to_numpy() if 0 < nulls < count else np.full(count, not nulls)
    if physical_type(column.dtype) != BYTE_ARRAY:
        return _numbers_chunk(column, present, offset, scratch)
    words = _words_of(column.drop_nulls())
    if words is not None:
        return _words_chunk(column, present, offset, *words)
    if column.dtype != pl.String:
        return None
    pages = scratch.text_pages.of(column, present)
    return None if pages is None else _text_chunk(column, present, offset, pages)


def _numbers_chunk(
    column: pl.Series, present: npt.NDArray[np.bool_], offset: int, scratch: Scratch
) -> ColumnChunk:
    values = column if present.all() else column.drop_nulls()
    integers = scratch.joined([part.to_numpy() for part in values.get_chunks()])
    body = as_present(present, len(column)) + as_differences(integers, scratch.encoded)
    pages = [data_page(body, len(column), DIFFERENCES)]
    range_: dict[int, Value] = {}
    if len(integers):
        range_ = {5: integers.max().tobytes(), 6: integers.min().tobytes()}
    return _chunk(column, pages, DIFFERENCES, {9: Long(offset)}, range_)


def _words_chunk(
    column: pl.Series,
    present: npt.NDArray[np.bool_],
    offset: int,
    numbers: npt.NDArray[np.uint8],
    distinct: list[bytes],
) -> ColumnChunk:
    width = max(len(distinct) - 1, 1).bit_length()
    body = as_present(present, len(column)) + bytes([width]) + as_packed(numbers, width)
    dictionary = dictionary_page(distinct)
    pages = [dictionary, data_page(body, len(column), OF_DICTIONARY)]
    places: dict[int, Value] = {9: Long(offset + len(dictionary)), 11: Long(offset)}
    return _chunk(column, pages, OF_DICTIONARY, places)


def _text_chunk(
    column: pl.Series,
    present: npt.NDArray[np.bool_],
    offset: int,
    text_pages: Iterable[TextPage],
) -> ColumnChunk:
    pages = []
    saved = 0
    for page in text_pages:
        pages.append(text_page(page, present[page.first : page.end]))
        saved += page.size - len(page.block)
    places: dict[int, Value] = {4: _LZ4, 9: Long(offset)}
    return _chunk(column, pages, PLAIN, places, saved=saved)


def _chunk(
    column: pl.Series,
    pages: list[bytes],
    encoding: int,
    fields: dict[int, Value],
    statistics: dict[int, Value] | None = None,
    *,
    saved: int = 0,
) -> ColumnChunk:
    """Describes a chunk.

    Args:
        column: What is in it.
        pages: Its pages.
        encoding: Encoding of its values.
        fields: Of the description: where its pages are, and how they are compressed.
        statistics: Fields of the statistics, without the number of nulls.
        saved: Bytes that compression saved.
    """
    size = sum(map(len, pages))
    description: dict[int, Value] = {
        1: physical_type(column.dtype),
        2: [PLAIN, RLE, encoding],
        3: [column.name.encode()],
        4: _UNCOMPRESSED,
        5: Long(len(column)),
        6: Long(size + saved),
        7: Long(size),
        12: Struct({3: Long(column.null_count()), **(statistics or {})}),
    }
    return ColumnChunk(pages, Struct({**description, **fields}))


def _words_of(values: pl.Series) -> tuple[npt.NDArray[np.uint8], list[bytes]] | None:
    """Returns the number of each word, and the words; None if there are too many."""
    if isinstance(values.dtype, pl.Enum):
        words = values.dtype.categories
    elif values.gather_every(max(len(values) // _SAMPLE, 1)).n_unique() > _MOST_WORDS:
        return None
    else:
        words = values.unique()
        if len(words) <= _MOST_WORDS:
            values = values.cast(pl.Enum(words))
    if len(words) > _MOST_WORDS:
        return None
    return values.to_physical().cast(pl.UInt8).to_numpy(), [word.encode() for word in words]
