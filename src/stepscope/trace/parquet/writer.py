"""Writes Parquet files of numbers, words and text.

Numbers are stored as packed differences, which are small and fast where neighbours are alike:
times, counters, names that repeat. Words (categories, phases) are numbered. Text is compressed with
LZ4, which is written and read several times faster than what takes least space.
"""

from __future__ import annotations

import functools
import io
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.trace.parquet.columns import (
    BYTE_ARRAY,
    Scratch,
    chunk_of,
    is_suitable,
    physical_type,
)
from stepscope.trace.parquet.encodings import as_differences, as_packed, most_bytes
from stepscope.trace.parquet.text import TextPages
from stepscope.trace.parquet.thrift import Long, Struct, Value, encoded
from stepscope.trace.parquet.types import Types, cast_to

_MAGIC = b"PAR1"
_OPTIONAL = 1
_UTF8, _UINT32, _UINT64 = 0, 13, 14  # "converted types"
_CONVERTED: dict[type[pl.DataType], int] = {
    pl.UInt32: _UINT32,
    pl.UInt64: _UINT64,
    pl.Enum: _UTF8,
    pl.String: _UTF8,
}
_ROWS_PER_GROUP = 1 << 18  # about: readers take a group at once


def prepare() -> None:
    """Compiles the encoders, unless their machine code is kept from earlier.

    Raises:
        OSError: The source code of Stepscope is not available.
    """
    as_differences(np.zeros(1, np.int64), np.empty(most_bytes(1), np.uint8))
    as_packed(np.zeros(1, np.uint8), 1)
    pages = TextPages().of(pl.Series(["text"]), np.ones(1, np.bool_))
    deque(pages or (), maxlen=0)


def write(frame: pl.DataFrame, target: Path, types: Types | None = None) -> bool:
    """Writes a table as a Parquet file.

    Args:
        frame: The table.
        target: The file, which is replaced.
        types: Types to write the columns as, where the table holds them in narrower ones; they are
            cast one row group at a time.

    Returns:
        Whether it was written: not if it has other columns than integers of 32 or 64 bits,
        categories and text.

    Raises:
        OSError: The file cannot be written.
    """
    schema = cast_to(types, frame.clear()).schema
    if not all(map(is_suitable, schema.dtypes())):
        return False
    groups = []
    contents = [_MAGIC]
    at = len(_MAGIC)
    rows_each = -(-len(frame) // max(round(len(frame) / _ROWS_PER_GROUP), 1))
    scratch = Scratch(rows_each)
    for start in range(0, len(frame), max(rows_each, 1)):
        rows = cast_to(types, frame[start : start + rows_each])
        chunks: list[Value] = []
        began = at
        for column in rows.iter_columns():
            chunk = chunk_of(column, at, scratch)
            if chunk is None:
                return False
            contents += chunk.pages
            chunks.append(Struct({2: Long(at), 3: chunk.description}))
            at += chunk.size
        groups.append(Struct({1: chunks, 2: Long(at - began), 3: Long(len(rows))}))
    footer = _footer(schema, len(frame), groups)
    with target.open("wb") as file:
        file.writelines([*contents, footer, len(footer).to_bytes(4, "little"), _MAGIC])
    return True


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
