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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.parquet.encoded import (
    PLAIN,
    RLE,
    EncodedColumn,
    EncodedRows,
    dictionary_page,
    joined,
    numbers,
    text_page,
    words,
)
from stepscope.trace.parquet.encodings import as_differences, as_levels, as_packed, most_bytes
from stepscope.trace.parquet.text import TextPage, TextPages
from stepscope.trace.parquet.thrift import Long, Struct, Value, encoded
from stepscope.trace.parquet.types import (
    BYTE_ARRAY,
    Types,
    cast_to,
    is_suitable,
    numbered,
    physical_type,
)

_MOST_WORDS = 128
"""Distinct words of a column that is stored as their numbers."""
_SAMPLE = 1000  # rows, to recognise text without looking at all of it
_MAGIC = b"PAR1"
_OPTIONAL = 1
_UNCOMPRESSED, _LZ4 = 0, 7
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


def encoded_column(column: pl.Series, scratch: Scratch) -> EncodedColumn | None:
    """Encodes a column; None if it has too many categories, or unreadable text.

    Args:
        column: A suitable one, not empty.
    """
    count, nulls = len(column), column.null_count()
    present = column.is_not_null().to_numpy() if 0 < nulls < count else np.full(count, not nulls)
    if physical_type(column.dtype) != BYTE_ARRAY:
        values = column.drop_nulls() if nulls else column
        integers = scratch.joined([part.to_numpy() for part in values.get_chunks()])
        return numbers(integers, scratch.encoded, _bits(present), count)
    found = _words_of(column.drop_nulls())
    if found is not None:
        return words(*found, _bits(present), count)
    if column.dtype != pl.String:
        return None
    pages = scratch.text_pages.of(column, present)
    return None if pages is None else joined([_encoded(page, present) for page in pages])


def _encoded(page: TextPage, present: npt.NDArray[np.bool_]) -> EncodedColumn:
    count = page.end - page.first
    here = present[page.first : page.end]
    nulls = count - int(np.count_nonzero(here))
    levels = as_levels(_bits(here), count, nulls)
    made = text_page(levels, page.block, page.size, count, nulls)
    return EncodedColumn(made, PLAIN, count, nulls, saved=page.size - len(page.block))


def _bits(present: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(present, bitorder="little")


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
    groups = []
    rows_each = -(-len(frame) // max(round(len(frame) / _ROWS_PER_GROUP), 1))
    scratch = Scratch(rows_each)
    for start in range(0, len(frame), max(rows_each, 1)):
        rows = cast_to(types, numbered(frame[start : start + rows_each], row_number, start))
        columns = {}
        for column in rows.iter_columns():
            found = encoded_column(column, scratch)
            if found is None:
                return False
            columns[column.name] = found
        groups.append(EncodedRows(len(rows), columns))
    _write(schema, groups, target)
    return True


def _write(schema: Mapping[str, pl.DataType], groups: Sequence[EncodedRows], target: Path) -> None:
    contents = _contents_of(schema, groups)
    with target.open("wb") as file:
        file.writelines(contents)


def _contents_of(schema: Mapping[str, pl.DataType], groups: Sequence[EncodedRows]) -> list[bytes]:
    contents = [_MAGIC]
    at = len(_MAGIC)
    described = []
    for rows in groups:
        chunks: list[Value] = []
        began = at
        for name, dtype in schema.items():
            column = rows.columns[name]
            dictionary = () if column.words is None else dictionary_page(column.words)
            pages = [*dictionary, *column.pages]
            description = _described(name, dtype, column, at, sum(map(len, dictionary)))
            chunks.append(Struct({2: Long(at), 3: description}))
            contents += pages
            at += sum(map(len, pages))
        described.append(Struct({1: chunks, 2: Long(at - began), 3: Long(len(rows))}))
    footer = _footer(schema, sum(map(len, groups)), described)
    return [*contents, footer, len(footer).to_bytes(4, "little"), _MAGIC]


def _described(
    name: str, dtype: pl.DataType, column: EncodedColumn, offset: int, dictionary_bytes: int
) -> Struct:
    """Describes a column of a row group for the footer.

    Args:
        offset: Position of its first page in the file.
        dictionary_bytes: Size of the dictionary before its other pages; 0 for none.
    """
    size = dictionary_bytes + sum(map(len, column.pages))
    statistics: dict[int, Value] = {3: Long(column.nulls)}
    if column.limits is not None:
        least, largest = column.limits
        statistics |= {5: largest.tobytes(), 6: least.tobytes()}
    return Struct(
        {
            1: physical_type(dtype),
            2: [PLAIN, RLE, column.encoding],
            3: [name.encode()],
            4: _UNCOMPRESSED if column.saved is None else _LZ4,
            5: Long(column.count),
            6: Long(size + (column.saved or 0)),
            7: Long(size),
            9: Long(offset + dictionary_bytes),
            11: Long(offset) if dictionary_bytes else None,
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
