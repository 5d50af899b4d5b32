"""Columns and rows as pages of Parquet, made of arrays: what files are put together from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.parquet.encodings import as_differences, as_levels, as_packed
from stepscope.trace.parquet.pages import (
    DIFFERENCES,
    OF_DICTIONARY,
    PLAIN,
    data_page,
    text_page,
)
from stepscope.trace.parquet.text import compressed


@dataclass(frozen=True)
class EncodedColumn:
    """Consecutive values of a column.

    Attributes:
        pages: Its pages, without a dictionary, in pieces that follow each other.
        count: Number of values, with nulls.
        saved: Bytes that compression saved; None if nothing was compressed.
        limits: The least and the largest value; None if that is unknown, or if all are null.
        words: The dictionary, if the values are encoded as numbers of words.
    """

    pages: Sequence[bytes]
    encoding: int
    count: int
    nulls: int
    saved: int | None = None
    limits: tuple[np.integer[Any], np.integer[Any]] | None = None
    words: tuple[bytes, ...] | None = None


@dataclass(frozen=True)
class EncodedRows:
    """Consecutive rows of a table."""

    count: int
    columns: Mapping[str, EncodedColumn]

    def __len__(self) -> int:
        return self.count


def numbers(
    values: npt.NDArray[Any],
    target: npt.NDArray[np.uint8],
    present: npt.NDArray[np.uint8] | None = None,
    count: int | None = None,
) -> EncodedColumn:
    """Returns a column of integers of 32 or 64 bits.

    Args:
        values: Those that are not null.
        target: Memory to write to (`encodings.most_bytes`).
        present: One bit per value, least significant bit first, set unless it is null; None if
            there are no nulls.
        count: Number of values, with nulls; None if there are none.
    """
    count = len(values) if count is None else count
    nulls = count - len(values)
    levels = as_levels(present, count, nulls)
    differences, limits = as_differences(values, target)
    page = data_page(levels, differences, count, DIFFERENCES)
    return EncodedColumn(page, DIFFERENCES, count, nulls, limits=limits)


def words(
    values: npt.NDArray[np.uint8],
    dictionary: Sequence[bytes],
    present: npt.NDArray[np.uint8] | None = None,
    count: int | None = None,
) -> EncodedColumn:
    """Returns a column of words.

    Args:
        values: The numbers of those that are not null.
        present: As for `numbers`.
        count: As for `numbers`.
    """
    count = len(values) if count is None else count
    nulls = count - len(values)
    width = max(len(dictionary) - 1, 1).bit_length()
    levels = as_levels(present, count, nulls)
    packed = bytes([width]) + as_packed(values, width)
    page = data_page(levels, packed, count, OF_DICTIONARY)
    return EncodedColumn(page, OF_DICTIONARY, count, nulls, words=tuple(dictionary))


def texts(
    text: npt.NDArray[np.uint8],
    present: npt.NDArray[np.uint8] | None,
    count: int,
    nulls: int,
) -> EncodedColumn:
    """Returns a column of text, in one page.

    Args:
        text: Those that are not null, each after its length in four bytes.
        present: As for `numbers`.
        count: Number of texts, with nulls.
    """
    block = compressed(text) if len(text) else b""
    page = text_page(as_levels(present, count, nulls), block, len(text), count, nulls)
    return EncodedColumn(page, PLAIN, count, nulls, saved=len(text) - len(block))


def joined(columns: Sequence[EncodedColumn]) -> EncodedColumn:
    """Returns columns one after another. They have the same encoding, and the same dictionary."""
    first = columns[0]
    if len(columns) == 1:
        return first
    limits = [column.limits for column in columns if column.limits is not None]
    return EncodedColumn(
        pages=[page for column in columns for page in column.pages],
        encoding=first.encoding,
        count=sum(column.count for column in columns),
        nulls=sum(column.nulls for column in columns),
        saved=None if first.saved is None else sum(column.saved or 0 for column in columns),
        limits=(min(low for low, _ in limits), max(high for _, high in limits)) if limits else None,
        words=first.words,
    )
