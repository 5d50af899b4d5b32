"""Writes Parquet files of numbers, words and text.

Numbers are stored as packed differences, which are small and fast where neighbours are alike:
times, counters, names that repeat. Words (categories, phases) are numbered. Text is compressed with
LZ4, which is written and read several times faster than what takes least space.
"""

from __future__ import annotations

import functools
import io
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.parquet.encodings import as_differences, as_levels, as_packed, most_bytes
from stepscope.trace.parquet.text import TextPages
from stepscope.trace.parquet.thrift import Long, Struct, Value, encoded
from stepscope.trace.parquet.types import (
    BYTE_ARRAY,
    Types,
    cast_to,
    is_suitable,
    numbered,
    physical_type,
)

_MOST_DISTINCT = 128
"""Distinct words of a column that is stored as their numbers."""
_SAMPLE = 1000  # rows, to recognise text without looking at all of it
_MAGIC = b"PAR1"
_OPTIONAL = 1
_UNCOMPRESSED, _LZ4 = 0, 7
_PLAIN, _RLE, _DIFFERENCES, _OF_DICTIONARY = 0, 3, 5, 8  # encodings
_DATA, _DICTIONARY, _DATA_OF_SECOND_VERSION = 0, 2, 3  # kinds of pages
_UTF8, _UINT32, _UINT64 = 0, 13, 14  # "converted types"
_CONVERTED: dict[type[pl.DataType], int] = {
    pl.UInt32: _UINT32,
    pl.UInt64: _UINT64,
    pl.Enum: _UTF8,
    pl.String: _UTF8,
}
_ROWS_PER_GROUP = 1 << 18  # about: readers take a group at once


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


@dataclass(frozen=True)
class EncodedColumn:
    """A column of one row group.

    Attributes:
        pages: Its pages, in pieces that follow each other: large values are not copied behind a
            header.
        dictionary_bytes: Size of the first page if it is a dictionary; 0 for none.
        saved: Bytes that compression saved; None if nothing was compressed.
        limits: The least and the largest value; None if that is unknown, or if all are null.
    """

    pages: Sequence[bytes]
    encoding: int
    nulls: int
    dictionary_bytes: int = 0
    saved: int | None = None
    limits: tuple[np.integer[Any], np.integer[Any]] | None = None


def encoded_column(column: pl.Series, scratch: Scratch) -> EncodedColumn | None:
    """Encodes a column; None if it has too many categories, or unreadable text.

    Args:
        column: A suitable one, not empty.
    """
    count, nulls = len(column), column.null_count()
    present = column.is_not_null().to_numpy() if 0 < nulls < count else np.full(count, not nulls)
    levels = as_levels(_bits(present), count, nulls)
    if physical_type(column.dtype) != BYTE_ARRAY:
        values = column.drop_nulls() if nulls else column
        integers = scratch.joined([part.to_numpy() for part in values.get_chunks()])
        differences, limits = as_differences(integers, scratch.encoded)
        page = _data_page(levels, differences, count, _DIFFERENCES)
        return EncodedColumn(page, _DIFFERENCES, nulls, limits=limits)
    found = _distinct_texts(column.drop_nulls())
    if found is not None:
        numbers, distinct = found
        width = max(len(distinct) - 1, 1).bit_length()
        packed = bytes([width]) + as_packed(numbers, width)
        dictionary = _dictionary_page(distinct)
        page = _data_page(levels, packed, count, _OF_DICTIONARY)
        size = sum(map(len, dictionary))
        return EncodedColumn((*dictionary, *page), _OF_DICTIONARY, nulls, size)
    if column.dtype != pl.String:
        return None
    texts = scratch.text_pages.of(column, present)
    if texts is None:
        return None
    pages: list[bytes] = []
    saved = 0
    for text in texts:
        here = present[text.first : text.end]
        without = len(here) - int(np.count_nonzero(here))
        levels = as_levels(_bits(here), len(here), without)
        pages += _text_page(levels, text.block, text.size, len(here), without)
        saved += text.size - len(text.block)
    return EncodedColumn(pages, _PLAIN, nulls, saved=saved)


