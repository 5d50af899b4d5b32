"""Columns of Polars as columns of Parquet."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.parquet.encoded import EncodedColumn, joined, numbers, words
from stepscope.trace.parquet.encodings import as_levels, most_bytes
from stepscope.trace.parquet.pages import PLAIN, text_page
from stepscope.trace.parquet.text import TextPage, TextPages
from stepscope.trace.parquet.types import BYTE_ARRAY, physical_type

_MOST_WORDS = 128
"""Distinct words of a column that is stored as their numbers."""
_SAMPLE = 1000  # rows, to recognise text without looking at all of it


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
