"""Pages of Parquet: the values of a column, or its dictionary, after a header."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.trace.parquet.thrift import Struct, Value, encoded

PLAIN, RLE, DIFFERENCES, OF_DICTIONARY = 0, 3, 5, 8
"""Encodings."""
_DATA, _DICTIONARY, _DATA_OF_SECOND_VERSION = 0, 2, 3
_LEVELS_LENGTH_BYTES = 4


def dictionary_page(words: Sequence[bytes]) -> bytes:
    """Returns a page of distinct words."""
    body = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    return _page(_DICTIONARY, body, len(body), {7: Struct({1: len(words), 2: PLAIN})})


def data_page(levels: bytes, values: bytes, count: int, encoding: int) -> bytes:
    """Returns a page of values.

    Args:
        levels: Which values are not null.
        values: Those that are not.
        count: How many there are, with nulls.
        encoding: How they are encoded.
    """
    body = len(levels).to_bytes(_LEVELS_LENGTH_BYTES, "little") + levels + values
    return _page(_DATA, body, len(body), {5: Struct({1: count, 2: encoding, 3: RLE, 4: RLE})})


def text_page(levels: bytes, text: bytes, size: int, count: int, nulls: int) -> bytes:
    """Returns a page of text. Which texts are null is not compressed: hence the second version.

    Args:
        levels: Which texts are not null.
        text: The texts, compressed.
        size: Their bytes before compression.
        count: How many there are, with nulls.
        nulls: Number of nulls.
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
    return _page(_DATA_OF_SECOND_VERSION, levels + text, len(levels) + size, {8: Struct(header)})


def _page(kind: int, body: bytes, size: int, header: dict[int, Value]) -> bytes:
    """Returns a page. `size` is that of the body before compression."""
    return encoded(Struct({1: kind, 2: size, 3: len(body), **header})) + body
