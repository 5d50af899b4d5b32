"""Columns and rows as pages of Parquet, made of arrays: what files consist of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.parquet.encodings import as_differences, as_levels, as_packed
from stepscope.trace.parquet.thrift import Struct, Value, encoded

PLAIN, RLE, DIFFERENCES, OF_DICTIONARY = 0, 3, 5, 8
"""Encodings."""
_DATA, _DICTIONARY, _DATA_OF_SECOND_VERSION = 0, 2, 3
_LEVELS_LENGTH_BYTES = 4


Page = tuple[bytes, bytes]
"""A page in two pieces, which follow each other: large values are not copied behind a header."""


def dictionary_page(words: Sequence[bytes]) -> Page:
    """Returns a page of distinct words."""
    body = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    header = {7: Struct({1: len(words), 2: PLAIN})}
    return _page(_DICTIONARY, b"", body, len(body), header)


def data_page(levels: bytes, values: bytes, count: int, encoding: int) -> Page:
    """Returns a page of values.

    Args:
        levels: Which values are not null.
        values: Those that are not.
        count: How many there are, with nulls.
    """
    levels = len(levels).to_bytes(_LEVELS_LENGTH_BYTES, "little") + levels
    header = {5: Struct({1: count, 2: encoding, 3: RLE, 4: RLE})}
    return _page(_DATA, levels, values, len(levels) + len(values), header)


def text_page(levels: bytes, text: bytes, size: int, count: int, nulls: int) -> Page:
    """Returns a page of text. Which texts are null is not compressed: hence the second version.

    Args:
        size: Their bytes before compression.
        count: How many there are, with nulls.
    """
    header: dict[int, Value] = {
        1: count,
        2: nulls,
        3: count,
        4: PLAIN,
        5: len(levels),
        6: 0,
        7: size > 0,
    }
    size += len(levels)
    return _page(_DATA_OF_SECOND_VERSION, levels, text, size, {8: Struct(header)})


def _page(kind: int, levels: bytes, values: bytes, size: int, header: Mapping[int, Value]) -> Page:
    """Returns a page. `size` is that of levels and values before compression."""
    stored = len(levels) + len(values)
    return encoded(Struct({1: kind, 2: size, 3: stored, **header})) + levels, values


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
