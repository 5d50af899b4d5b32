"""Pages of Parquet: the values of a column, or its dictionary, after a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        levels: Which texts are not null.
        text: The texts, compressed.
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