def _bits(present: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(present, bitorder="little")


def _distinct_texts(values: pl.Series) -> tuple[npt.NDArray[np.uint8], list[bytes]] | None:
    """Returns the number of each word, and the words; None if there are too many."""
    if isinstance(values.dtype, pl.Enum):
        distinct = values.dtype.categories
    elif values.gather_every(max(len(values) // _SAMPLE, 1)).n_unique() > _MOST_DISTINCT:
        return None
    else:
        distinct = values.unique()
        if len(distinct) <= _MOST_DISTINCT:
            values = values.cast(pl.Enum(distinct))
    if len(distinct) > _MOST_DISTINCT:
        return None
    return values.to_physical().cast(pl.UInt8).to_numpy(), [word.encode() for word in distinct]


def _dictionary_page(distinct: Sequence[bytes]) -> tuple[bytes, bytes]:
    body = b"".join(len(word).to_bytes(4, "little") + word for word in distinct)
    return _page(_DICTIONARY, b"", body, len(body), {7: Struct({1: len(distinct), 2: _PLAIN})})


def _data_page(levels: bytes, values: bytes, count: int, encoding: int) -> tuple[bytes, bytes]:
    """Returns a page of values.

    Args:
        levels: Which values are not null.
        values: Those that are not.
        count: How many there are, with nulls.
    """
    levels = len(levels).to_bytes(4, "little") + levels
    header = {5: Struct({1: count, 2: encoding, 3: _RLE, 4: _RLE})}
    return _page(_DATA, levels, values, len(levels) + len(values), header)


def _text_page(
    levels: bytes, text: bytes, size: int, count: int, nulls: int
) -> tuple[bytes, bytes]:
    """Returns a page of text. Which texts are null is not compressed: hence the second version.

    Args:
        size: Their bytes before compression.
        count: How many there are, with nulls.
    """
    header: dict[int, Value] = {
        1: count,
        2: nulls,
        3: count,
        4: _PLAIN,
        5: len(levels),
        6: 0,
        7: size > 0,
    }
    size += len(levels)
    return _page(_DATA_OF_SECOND_VERSION, levels, text, size, {8: Struct(header)})


def _page(
    kind: int, levels: bytes, values: bytes, size: int, header: Mapping[int, Value]
) -> tuple[bytes, bytes]:
    """Returns a page. `size` is that of levels and values before compression."""
    stored = len(levels) + len(values)
    return encoded(Struct({1: kind, 2: size, 3: stored, **header})) + levels, values


def prepare() -> None:
    """Compiles the encoders, unless their machine code is kept from earlier."""
    as_differences(np.zeros(1, np.int64), np.empty(most_bytes(1), np.uint8))
    as_packed(np.zeros(1, np.uint8), 1)
    pages = TextPages().of(pl.Series(["text"]), np.ones(1, np.bool_))
    deque(pages or (), maxlen=0)


def write(
    frame: pl.DataFrame, target: Path, types: Types | None = None, row_number: str | None = None
) -> bool:
    """Writes a table as a Parquet file.

    Args:
        types: Types to write the columns as, where the table holds them in narrower ones; they are
            cast one row group at a time.
        row_number: Name of a first column with the numbers of the rows, which the table lacks.

    Returns:
        Whether it was written: not if it has other columns than integers of 32 or 64 bits,
        categories and text.
    """
    schema = cast_to(types, numbered(frame.clear(), row_number)).schema
    if not all(map(is_suitable, schema.dtypes())):
        return False
    contents, at = [_MAGIC], len(_MAGIC)
    groups = []
    rows_each = -(-len(frame) // max(round(len(frame) / _ROWS_PER_GROUP), 1))
    scratch = Scratch(rows_each)
    for start in range(0, len(frame), max(rows_each, 1)):
        rows = cast_to(types, numbered(frame[start : start + rows_each], row_number, start))
        chunks: list[Value] = []
        began = at
        for column in rows.iter_columns():
            found = encoded_column(column, scratch)
            if found is None:
                return False
            chunks.append(Struct({2: Long(at), 3: _described(column, found, at)}))
            contents += found.pages
            at += sum(map(len, found.pages))
        groups.append(Struct({1: chunks, 2: Long(at - began), 3: Long(len(rows))}))
    footer = _footer(schema, len(frame), groups)
    with target.open("wb") as file:
        file.writelines([*contents, footer, len(footer).to_bytes(4, "little"), _MAGIC])
    return True


def _described(column: pl.Series, found: EncodedColumn, offset: int) -> Struct:
    """Describes a column of a row group for the footer.

    Args:
        offset: Position of its first page in the file.
    """
    size = sum(map(len, found.pages))
    statistics: dict[int, Value] = {3: Long(found.nulls)}
    if found.limits is not None:
        least, largest = found.limits
        statistics |= {5: largest.tobytes(), 6: least.tobytes()}
    return Struct(
        {
            1: physical_type(column.dtype),
            2: [_PLAIN, _RLE, found.encoding],
            3: [column.name.encode()],
            4: _UNCOMPRESSED if found.saved is None else _LZ4,
            5: Long(len(column)),
            6: Long(size + (found.saved or 0)),
            7: Long(size),
            9: Long(offset + found.dictionary_bytes),
            11: Long(offset) if found.dictionary_bytes else None,
            12: Struct(statistics),
        }
    )


def _footer(columns: Mapping[str, pl.DataType], rows: int, groups: list[Struct]) -> bytes:
    in_order = Struct({1: Struct({})})  # by the order of the type
    root = Struct({4: b"root", 5: len(columns)})
    elements = [_element(name, dtype) for name, dtype in columns.items()]
    schema = _arrow_schema(tuple(columns.items()))
    return encoded(
        Struct(
            {
                1: 1,
                2: [root, *elements],
                3: Long(rows),
                4: groups,
                5: [Struct({1: b"ARROW:schema", 2: schema})],
                6: b"Stepscope",
                7: [in_order] * len(elements),
            }
        )
    )


def _element(name: str, dtype: pl.DataType) -> Struct:
    physical = physical_type(dtype)
    logical = None
    if physical == BYTE_ARRAY:
        logical = Struct({1: Struct({})})
    return Struct(
        {
            1: physical,
            3: _OPTIONAL,
            4: name.encode(),
            6: _CONVERTED.get(dtype.base_type()),
            10: logical,
        }
    )


@functools.cache
def _arrow_schema(columns: tuple[tuple[str, pl.DataType], ...]) -> bytes:
    """Returns the schema in the form in which Polars keeps types that Parquet does not have."""
    empty = io.BytesIO()
    pl.DataFrame(schema=dict(columns)).write_parquet(empty)
    return pl.read_parquet_metadata(io.BytesIO(empty.getvalue()))["ARROW:schema"].encode()
